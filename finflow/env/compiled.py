"""The decision process as one compiled loop over portfolios: ``DecisionProcess.step`` and ``observe`` in one pass.

NumPy makes some sixty passes over (batch, K) arrays for a step. The loop here makes one, so a portfolio stays in the
processor's first cache from its drift to its next observation. It covers costs in proportion to trades; tests hold it
equal to the array version to 1e-10.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from finflow.env.decision import RUIN, DecisionProcess, PortfolioState, Step
from finflow.env.objective import CVAR_SCALE, DRAWDOWN_SCALE, LEAST_DEVIATION, TURNOVER_SCALE
from finflow.ledger.accounting import MAX_ITERATIONS, WEALTH_TOLERANCE, drift
from finflow.ledger.constraints import ROUNDING, SIMPLEX_TOLERANCE
from finflow.ledger.costs import Proportional, Summed

FloatArray = NDArray[np.float64]
N_COMPONENTS = 5


def proportional_rate(process: DecisionProcess) -> float | None:
    """The rate of a process whose costs are all proportional; None where others are among them."""
    models = process.costs.models if isinstance(process.costs, Summed) else [process.costs]
    if all(isinstance(model, Proportional) for model in models):
        return float(sum(model.rate for model in models if isinstance(model, Proportional)))
    return None


class CompiledProcess:
    """A decision process whose steps are compiled.

    Parameters
    ----------
    process : DecisionProcess
        With proportional costs alone.
    """

    def __init__(self, process: DecisionProcess) -> None:
        rate = proportional_rate(process)
        if rate is None:
            raise ValueError("only proportional costs are compiled")
        self.process = process
        self._growth = np.ascontiguousarray(process.growth)
        self._listed = np.ascontiguousarray(process.listed)
        self._complete = bool(process.listed.all())
        weights, moments = process.objective.config, process.objective.moments
        limits = process.limits
        self._numbers = np.array(
            [
                rate,
                limits.max_weight,
                limits.max_turnover,
                limits.no_trade_band,
                weights.sharpe_eta,
                weights.sharpe_beta * weights.sharpe_eta,
                weights.lambda_turn * TURNOVER_SCALE,
                weights.lambda_cvar * (CVAR_SCALE / weights.cvar_alpha),
                -weights.cvar_target,
                weights.lambda_dd * DRAWDOWN_SCALE,
                (LEAST_DEVIATION * moments.deviation) ** 2,
                moments.first,
                moments.second,
                0.1 * moments.deviation,
            ]
        )

    def step(self, state: PortfolioState, action: NDArray[Any], sums: FloatArray) -> tuple[Step, FloatArray]:
        """Fill a decision and hold it for one bar.

        Parameters
        ----------
        state : PortfolioState
        action : array, (batch, K)
        sums : array, (batch, 3)
            Count, sum and sum of squares of excess returns so far; one bar is added in place.

        Returns
        -------
        step : Step
        sharpe : array, (batch,)
            Running Sharpe ratio, a year.

        """
        batch, n_weights = state.weights.shape
        filled = np.empty((batch, n_weights))
        scalars = np.empty((6, batch))  # wealth, return, cost, turnover, reward, Sharpe
        objective, components = np.empty((batch, 3)), np.empty((batch, N_COMPONENTS))
        # at lag 0 the target is stated at the fill's prices, as the array version's own drift finds them
        weights = state.weights if self.process.lag > 0 else drift(state.weights, self._growth[state.bar])
        _step(
            state.bar,
            weights,
            state.wealth,
            state.objective,
            action,
            self._growth,
            self._listed,
            self._complete,
            self.process.lag > 0,
            self._numbers,
            filled,
            scalars,
            objective,
            components,
            sums,
        )
        wealth, simple_return, cost, turnover, reward, sharpe = scalars
        after = PortfolioState(state.bar + 1, filled, wealth, objective, state.objective)
        ruined = wealth <= RUIN * self.process.env.initial_capital
        return Step(after, reward, components, ruined, filled, simple_return, cost, turnover), sharpe

    def observe(self, state: PortfolioState) -> dict[str, Any]:
        """What is known at the next decision, as ``DecisionProcess.observe`` gives it."""
        process = self.process
        if process.lag == 0:
            return process.observe(state)
        batch, n_weights = state.weights.shape
        row = state.bar - process.lag
        portfolio = np.empty((batch, n_weights + 3))
        _observe(state.weights, state.objective_before, self._numbers[11:], portfolio)
        return {
            "assets": np.take(process.asset_features, row, axis=0),
            "market": np.take(process.market_features, row, axis=0),
            "portfolio": portfolio,
        }


@njit(cache=True, error_model="numpy")
def _project(values: FloatArray, ordered: FloatArray) -> None:
    """Euclidean projection of one row onto the simplex, in place."""
    ordered[:] = np.sort(values)[::-1]
    total, threshold = 0.0, 0.0
    for i in range(values.size):
        total += ordered[i]
        if ordered[i] - (total - 1.0) / (i + 1) > 0:
            threshold = (total - 1.0) / (i + 1)
    kept = 0.0
    for i in range(values.size):
        values[i] = max(values[i] - threshold, 0.0)
        kept += values[i]
    for i in range(values.size):
        values[i] /= kept


@njit(cache=True, error_model="numpy")
def _keep_listed(target: FloatArray, listed: NDArray[np.bool_], held: FloatArray) -> None:
    """One row of ``constraints.keep_listed``, in place."""
    last = target.size - 1
    paid, spread = 0.0, 0.0
    for i in range(last):
        if not listed[i]:
            mine = min(target[i], held[i])
            paid += mine
            spread += target[i] - mine
            target[i] = 0.0
    target[last] += paid
    if spread > 0.0:
        total = target.sum()
        if total > 0.0:
            target /= total
        else:
            target[last] = 1.0


@njit(cache=True, error_model="numpy")
def _limit(before: FloatArray, target: FloatArray, max_weight: float, max_turnover: float, band: float) -> None:
    """One row of ``constraints.apply_limits``, in place."""
    last = target.size - 1
    if max_weight < 1.0:
        risky = 0.0
        for i in range(last):
            target[i] = min(max(target[i], 0.0), max_weight)
            risky += target[i]
        target[last] = max(1.0 - risky, 0.0)
    if max_turnover < 1.0:
        gross, net = 0.0, 0.0
        for i in range(last):
            gross += abs(target[i] - before[i])
            net += target[i] - before[i]
        wanted = 0.5 * (gross + abs(net))
        if wanted > max_turnover:
            share = max_turnover / wanted
            for i in range(last + 1):
                target[i] = before[i] + share * (target[i] - before[i])
    if band > 0.0:
        largest = 0.0
        for i in range(last + 1):
            largest = max(largest, abs(target[i] - before[i]))
        if largest <= band:
            target[:] = before


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
def _step(
    bar: NDArray[np.int64],
    weights: FloatArray,
    wealth: FloatArray,
    objective: FloatArray,
    action: NDArray[Any],
    growth: FloatArray,
    listed: NDArray[np.bool_],
    complete: bool,
    lagged: bool,
    numbers: FloatArray,
    filled: FloatArray,
    scalars: FloatArray,
    objective_after: FloatArray,
    components: FloatArray,
    sums: FloatArray,
) -> None:
    """Every portfolio's step."""
    batch, n_weights = weights.shape
    last = n_weights - 1
    rate, max_weight, max_turnover, band = numbers[0], numbers[1], numbers[2], numbers[3]
    eta, sharpe_weight, turnover_weight, cvar_weight = numbers[4], numbers[5], numbers[6], numbers[7]
    zeta, drawdown_weight, least_variance = numbers[8], numbers[9], numbers[10]
    limited = max_weight < 1.0 or max_turnover < 1.0 or band > 0.0
    before, target, held = np.empty(n_weights), np.empty(n_weights), np.empty(n_weights)
    for n in range(batch):
        now, ahead = growth[bar[n]], growth[bar[n] + 1]
        before_sum, total, least, apart = 0.0, 0.0, 0.0, 0.0
        for i in range(n_weights):
            before[i] = weights[n, i] * now[i] if lagged else weights[n, i]
            before_sum += before[i]
            target[i] = action[n, i]
            total += target[i]
            least = min(least, target[i])
            apart += abs(target[i] - weights[n, i])
        if least < 0.0 or abs(total - 1.0) > SIMPLEX_TOLERANCE:
            _project(target, held)
        elif abs(total - 1.0) > ROUNDING:
            for i in range(n_weights):
                target[i] /= total
        if lagged:
            inverse = 1.0 / before_sum
            for i in range(n_weights):
                before[i] *= inverse
            target_sum = 0.0
            for i in range(n_weights):
                target[i] *= now[i]
                target_sum += target[i]
            inverse = 1.0 / target_sum
            for i in range(n_weights):
                target[i] *= inverse
        if apart == 0.0:  # what is held trades nothing, whatever the order of the sums
            target[:] = before
        if not complete:
            held[:] = before
            for i in range(last):
                if not listed[bar[n], i]:
                    before[last] += before[i]
                    before[i] = 0.0
            _keep_listed(target, listed[bar[n]], held)
        if limited:
            _limit(before, target, max_weight, max_turnover, band)

        gross, net, risky = 0.0, 0.0, 0.0
        for i in range(last):
            gross += abs(target[i] - before[i])
            net += target[i] - before[i]
            risky += target[i]
        factor = 1.0
        if gross > 0.0:  # Newton on mu - 1 + rate * sum |mu t - b|, piecewise linear and convex: exact in a few steps
            for _ in range(MAX_ITERATIONS):
                traded, slope = 0.0, 0.0
                for i in range(last):
                    trade = factor * target[i] - before[i]
                    traded += abs(trade)
                    slope += target[i] if trade > 0.0 else -target[i]
                moved = (factor - 1.0 + rate * traded) / (1.0 + rate * slope)
                factor -= moved
                if abs(moved) <= WEALTH_TOLERANCE:
                    break
        target[last] = max(1.0 - risky, 0.0)
        grown = 0.0
        for i in range(n_weights):
            filled[n, i] = target[i]
            grown += target[i] * ahead[i]
        simple_return = factor * grown - 1.0
        turnover = 0.5 * (gross + abs(net))

        log_return = np.log(max(1.0 + simple_return, 1e-12))
        first, second, below = objective[n, 0], objective[n, 1], objective[n, 2]
        step_first, step_second = log_return - first, log_return * log_return - second
        variance = max(second - first * first, least_variance)
        below_after = min(below + log_return, 0.0)
        components[n, 0] = log_return
        sharpe_step = (second * step_first - 0.5 * first * step_second) / (variance * np.sqrt(variance))
        components[n, 1] = sharpe_weight * sharpe_step
        components[n, 2] = -turnover_weight * turnover
        components[n, 3] = -cvar_weight * max(-log_return - zeta, 0.0)
        components[n, 4] = 0.0
        if drawdown_weight > 0.0:
            components[n, 4] = -drawdown_weight * max(np.exp(below) - np.exp(below_after), 0.0)
        reward = 0.0
        for i in range(N_COMPONENTS):
            reward += components[n, i]
        objective_after[n, 0] = first + eta * step_first
        objective_after[n, 1] = second + eta * step_second
        objective_after[n, 2] = below_after

        excess = simple_return - (ahead[last] - 1.0)
        count = sums[n, 0] + 1.0
        sums[n, 0] = count
        sums[n, 1] += excess
        sums[n, 2] += excess * excess
        sharpe = 0.0
        if count > 1.0:
            mean = sums[n, 1] / count
            deviation = np.sqrt(max((sums[n, 2] - count * mean * mean) / (count - 1.0), 0.0))
            if deviation > 1e-12:
                sharpe = mean / deviation * np.sqrt(252.0)
        scalars[0, n] = wealth[n] * (1.0 + simple_return)
        scalars[1, n] = simple_return
        scalars[2, n] = 1.0 - factor
        scalars[3, n] = turnover
        scalars[4, n] = reward
        scalars[5, n] = sharpe


@njit(cache=True, error_model="numpy")
def _observe(weights: FloatArray, objective: FloatArray, units: FloatArray, portfolio: FloatArray) -> None:
    """Every portfolio's own state in observed units."""
    n_weights = weights.shape[1]
    for n in range(len(weights)):
        for i in range(n_weights):
            portfolio[n, i] = weights[n, i]
        portfolio[n, n_weights] = (objective[n, 0] - units[0]) / units[2]
        portfolio[n, n_weights + 1] = objective[n, 1] / units[1] - 1.0
        portfolio[n, n_weights + 2] = 10.0 * objective[n, 2]
