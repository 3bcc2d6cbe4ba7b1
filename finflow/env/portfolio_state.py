"""States of portfolios between decisions, and the outcome of one decision; arrays over a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PortfolioState:
    """State of N portfolios before their next decision.

    Attributes
    ----------
    bar : int array, (batch,)
        Bar at which the next decision fills.
    weights : float array, (batch, K)
        Right after the last fill, at the prices of bar - 1.
    wealth : float array, (batch,)
        In money, at bar, before the trade.
    objective : float array, (batch, 3)
        State of the reward, through bar.
    objective_before : float array, (batch, 3)
        The same one bar earlier: what may be observed at lags over 0.
    """

    bar: Any
    weights: Any
    wealth: Any
    objective: Any
    objective_before: Any


class Step(NamedTuple):
    """Outcome of a decision; arrays over the batch.

    Attributes
    ----------
    state : PortfolioState
        The state after it.
    reward : array, (batch,)
        In units of a daily log return.
    components : array, (batch, components)
        Terms of the reward, by the ``reward_names`` of the process.
    terminated : bool array, (batch,)
        Ruin.
    filled : array, (batch, K)
        Weights right after the fill, at the fill's prices.
    simple_return : array, (batch,)
        Net return from before the trade to the next bar.
    cost, turnover : array, (batch,)
    refused : bool array, (batch,), or None
        Trades that the account could not pay for; None where there are none.
    """

    state: PortfolioState
    reward: Any
    components: Any
    terminated: Any
    filled: Any
    simple_return: Any
    cost: Any
    turnover: Any
    refused: Any = None


def next_state(state: PortfolioState, weights: Any, wealth: Any, objective: Any) -> PortfolioState:
    """State a bar later."""
    changes = {"weights": weights, "wealth": wealth, "objective": objective, "objective_before": state.objective}
    return replace(state, bar=state.bar + 1, **changes)


def rows_of(state: PortfolioState, which: NDArray[np.bool_] | slice) -> PortfolioState:
    """Select the portfolios of a mask (N,) or a slice."""
    return PortfolioState(**{name: value[which] for name, value in vars(state).items()})


def replace_rows(state: PortfolioState, which: NDArray[np.bool_], fresh: PortfolioState) -> PortfolioState:
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
