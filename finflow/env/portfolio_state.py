"""States of portfolios between decisions, and the outcome of one decision; arrays over a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.arrays import BoolArray


@dataclass(frozen=True)
class PortfolioState:
    """State of N portfolios before their next decision; arrays over the batch."""

    bar: Any  # (batch,), at which the next decision fills
    weights: Any  # (batch, K), right after the last fill, at the prices of bar - 1
    wealth: Any  # (batch,), in money, at bar, before the trade
    objective: Any  # (batch, 3), state of the reward, through bar
    objective_before: Any  # the same one bar earlier: what may be observed at lags over 0


class Step(NamedTuple):
    """Outcome of a decision; arrays over the batch."""

    state: PortfolioState  # after it
    reward: Any  # (batch,), in units of a daily log return
    components: Any  # (batch, components), by the ``reward_names`` of the process
    terminated: Any  # (batch,): ruin
    filled: Any  # (batch, K), right after the fill, at the fill's prices
    simple_return: Any  # (batch,), net, from before the trade to the next bar
    cost: Any  # (batch,)
    turnover: Any  # (batch,)
    refused: Any = None  # (batch,): trades that the account could not pay for; None where there are none


def rows_of(state: PortfolioState, which: NDArray[np.bool_ | np.int64] | slice) -> PortfolioState:
    return PortfolioState(**{name: value[which] for name, value in vars(state).items()})


def replace_rows(state: PortfolioState, which: BoolArray, fresh: PortfolioState) -> PortfolioState:
    """Replace the rows in ``which`` (N,) by those of ``fresh``, which has no others."""
    renewed = {}
    for name, value in vars(state).items():
        copy = value.copy()
        copy[which] = getattr(fresh, name)
        renewed[name] = copy
    return PortfolioState(**renewed)


def join_states(states: Sequence[PortfolioState]) -> PortfolioState:
    """Portfolios of several states, one after the other."""
    parts = {name: np.concatenate([getattr(one, name) for one in states]) for name in vars(states[0])}
    return PortfolioState(**parts)
