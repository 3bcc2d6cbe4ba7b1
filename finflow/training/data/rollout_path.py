"""Arrays and numbers that the loops of a rollout read and fill."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finflow.agent.networks.policy import N_TRADE_FACTS
from finflow.arrays import FloatArray
from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import CVAR_SCALE, DRAWDOWN_SCALE, LEAST_DEVIATION, TURNOVER_SCALE
from finflow.ledger.costs import proportional_rates


class Constants(NamedTuple):
    """Numbers of the ledger and the reward; weights of its terms with their scales."""

    rate: float  # of all costs
    first: float
    second: float
    deviation: float
    least_variance: float
    cvar_target: float
    eta: float
    sharpe: float
    turnover: float
    cvar: float
    drawdown: float

    @classmethod
    def of(cls, process: DecisionProcess) -> Constants:
        moments, weights, rates = process.objective.moments, process.objective.config, proportional_rates(process.costs)
        return cls(
            rate=0.0 if rates is None else float(rates.sum()),
            first=moments.first,
            second=moments.second,
            deviation=moments.deviation,
            least_variance=(LEAST_DEVIATION * moments.deviation) ** 2,
            cvar_target=float(weights.cvar_target),
            eta=float(weights.sharpe_eta),
            sharpe=float(weights.sharpe_beta * weights.sharpe_eta),
            turnover=float(weights.lambda_turn * TURNOVER_SCALE),
            cvar=float(weights.lambda_cvar * CVAR_SCALE / weights.cvar_alpha),
            drawdown=float(weights.lambda_dd * DRAWDOWN_SCALE),
        )


class Path(NamedTuple):
    """All that portfolios meet and do, in double precision; the loop fills the latter."""

    aim: FloatArray  # (horizon, batch, K)
    hidden: FloatArray  # (horizon, batch, width): what the market adds; then activations
    facts_weight: FloatArray  # (members, facts, width)
    head_weight: FloatArray  # (members, 2, width)
    head_bias: FloatArray  # (members, 2)
    noise: FloatArray  # (horizon, batch, K - 1)
    growth: FloatArray  # (horizon + 1, batch, K)
    weights: FloatArray  # (horizon + 1, batch, K)
    objective: FloatArray  # (horizon + 2, batch, 3): one decision before the first one, too
    action: FloatArray  # (horizon, batch, K)
    numbers: FloatArray  # (horizon, batch, 3): logit of the trade rate, log scale, wealth factor
    outcome: FloatArray  # (4, horizon, batch): reward, log density, turnover, gross return


class Slopes(NamedTuple):
    """Gradients: given ones of the outcome, and those that the loop fills."""

    reward: FloatArray
    density: FloatArray
    weights: FloatArray  # (batch, K): at the end
    objective: FloatArray  # (batch, 3): likewise
    objective_before: FloatArray
    aim: FloatArray
    hidden: FloatArray
    facts_weight: FloatArray
    head_weight: FloatArray
    head_bias: FloatArray


class Work(NamedTuple):
    """Room for one decision: arrays (K,), and of the facts that the trade rate reads."""

    b: FloatArray
    t: FloatArray
    of_b: FloatArray
    of_t: FloatArray
    of_a: FloatArray
    facts: FloatArray
    of_facts: FloatArray

    @classmethod
    def of(cls, n_weights: int) -> Work:
        return cls(*np.empty((5, n_weights)), *np.empty((2, N_TRADE_FACTS)))
