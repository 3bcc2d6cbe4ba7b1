"""The same market with other costs, another lag, or further tables of bars behind its own."""

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
