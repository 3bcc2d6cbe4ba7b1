"""The decision process as one compiled loop over portfolios: ``DecisionProcess.step`` and ``observe`` in one pass.

NumPy makes some sixty passes over (batch, K) arrays for a step. The loop here makes one, so a portfolio stays in the
processor's first cache from its drift to its next observation, and the features of the portfolios that follow are
on their way from memory while one is computed. It covers costs in proportion to trades; tests hold it equal to the
array version to 1e-10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from finflow.env.decision_process import RUIN, DecisionProcess, PortfolioState, Step, WorldState, moved_on
from finflow.env.objective import COMPONENTS, CVAR_SCALE, DRAWDOWN_SCALE, LEAST_DEVIATION, STATE_SIZE, TURNOVER_SCALE
from finflow.ledger.accounting import MAX_ITERATIONS, WEALTH_TOLERANCE, drift
from finflow.ledger.constraints import ROUNDING, SIMPLEX_TOLERANCE
from finflow.ledger.costs import Proportional, Summed
from finflow.market.panel import BARS_PER_YEAR

FloatArray = NDArray[np.float64]
N_COMPONENTS = len(COMPONENTS)
CACHE_LINE = 64  # bytes
AHEAD = 2  # portfolios whose features are fetched before their turn
GUARD = 64  # numbers kept free around each row that is worked in


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
        bars = len(process.growth)
        self._growth = np.ascontiguousarray(process.growth)
        self._listed = np.ascontiguousarray(process.listed)
        self._complete = bool(process.listed.all()) and process.inside is None
        self._whole = process.inside is None
        inside = np.ones((1, process.n_weights - 1)) if process.inside is None else process.inside
        self._inside = np.ascontiguousarray(inside, dtype=np.float32)
        self._alike: tuple[NDArray[np.int64], FloatArray] = np.zeros(0, dtype=np.int64), np.ones(0)
        self._features = np.ascontiguousarray(process.asset_features).reshape(bars, -1)
        self._market = np.ascontiguousarray(process.market_features)
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
                1.0 / moments.second,
                1.0 / (0.1 * moments.deviation),
            ]
        )

    def step(
        self, state: PortfolioState, action: NDArray[Any], sums: FloatArray, into: dict[str, Any] | None = None
    ) -> tuple[Step, FloatArray, dict[str, Any]]:
        """Fill a decision, hold it for one bar and see what is known at the next.

        Parameters
        ----------
        state : PortfolioState
        action : array, (batch, K)
        sums : array, (batch, 3)
            Count, sum and sum of squares of excess returns so far; one bar is added in place.
        into : dict, optional
            An earlier step's observation, to be written over; new arrays when left out.

        Returns
        -------
        step : Step
        sharpe : array, (batch,)
            Running Sharpe ratio, a year.
        observation : dict
            As ``DecisionProcess.observe`` gives it for ``step.state``.
        """
        process, (batch, n_weights) = self.process, state.weights.shape
        lag = process.lag
        bar = state.bar + 1
        filled, objective = np.empty((batch, n_weights)), np.empty((batch, STATE_SIZE))
        scalars, components = np.empty((6, batch)), np.empty((batch, N_COMPONENTS))
        seen = self._unwritten(batch) if into is None else into
        # at lag 0 the target is stated at the fill's prices, as the array version's own drift finds them
        weights = state.weights if lag > 0 else drift(state.weights, self._growth[state.bar])
        if len(self._alike[0]) != batch:
            self._alike = np.zeros(batch, dtype=np.int64), np.ones(batch)
        universe, cost_scale = self._alike
        if isinstance(state, WorldState):
            cost_scale = state.cost_scale
            universe = universe if self._whole else state.universe
        _step(
            (bar, weights, state.wealth, state.objective, action),
            (self._growth, self._listed, self._features, self._market),
            (self._whole, self._inside, universe, cost_scale),
            self._complete,
            lag,
            self._numbers,
            (filled, objective, scalars, components, sums),
            (seen["assets"].reshape(batch, -1), seen["market"], seen["portfolio"]),
        )
        wealth, simple_return, cost, turnover, reward, sharpe = scalars
        after = moved_on(state, filled, wealth, objective)
        ruined = wealth <= RUIN * process.env.initial_capital
        step = Step(after, reward, components, ruined, filled, simple_return, cost, turnover)
        if lag == 0:
            seen["portfolio"][:] = process.observed_portfolio(after)
        return step, sharpe, seen

    def _unwritten(self, batch: int) -> dict[str, Any]:
        """Arrays for an observation."""
        features = self.process.asset_features.shape[1:]
        return {
            "assets": np.empty((batch, *features), dtype=np.float32),
            "market": np.empty((batch, self._market.shape[1]), dtype=np.float32),
            "portfolio": np.empty((batch, self.process.portfolio_size)),
        }


def compiled_function(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """``numba.njit`` that keeps its code on disk where it may: beside this file, in ``NUMBA_CACHE_DIR`` or at home."""

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # there is no folder to write in: every process compiles anew
            return njit(**options)(function)

    return decorate


def _emit_prefetch(typingctx: Any, table: Any, row: Any, column: Any) -> Any:
    """Code that asks the processor for the cache line of ``table[row, column]``; it changes nothing."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        columns = builder.extract_value(array.shape, 1)
        offset = builder.add(builder.mul(arguments[1], columns), arguments[2])
        address = builder.bitcast(builder.gep(array.data, [offset]), ir.PointerType(ir.IntType(8)))
        integer = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, integer, integer, integer])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(prefetch, [address, integer(0), integer(3), integer(1)])  # to read, into the first cache, data
        return context.get_dummy_value()

    return types.void(table, types.int64, types.int64), generate


