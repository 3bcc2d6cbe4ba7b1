"""The same market with other costs, another lag, sub-universes, or further tables of bars behind its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from finflow.config import EnvConfig
from finflow.env.decision_process import DecisionProcess
from finflow.ledger.costs import MarketState


def with_costs(process: DecisionProcess, env: EnvConfig) -> DecisionProcess:
    """The same market and limits with the costs and the capital of another configuration."""
    other = copy.copy(process)
    names = ("initial_capital", "commission_bps", "slippage_bps", "costs")
    other.env = process.env.model_copy(update={name: getattr(env, name) for name in names})
    other._set_costs(other.env)
    return other


def with_lag(process: DecisionProcess, lag: int) -> DecisionProcess:
    """The same market, costs and limits at another execution lag."""
    other = copy.copy(process)
    other._set_lag(process.env.model_copy(update={"execution_lag": lag}))
    other._set_costs(other.env)
    return other


def with_universes(process: DecisionProcess, members: NDArray[np.int64] | None) -> DecisionProcess:
    """The same market with sub-universes (M, n), assets by number, that a `WorldState` names."""
    other = copy.copy(process)
    other.members, other.inside = members, None
    if members is not None:
        other.inside = np.zeros((len(members), process.n_weights - 1), dtype=np.bool_)
        np.put_along_axis(other.inside, members, True, axis=1)
    return other


def concatenate_markets(process: DecisionProcess, others: Sequence[DecisionProcess]) -> DecisionProcess:
    """This market and others with the same assets and features, bar after bar in one set of tables.

    The tables are not consecutive: no window of episodes may span two of them. The bars of this process keep
    their numbers; `decision_bars` does not account for the first bars of the others.
    """
    other, all_of = copy.copy(process), (process, *others)
    other.panels = tuple(panel for one in all_of for panel in one.panels)
    for name in ("growth", "listed", "halted", "asset_features", "market_features"):
        setattr(other, name, np.concatenate([getattr(one, name) for one in all_of]))
    other.has_halts = any(one.has_halts for one in all_of)
    if any(one.dividends is not None for one in all_of):
        other.dividends = np.concatenate(
            [np.zeros(one.listed.shape) if one.dividends is None else one.dividends for one in all_of]
        )
    other._set_costs(process.env)
    return other


def with_growths(process: DecisionProcess, growths: Sequence[NDArray[np.float64]]) -> DecisionProcess:
    """Same market with further tables of growth, (bars, K) each, one after the other behind its own.

    A portfolio at bar ``b + n * bars`` meets the growth at bar ``b`` of the n-th of them. The features are the market's
    own alone, so that portfolios in further tables can be stepped but not observed.
    """
    other, count = copy.copy(process), 1 + len(growths)
    other.growth = np.concatenate([process.growth, *growths])
    other.listed = np.tile(process.listed, (count, 1))
    other.halted = np.tile(process.halted, (count, 1))
    if process.dividends is not None:
        other.dividends = np.tile(process.dividends, (count, 1))
    if process.liquidity is not None:
        other.liquidity = MarketState(*(np.tile(table, (count, 1)) for table in process.liquidity))
    return other
