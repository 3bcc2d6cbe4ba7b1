"""The ledger's arithmetic over NumPy rows, compiled: bit for bit the array version, one pass over a portfolio.

The loops work on one portfolio at a time, which stays in the processor's first cache, and round every product,
quotient and sum in the order in which NumPy does; tests hold that both ways give the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finflow.compiled_function import compiled_function
from finflow.ledger.constraints import ROUNDING, SIMPLEX_TOLERANCE

FloatArray = NDArray[np.float64]
WEALTH_TOLERANCE = 1e-15
MAX_ITERATIONS = 200
PAIRWISE_BLOCK = 128  # longest row that NumPy sums in eight running sums before it halves


@compiled_function(error_model="numpy")
def row_sum(values: FloatArray) -> float:
    """Sum of one row in the order of ``numpy.sum``: eight running sums, added in pairs; halves of long rows alone."""
    size = values.size
    if size > PAIRWISE_BLOCK:
        half = size // 2 - size // 2 % 8
        total: float = row_sum(values[:half]) + row_sum(values[half:])
        return total
    done, total = 0, 0.0
    if size >= 8:
        a, b, c, d, e, f, g, h = values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7]
        done = size - size % 8
        for i in range(8, done, 8):
            a, b, c, d = a + values[i], b + values[i + 1], c + values[i + 2], d + values[i + 3]
            e, f, g, h = e + values[i + 4], f + values[i + 5], g + values[i + 6], h + values[i + 7]
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(done, size):
        total += values[i]
    return total


@compiled_function(error_model="numpy")
def orders(
    weights: FloatArray,
    action: FloatArray,
    growth: FloatArray,
    listed: NDArray[np.bool_],
    limits: tuple[float, float, float],
    drifts: bool,
    dividends: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """``accounting.orders``; ``limits`` are the maximum weight, the maximum turnover and the no-trade band.

    ``dividends`` is (batch, assets), or empty where none are paid in cash.
    """
    batch, n_weights = weights.shape
    before, target = np.empty((batch, n_weights)), np.empty((batch, n_weights))
    held, spare = np.empty(n_weights), np.empty(n_weights)
    limited = limits[0] < 1.0 or limits[1] < 1.0 or limits[2] > 0.0
    for n in range(batch):
        _drift(weights[n], growth[n], before[n])
        if dividends.size:
            _pay_dividends(before[n], dividends[n], spare)
        _as_portfolio(action[n], target[n], spare)
        if drifts:
            _drift(target[n], growth[n], target[n])
            if dividends.size:
                _pay_dividends(target[n], dividends[n], spare)
        if not _all_listed(listed[n]):
            _copy(before[n], held)
            _pay_out(before[n], listed[n], spare)
            _keep_listed(target[n], listed[n], held, spare)
        if limited:
            _limit(before[n], target[n], limits, spare)
    return before, target


@compiled_function(error_model="numpy")
def settle(
    before: FloatArray, target: FloatArray, rates: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, bool]:
    """``accounting.settle`` under proportional costs of ``rates`` (models,).

    Returns weights (batch, K), turnover (batch,), the wealth factor after the last round and before it (batch,), and
    whether it has settled.
    """
    batch, risky = before.shape[0], before.shape[1] - 1
    weights, turnover, trades = target.copy(), np.empty(batch), np.empty(risky)
    for n in range(batch):
        weights[n, risky] = max(1.0 - row_sum(weights[n, :risky]), 0.0)
        turnover[n] = _turnover(before[n], target[n], trades)
    factor, last = np.ones(batch), np.zeros(batch)
    for _ in range(MAX_ITERATIONS):
        largest = 0.0
        for n in range(batch):
            if factor[n] == last[n]:  # a fixed point stays one
                continue
            for i in range(risky):
                trades[i] = abs(factor[n] * target[n, i] - before[n, i])
            traded, cost = row_sum(trades), 0.0
            for rate in rates:
                cost += rate * traded
            last[n], factor[n] = factor[n], 1.0 - cost
            largest = max(largest, abs(factor[n] - last[n]))
        if largest <= WEALTH_TOLERANCE:
            return weights, turnover, factor, last, True
    return weights, turnover, factor, last, False


@compiled_function(error_model="numpy")
def _copy(values: FloatArray, result: FloatArray) -> None:
    """Copy one row: numba compiles an assignment to a slice for seconds, for the text of an error that cannot occur."""
    for i in range(values.size):
        result[i] = values[i]


@compiled_function(error_model="numpy")
def _all_listed(listed: NDArray[np.bool_]) -> bool:
    for i in range(listed.size):  # noqa: SIM110 - compiled in a fraction of the time that a generator takes
        if not listed[i]:
            return False
    return True


@compiled_function(error_model="numpy")
def _drift(weights: FloatArray, growth: FloatArray, result: FloatArray) -> None:
    """One row of ``accounting.drift``."""
    for i in range(weights.size):
        result[i] = weights[i] * growth[i]
    total = row_sum(result)
    for i in range(weights.size):
        result[i] /= total


@compiled_function(error_model="numpy")
def _pay_dividends(weights: FloatArray, shares: FloatArray, paid: FloatArray) -> None:
    """Pay the dividends of one row of ``accounting.drift``, in place."""
    for i in range(shares.size):
        paid[i] = weights[i] * shares[i]
        weights[i] -= paid[i]
    weights[-1] += row_sum(paid[:-1])


@compiled_function(error_model="numpy")
def _as_portfolio(action: FloatArray, result: FloatArray, spare: FloatArray) -> None:
    """One row of ``constraints.as_portfolio``."""
    total, negative = row_sum(action), 0
    for i in range(action.size):
        negative += action[i] < 0.0
        result[i] = action[i]
    if negative > 0 or abs(total - 1.0) > SIMPLEX_TOLERANCE:
        _project(result, spare)
    elif abs(total - 1.0) > ROUNDING:
        for i in range(action.size):
            result[i] /= total


@compiled_function(error_model="numpy")
def _project(values: FloatArray, kept: FloatArray) -> None:
    """One row of ``constraints.project_to_simplex``, in place."""
    largest = values[0]
    for i in range(1, values.size):
        largest = max(largest, values[i])
    for i in range(values.size):
        values[i] -= largest
    ordered = np.sort(values)
    for i in range(values.size):
        kept[i] = ordered[values.size - 1 - i]
    total, count = 0.0, 0
    for i in range(values.size):
        total += kept[i]
        if kept[i] - (total - 1.0) / (i + 1) > 0:
            count += 1
        else:
            kept[i] = 0.0
    threshold = (row_sum(kept) - 1.0) / count
    for i in range(values.size):
        values[i] = max(values[i] - threshold, 0.0)


@compiled_function(error_model="numpy")
def _pay_out(weights: FloatArray, listed: NDArray[np.bool_], ended: FloatArray) -> None:
    """One row of ``accounting.pay_out``, in place."""
    for i in range(listed.size):
        ended[i] = 0.0 if listed[i] else weights[i]
        weights[i] -= ended[i]
    weights[-1] += row_sum(ended[:-1])


@compiled_function(error_model="numpy")
def _keep_listed(target: FloatArray, listed: NDArray[np.bool_], held: FloatArray, spare: FloatArray) -> None:
    """One row of ``constraints.keep_listed``, in place."""
    for i in range(listed.size):
        spare[i] = 0.0 if listed[i] else min(target[i], held[i])
    paid = row_sum(spare[:-1])
    for i in range(listed.size):
        spare[i] = 0.0 if listed[i] else target[i] - spare[i]
        target[i] = target[i] if listed[i] else 0.0
    target[-1] += paid
    if row_sum(spare[:-1]) > 0.0:
        total = row_sum(target)
        for i in range(target.size):
            target[i] /= total if total > 0.0 else 1.0
        target[-1] = target[-1] if total > 0.0 else 1.0


@compiled_function(error_model="numpy")
def _limit(before: FloatArray, target: FloatArray, limits: tuple[float, float, float], spare: FloatArray) -> None:
    """One row of ``constraints.apply_limits``, in place."""
    max_weight, max_turnover, band = limits
    last = target.size - 1
    if max_weight < 1.0:
        for i in range(last):
            target[i] = min(max(target[i], 0.0), max_weight)
        target[last] = max(1.0 - row_sum(target[:last]), 0.0)
    if max_turnover < 1.0:
        share = max_turnover / max(_turnover(before, target, spare[:last]), 1e-300)
        if share < 1.0:
            for i in range(last + 1):
                target[i] = before[i] + share * (target[i] - before[i])
    if band > 0.0:
        near = True
        for i in range(last + 1):
            near = near and abs(target[i] - before[i]) <= band  # false where the target is no number
        if near:
            _copy(before, target)


@compiled_function(error_model="numpy")
def _turnover(before: FloatArray, target: FloatArray, spare: FloatArray) -> float:
    """One row of ``constraints.turnover``; ``spare`` is (assets,)."""
    for i in range(spare.size):
        spare[i] = target[i] - before[i]
    net = abs(row_sum(spare))
    for i in range(spare.size):
        spare[i] = abs(spare[i])
    turnover: float = 0.5 * (row_sum(spare) + net)
    return turnover