_prefetch: Any = intrinsic(_emit_prefetch)


@compiled_function(error_model="numpy")
def _project(values: FloatArray, ordered: FloatArray) -> None:
    """Euclidean projection of one row onto the simplex, in place."""
    values -= values.max()
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


@compiled_function(error_model="numpy")
def _keep_listed(target: FloatArray, there: FloatArray, held: FloatArray) -> None:
    """One row of ``constraints.keep_listed``, in place; ``there`` is 1 where an asset can be held, and else 0.

    It multiplies where the array version chooses: which assets an episode has is random, and a processor that guesses
    wrong loses more than this costs.
    """
    last = target.size - 1
    paid, spread = 0.0, 0.0
    for i in range(last):
        barred = target[i] * (1.0 - there[i])
        mine = min(barred, held[i])
        paid += mine
        spread += barred - mine
        target[i] *= there[i]
    target[last] += paid
    if spread > 0.0:
        total = 0.0
        for i in range(last + 1):
            total += target[i]
        if total > 0.0:
            scale = 1.0 / total
            for i in range(last + 1):
                target[i] *= scale
        else:
            target[last] = 1.0


@compiled_function(error_model="numpy")
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


@compiled_function(error_model="numpy")
def _log_growth(simple_return: float) -> float:
    """``log(1 + simple_return)``: a series that is exact to rounding for the returns of most days."""
    if abs(simple_return) > 0.1:
        return float(np.log(max(1.0 + simple_return, 1e-12)))
    s = simple_return / (2.0 + simple_return)  # log(1 + r) = 2 atanh(s)
    q = s * s  # under 0.0028: the ninth term is below a double's rounding
    series = 1 / 9 + q * (1 / 11 + q * (1 / 13 + q * (1 / 15)))
    return 2.0 * s * (1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * series))))


