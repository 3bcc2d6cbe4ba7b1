"""The best portfolio of a market whose price process is known, under our ledger at lag 1, for expected log growth.

Decision t knows bars to t - 1, its target drifts through bar t to the fill, and what was filled earns bar t + 1. So
what is best is not the textbook's portfolio of the newest signal: the signal is a bar old, and the target has moved.

Without costs the weights held do not matter, and for each belief b the best target maximises

    E[log(a . g g') | b] - E[log(a . g) | b]

with g and g' the gross growth of the bars t and t + 1: exact under the ledger, to the quadrature. The same target is
best at any cost where it is one and the same asset (or cash) in every belief: then nothing ever trades. Elsewhere
costs need `dynamic_programming`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import scipy

from finflow.arrays import FloatArray
from finflow.config import EnvConfig, MarketConfig
from finflow.errors import ConfigError, refuse
from finflow.ledger.costs import BASIS_POINT
from finflow.market.bar_frequency import BARS_PER_YEAR
from finflow.market.sources.synthetic_market import MEMORY, PriceProcess, process_of
from finflow.strategies.dynamic_programming import TradingRule, gross_growth, interpolation, solve_with_costs
from finflow.strategies.strategy import Information

_DUST = 1e-5
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of the belief at which a policy is shown
OPTIMAL = "optimal"


@dataclass(frozen=True, eq=False)
class TargetRule:
    """Targets that depend on the belief alone, linear between nodes (B,) that have portfolios (B, K)."""

    beliefs: FloatArray
    portfolios: FloatArray

    def targets(self, beliefs: FloatArray, weights: FloatArray) -> FloatArray:
        """The best portfolio (batch, K) in each belief (batch,), whatever is held."""
        return np.stack([np.interp(beliefs, self.beliefs, column) for column in self.portfolios.T], axis=1)


class OptimalPolicy:
    """A rule as a Strategy: reads the belief off prices and names the rule's target."""

    def __init__(self, process: PriceProcess, rule: TargetRule | TradingRule) -> None:
        self.process = process
        self.rule = rule
        self.name = OPTIMAL

    def decide(self, information: Information) -> FloatArray:
        belief = self.process.filtered(np.log(information.prices[-MEMORY - 1 :]))[-1:]
        return np.asarray(self.rule.targets(belief, information.portfolio[None, :])[0])


@dataclass(frozen=True, eq=False)
class Optimum:
    """The optimal policy of a market and its expected utility."""

    policy: OptimalPolicy
    utility: float  # expected log growth a bar, costs paid, in the long run
    method: str  # how it was found, in words

    def examples(self, assets: Sequence[str]) -> dict[str, str]:
        """The policy in words: its targets for an account in equal weights, over the range of the belief."""
        process, names = self.policy.process, [*assets, "cash"]
        beliefs = process.beliefs[np.unique(np.searchsorted(np.cumsum(_long_run(process)), _LEVELS))]
        held = np.append(np.full(process.n_assets, 1.0 / process.n_assets), 0.0)
        targets = self.policy.rule.targets(beliefs, np.tile(held, (len(beliefs), 1)))
        portfolios = [
            " and ".join(f"{weight:.0%} {name}" for weight, name in zip(row, names, strict=True) if weight >= 0.005)
            for row in targets
        ]
        if len(beliefs) == 1:
            return {"always": portfolios[0]}
        return {f"{process.belief_name} {belief:.2f}": text for belief, text in zip(beliefs, portfolios, strict=True)}


def optimum_of(market: MarketConfig, env: EnvConfig) -> Optimum:
    """The optimum of a configured synthetic market.

    Raises ConfigError where the market is not synthetic, or the account has limits, a lag or a fill that the optimum is
    not known for.
    """
    refuse(
        market.source != "synthetic",
        f"market.source = {market.source} has no known optimum; set market.source=synthetic",
        ConfigError,
    )
    known = EnvConfig()
    for name in ("execution_lag", "fill", "costs", "max_weight", "max_turnover", "no_trade_band"):
        refuse(
            getattr(env, name) != getattr(known, name),
            f"env.{name} = {getattr(env, name)}: the optimum is known for the default only",
            ConfigError,
        )
    if market.cash_fraction is None:
        raise ConfigError(f"market.cash_rate = {market.cash_rate}: the optimum is known for one constant rate only")
    rate = (env.commission_bps + env.slippage_bps) * BASIS_POINT
    year = market.bars_per_year or BARS_PER_YEAR
    return optimum(process_of(market.synthetic), rate, math.log1p(market.cash_fraction) / year)