# Sums may be taken in any order, so that they run in vector registers; products and differences are rounded one by
# one ("contract" is left out), so that what is held trades exactly nothing. The compiler keeps a second form of each
# loop, with sums in another order, for arrays that might overlap, and takes arrays that merely lie close for such. So
# loops that sum write to guarded rows alone: the bits of a result shall not depend on where its arrays happen to be.
@compiled_function(error_model="numpy", fastmath={"reassoc", "nsz"})
def _step(
    state: tuple[NDArray[np.int64], FloatArray, FloatArray, FloatArray, FloatArray],
    tables: tuple[FloatArray, NDArray[np.bool_], NDArray[np.float32], NDArray[np.float32]],
    worlds: tuple[bool, NDArray[np.float32], NDArray[np.int64], FloatArray],
    complete: bool,
    lag: int,
    numbers: FloatArray,
    after: tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray],
    seen: tuple[NDArray[np.float32], NDArray[np.float32], FloatArray],
) -> None:
    """Every portfolio's step; ``bar`` is the bar after the one that decisions fill at."""
    bar, weights, wealth, objective, action = state
    growth, listed, asset_features, market_features = tables
    whole, inside, universe, cost_scale = worlds
    filled, objective_after, scalars, components, sums = after
    assets, market, portfolio = seen
    batch, n_weights = weights.shape
    last = n_weights - 1
    usual_rate, max_weight, max_turnover, band = numbers[0], numbers[1], numbers[2], numbers[3]
    eta, sharpe_weight, turnover_weight, cvar_weight = numbers[4], numbers[5], numbers[6], numbers[7]
    zeta, drawdown_weight, least_variance = numbers[8], numbers[9], numbers[10]
    usual_first, per_second, per_deviation = numbers[11], numbers[12], numbers[13]
    limited = max_weight < 1.0 or max_turnover < 1.0 or band > 0.0
    n_features, n_market = asset_features.shape[1], market_features.shape[1]
    per_asset = n_features // max(last, 1)
    rows = np.empty((4, n_weights + 2 * GUARD))
    before, target, held = rows[0, GUARD:-GUARD], rows[1, GUARD:-GUARD], rows[2, GUARD:-GUARD]
    there = rows[3, GUARD:-GUARD]
    for n in range(batch):
        coming = np.int64(bar[min(n + AHEAD, batch - 1)])
        for i in range(0, n_features, CACHE_LINE // 4):
            _prefetch(asset_features, coming - lag, i)
        ahead = np.uint64(bar[n])
        now = np.uint64(bar[n] - 1)
        rate, drawn = usual_rate * cost_scale[n], universe[n]

        # what is held and what is wanted, at the fill's prices; scaled to sum to one below
        before_sum, target_sum, total, negative, apart = 0.0, 0.0, 0.0, 0.0, 0.0
        if lag > 0:
            for i in range(n_weights):
                before[i] = weights[n, i] * growth[now, i]
                target[i] = action[n, i] * growth[now, i]
                before_sum += before[i]
                target_sum += target[i]
                total += action[n, i]
                negative += 1.0 if action[n, i] < 0.0 else 0.0
                apart += abs(action[n, i] - weights[n, i])
        else:
            for i in range(n_weights):
                before[i], target[i] = weights[n, i], action[n, i]
                total += action[n, i]
                negative += 1.0 if action[n, i] < 0.0 else 0.0
                apart += abs(action[n, i] - weights[n, i])
            before_sum = 1.0
            target_sum = total if abs(total - 1.0) > ROUNDING else 1.0
        if negative > 0.0 or abs(total - 1.0) > SIMPLEX_TOLERANCE:
            target[:] = action[n]
            _project(target, held)
            target_sum = 1.0
            if lag > 0:
                target_sum = 0.0
                for i in range(n_weights):
                    target[i] *= growth[now, i]
                    target_sum += target[i]
        elif apart == 0.0:  # what is held trades nothing, whatever the order of the sums
            target_sum = before_sum
        scale_before, scale_target = 1.0 / before_sum, 1.0 / target_sum
        if limited or not complete:
            for i in range(n_weights):
                before[i] *= scale_before
                target[i] *= scale_target
            scale_before, scale_target = 1.0, 1.0
            if not complete:
                ended = 0.0
                for i in range(last):
                    there[i] = (1.0 if listed[now, i] else 0.0) * inside[drawn, i]
                    held[i] = before[i]
                    kept = before[i] * there[i]
                    ended += before[i] - kept
                    before[i] = kept
                before[last] += ended
                _keep_listed(target, there, held)
            if limited:
                _limit(before, target, max_weight, max_turnover, band)

        # the trade, and the portfolio after it
        gross, net, risky, slope, turning, grown = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(last):
            before[i] *= scale_before
            target[i] *= scale_target
            trade = target[i] - before[i]
            gross += abs(trade)
            net += trade
            risky += target[i]
            slope += target[i] if trade > 0.0 else -target[i]
            turning += 1.0 if 0.0 < trade <= 2.0 * rate * target[i] else 0.0
            grown += target[i] * growth[ahead, i]
        for i in range(last):
            filled[n, i] = target[i]
            portfolio[n, i] = target[i]
        cash = max(1.0 - risky, 0.0)
        filled[n, last] = cash
        portfolio[n, last] = cash
        grown += cash * growth[ahead, last]

        # mu - 1 + rate * sum |mu t - b| = 0 by Newton's method. The left side is convex and piecewise linear, and a
        # piece ends where a purchase turns into a sale. 1 - mu is at most 2 rate: further away, one step is exact
        factor, turnover = 1.0, 0.0
        if gross > 0.0:
            turnover = 0.5 * (gross + abs(net))
            factor -= rate * gross / (1.0 + rate * slope)
            if turning > 0.0:
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
        simple_return = factor * grown - 1.0

        # the reward and its state
        log_return = _log_growth(simple_return)
        first, second, below = objective[n, 0], objective[n, 1], objective[n, 2]
        step_first, step_second = log_return - first, log_return * log_return - second
        variance = max(second - first * first, least_variance)
        below_after = min(below + log_return, 0.0)
        sharpe_step = (second * step_first - 0.5 * first * step_second) / (variance * np.sqrt(variance))
        paid_sharpe, paid_turnover = sharpe_weight * sharpe_step, -turnover_weight * turnover
        paid_tail = -cvar_weight * max(-log_return - zeta, 0.0)
        paid_drawdown = 0.0
        if drawdown_weight > 0.0:
            paid_drawdown = -drawdown_weight * max(np.exp(below) - np.exp(below_after), 0.0)
        components[n, 0] = log_return
        components[n, 1] = paid_sharpe
        components[n, 2] = paid_turnover
        components[n, 3] = paid_tail
        components[n, 4] = paid_drawdown
        objective_after[n, 0] = first + eta * step_first
        objective_after[n, 1] = second + eta * step_second
        objective_after[n, 2] = below_after

        # the running Sharpe ratio
        excess = simple_return - (growth[ahead, last] - 1.0)
        count, excess_sum, squares = sums[n, 0] + 1.0, sums[n, 1] + excess, sums[n, 2] + excess * excess
        sums[n, 0], sums[n, 1], sums[n, 2] = count, excess_sum, squares
        sharpe = 0.0
        if count > 1.0:
            mean = excess_sum / count
            deviation = np.sqrt(max((squares - count * mean * mean) / (count - 1.0), 0.0))
            if deviation > 1e-12:
                sharpe = mean / deviation * np.sqrt(BARS_PER_YEAR)
        scalars[0, n] = wealth[n] * (1.0 + simple_return)
        scalars[1, n] = simple_return
        scalars[2, n] = 1.0 - factor
        scalars[3, n] = turnover
        scalars[4, n] = log_return + paid_sharpe + paid_turnover + paid_tail + paid_drawdown
        scalars[5, n] = sharpe

        # what is known at the next decision
        row = np.uint64(bar[n] - lag)
        for i in range(n_features):
            assets[n, i] = asset_features[row, i]
        if not whole:
            for asset in range(last):
                if inside[drawn, asset] == 0.0:
                    for i in range(asset * per_asset, (asset + 1) * per_asset):
                        assets[n, i] = 0.0
        for i in range(n_market):
            market[n, i] = market_features[row, i]
        portfolio[n, n_weights] = (first - usual_first) * per_deviation
        portfolio[n, n_weights + 1] = second * per_second - 1.0
        portfolio[n, n_weights + 2] = 10.0 * below