def optimum(process: PriceProcess, cost_rate: float, cash: float = 0.0) -> Optimum:
    """The optimal policy under a price process, for a proportional cost as a share of the traded value.

    ``cash`` is the log return of cash over a bar.
    """
    portfolios, growth = _without_costs(process, cash)
    one_asset = bool((portfolios.max(axis=1) == 1.0).all() and (portfolios == portfolios[0]).all())
    if cost_rate == 0.0 or one_asset:
        utility = float(_long_run(process) @ growth)
        how = "exact without trading: one asset at all times" if one_asset else "exact without costs, by quadrature"
        return Optimum(OptimalPolicy(process, TargetRule(process.beliefs, portfolios)), utility, how)
    with_cash = bool((portfolios[:, -1] > 0.0).any())
    equal = np.append(np.full(process.n_assets, 1.0 / process.n_assets), 0.0)
    extra: FloatArray = np.unique(np.round(np.vstack([portfolios, equal]), 4), axis=0)
    extra /= extra.sum(axis=1, keepdims=True)
    rule, utility = solve_with_costs(process, cost_rate, cash, with_cash, extra)
    return Optimum(OptimalPolicy(process, rule), utility, "dynamic programming on a grid, with costs")


def expected_growth(process: PriceProcess, weights: FloatArray, beliefs: FloatArray, cash: float = 0.0) -> FloatArray:
    """Expected log growth over the next bar of weights (n, K) held in beliefs (n,), before any cost, (n,).

    Between the nodes of the process's belief the expectation is interpolated (quadratic); ``cash`` is the log return of
    cash over a bar.
    """
    chances, growth = _ahead(process, cash)
    index, share = interpolation(process.beliefs, beliefs)
    result = np.zeros(len(weights))
    for column in range(index.shape[1]):
        node = index[:, column]
        logs = np.log(np.einsum("nsk,nk->ns", growth[node], weights))
        result += share[:, column] * (chances[node] * logs).sum(axis=1)
    return result


@lru_cache(maxsize=4)
def _ahead(process: PriceProcess, cash: float) -> tuple[FloatArray, FloatArray]:
    """Probabilities (B, scenarios) and gross growth (B, scenarios, K) of the next bar, at every node of the belief."""
    ahead = [process.scenarios(float(belief)) for belief in process.beliefs]
    growth = [gross_growth(each.returns, cash) for each in ahead]
    return np.stack([each.probability for each in ahead]), np.stack(growth)


@lru_cache(maxsize=4)
def _without_costs(process: PriceProcess, cash: float) -> tuple[FloatArray, FloatArray]:
    """The best portfolio (B, K) at every node of the belief, and its expected log growth (B,)."""
    portfolios, growth = [], []
    start = np.full(process.n_assets + 1, 1.0 / (process.n_assets + 1))
    for belief in process.beliefs:
        best, value = _best_target(process, float(belief), cash, start)
        portfolios.append(best)
        growth.append(value)
        start = 0.9 * best + 0.1 / len(best)
    return np.stack(portfolios), np.array(growth)


def _best_target(process: PriceProcess, belief: float, cash: float, start: FloatArray) -> tuple[FloatArray, float]:
    """Maximise E[log(a . g g')] - E[log(a . g)] over the simplex."""
    now = process.scenarios(belief)
    first = gross_growth(now.returns, cash)
    chances, both = [], []
    for chance, grown, after in zip(now.probability, first, now.belief, strict=True):
        ahead = process.scenarios(float(after))
        chances.append(chance * ahead.probability)
        both.append(grown * gross_growth(ahead.returns, cash))
    probability, second = np.concatenate(chances), np.concatenate(both)

    def loss(target: FloatArray) -> tuple[float, FloatArray]:
        earlier, later = first @ target, second @ target
        value = probability @ np.log(later) - now.probability @ np.log(earlier)
        slope = (probability / later) @ second - (now.probability / earlier) @ first
        return -scale * float(value), -scale * slope

    # In units of the largest gain that a change of weights could bring, so that the solver's tolerance means the same.
    scale = 1.0
    scale = 1.0 / max(float(np.ptp(loss(start)[1])), 1e-12)
    simplex: dict[str, Any] = {"type": "eq", "fun": lambda a: a.sum() - 1.0, "jac": lambda a: np.ones_like(a)}
    solution = scipy.optimize.minimize(
        loss,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * len(start),
        constraints=[simplex],
        options={"ftol": 1e-12, "maxiter": 200},
    )
    best = np.where(solution.x > _DUST, solution.x, 0.0)
    best = best / best.sum()
    return best, -loss(best)[0] / scale


def _long_run(process: PriceProcess) -> FloatArray:
    """Long-run distribution over the nodes of the belief, (B,)."""
    beliefs = process.beliefs
    moves = np.zeros((len(beliefs), len(beliefs)))
    for row, belief in enumerate(beliefs):
        probability, _, after = process.scenarios(float(belief))
        index, share = interpolation(beliefs, after)
        np.add.at(moves[row], index, share * probability[:, None])
    for _ in range(16):  # the chain squared so often has run for 65 536 bars
        moves = moves @ moves
        moves /= moves.sum(axis=1, keepdims=True)
    return np.asarray(moves[len(beliefs) // 2])
