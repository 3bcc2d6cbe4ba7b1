"""Histories mirrored around predicted returns: antithetic paths that cancel the noise of realised returns.

A policy that follows the gradient of realised rewards fits their noise as well. Where the reward of a decision is the
mean of its rewards on the bar as it was and on the bar mirrored around its predicted return, ``2 E[r] - r`` in
logarithms, the first order of that noise cancels and variances stay. Predictions are those of a Markov-switching model
of two regimes, as far as it predicts bars that it was not fitted to, and a ridge regression of the residuals on the
assets' features and on random functions of them (Rahimi and Recht), with a penalty for either, the best over contiguous
parts of the bars.

References
----------
Hammersley and Morton (1956), A New Monte Carlo Technique: Antithetic Variates.
Hamilton (1989), A New Approach to the Economic Analysis of Nonstationary Time Series and the Business Cycle.
Rahimi and Recht (2007), Random Features for Large-Scale Kernel Machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import cache, partial

import numpy as np
import torch
from torch import Tensor

from finflow.arrays import BoolArray, FloatArray, IntArray
from finflow.cores import forked
from finflow.env.decision_process import DecisionProcess, with_growths
from finflow.market.features.regimes import COMPONENTS, FEWEST, REGIMES, fit_switching
from finflow.training.data.rollouts import NO_MIRROR, Mirror, RolloutMarket

Segments = Sequence[range]
Penalties = tuple[float, float]
Functions = tuple[FloatArray, FloatArray]
"""Weights (features, functions), mostly zeros, and biases of random functions ``tanh(x W + b)`` of features."""
Sums = tuple[Tensor, Tensor]
"""Sums over decisions of products of functions with each other, and with returns."""
Predictions = dict[tuple[range, ...], tuple[FloatArray, float]]
"""`predicted_returns` of one market by the segments that they are predicted from."""

PARTS = 5  # contiguous parts of the bars, each predicted by a model of the others
RANDOM_FEATURES = 200
READ_FEATURES = 4  # that each random feature reads on average
PENALTIES = tuple(10.0 ** (0.5 * power) for power in range(-10, 7))  # in multiples of the features' mean sum of squares
ROWS = 65_536  # of bars and assets, read at once
CACHED_ROWS = 320  # those whose functions are computed at once, in the processor's cache


def with_mirrored_bars(
    market: RolloutMarket, learned: Sequence[Segments], weight: float, known: Predictions | None = None
) -> tuple[RolloutMarket, list[Mirror]]:
    """Market with bars mirrored around returns that are predicted from the bars that learners learn from.

    ``weight``: of mirrored bars where predictions are unbiased; less where those from other bars are too large.
    ``known``: predictions of this market so far, to which new ones are added.
    """
    if weight == 0.0:
        return market, [NO_MIRROR for _ in learned]
    process, known = market.process, {} if known is None else known
    unknown = [segments for segments in map(tuple, learned) if segments not in known]
    half = (len(unknown) + 1) // 2

    def predict(some: Sequence[Segments]) -> list[tuple[FloatArray, float]]:
        return [predicted_returns(process, segments) for segments in some]

    with forked(lambda: predict(unknown[half:])) if unknown[half:] else nullcontext(list) as second:
        first = predict(unknown[:half])
    known.update(zip(unknown, [*first, *second()], strict=True))
    found = [known[tuple(segments)] for segments in learned]
    growths = [mirrored_growth(process, expected) for expected, _ in found]
    mirrors = [Mirror(n * len(process.growth), weight * share) for n, (_, share) in enumerate(found, start=1)]
    return market._replace(process=with_growths(process, growths)), mirrors


def mirrored_growth(process: DecisionProcess, expected: FloatArray) -> FloatArray:
    """Growth on mirrored bars, (bars, K); as it was where nothing is predicted, and for cash.

    ``expected`` (bars, assets): predicted log returns, else NaN.
    """
    growth = process.growth
    with np.errstate(divide="ignore"):
        realised = np.log(growth[:, :-1])
    known = np.isfinite(expected) & np.isfinite(realised)
    mirrored = growth.copy()
    mirrored[:, :-1][known] = np.exp(2.0 * expected[known] - realised[known])
    return mirrored


def predicted_returns(process: DecisionProcess, segments: Segments) -> tuple[FloatArray, float]:
    """Predict the log return of every bar that a decision of some segments is rewarded by.

    Returns less their mean over assets are predicted by the market's regime and, as to the rest, by the features as the
    decision knew them, less their mean likewise; that mean itself by its average over the segments.

    ``segments``: bars of decisions; no reward of any other enters.

    Returns
    -------
    predicted : float64 (bars, assets)
        NaN where nothing is predicted.
    share : float
        Share of the weight of mirrored bars, ``max(0, 2 b - 1)`` and at most 1: b is the slope of returns, less their
        mean over assets, on out-of-fold predictions. Those by regime count by that slope already.
    """
    bars = np.concatenate([np.arange(one.start, one.stop) for one in segments])
    by_regime = regime_returns(process, bars)
    n_features = process.asset_features.shape[2] - 1
    rng = np.random.default_rng(n_features)
    weights = rng.standard_normal((n_features, RANDOM_FEATURES))
    weights = weights * (rng.random(weights.shape) * n_features < READ_FEATURES)
    functions = weights, rng.standard_normal(RANDOM_FEATURES)
    parts = [_sums(process, functions, part, by_regime) for part in np.array_split(bars, PARTS) if len(part)]
    coefficients, by_others, products = _ridge(parts)
    predicted = np.full(process.listed.shape, np.nan)
    level, count, squares = 0.0, 0, 0.0
    for some, relative, _, common, known in _rows(process, functions, bars):
        by_features = matrix_product(relative, coefficients)
        predicted[some + 1] = np.where(known, by_features + by_regime[some + 1], np.nan)
        level, count = level + float(common.sum()), count + int(known.any(axis=1).sum())
        squares += float(np.square(by_regime[some + 1] * known).sum())
    explained = squares + by_others
    slope = (squares + products) / explained if explained > 0.0 else 0.0
    return predicted + level / max(count, 1), min(max(2.0 * slope - 1.0, 0.0), 1.0)


def _ridge(parts: Sequence[Sums]) -> tuple[FloatArray, float, float]:
    """Fit with the penalties that predict parts best by the others; zeros where none beats predicting zero.

    The features and their random functions have a penalty each: first the best that is the same for both, then each in
    turn the best with the other fixed, until neither changes.

    Returns the coefficients; and sums of predictions by those of the other parts, squared and times what they predict.
    """
    left_out = [[*parts[:place], *parts[place + 1 :]] for place in range(len(parts))]
    folds = [(_total(others), part) for others, part in zip(left_out, parts, strict=True) if others]
    by_others = cache(partial(_predicted_by_others, folds))

    def error(penalties: Penalties) -> float:
        squares, products = by_others(penalties)
        return squares - 2.0 * products

    best, before = min(((one, one) for one in PENALTIES), key=error), None
    while best != before:
        before = best
        best = min(((one, best[1]) for one in PENALTIES), key=error)
        best = min(((best[0], one) for one in PENALTIES), key=error)
    if len(parts) == 1 or error(best) >= 0.0:
        return np.zeros(len(parts[0][1])), 0.0, 0.0
    return _fit(_total(parts), best).numpy(), *by_others(best)


def _predicted_by_others(folds: Sequence[tuple[Sums, Sums]], penalties: Penalties) -> tuple[float, float]:
    """Sums over folds, each the sums of the other parts and those of a part that they predict."""
    squares = products = 0.0
    for others, (of_squares, of_products) in folds:
        fitted = _fit(others, penalties)
        squares += float(fitted @ of_squares @ fitted)
        products += float(fitted @ of_products)
    return squares, products


def _total(parts: Sequence[Sums]) -> Sums:
    squares, products = (torch.stack(of_parts).sum(dim=0) for of_parts in zip(*parts, strict=True))
    return squares, products


def _fit(sums: Sums, penalties: Penalties) -> Tensor:
    """Coefficients by ridge regression, (functions,); penalties of the features and of their random functions."""
    squares, products = sums
    unit = max(float(squares.trace()) / len(products), 1e-12)
    penalised = squares.clone()
    penalised.diagonal()[:-RANDOM_FEATURES] += penalties[0] * unit
    penalised.diagonal()[-RANDOM_FEATURES:] += penalties[1] * unit
    coefficients: Tensor = torch.linalg.solve(penalised, products)
    return coefficients


def _sums(process: DecisionProcess, functions: Functions, bars: IntArray, explained: FloatArray) -> Sums:
    """Sums over the decisions at some bars, of returns less what is explained of them, (bars, assets)."""
    size = len(functions[0]) + RANDOM_FEATURES
    squares = torch.zeros((size, size), dtype=torch.float64)
    products = torch.zeros(size, dtype=torch.float64)
    for some, relative, excess, _, known in _rows(process, functions, bars):
        rows = torch.from_numpy(relative.reshape(-1, size))
        values = torch.from_numpy((excess - explained[some + 1] * known).reshape(-1))
        squares, products = squares + rows.T @ rows, products + rows.T @ values
    return squares, products


def _rows(
    process: DecisionProcess, functions: Functions, bars: IntArray
) -> Iterator[tuple[IntArray, FloatArray, FloatArray, FloatArray, BoolArray]]:
    """Features and returns of decisions, less their means over assets, some bars at once.

    Yields
    ------
    some : int64 (bars,)
    relative : float64 (bars, assets, functions)
    excess : float64 (bars, assets)
    common : float64 (bars,)
        The returns' means over assets.
    known : bool (bars, assets)
    """
    count, few_bars = (max(rows // process.listed.shape[1], 1) for rows in (ROWS, CACHED_ROWS))
    weights, biases = functions
    for start in range(0, len(bars), count):
        some = bars[start : start + count]
        table = process.asset_features[some - process.lag]
        with np.errstate(divide="ignore"):
            returns = np.log(process.growth[some + 1, :-1])
        known = (table[:, :, -1] > 0.0) & process.listed[some] & np.isfinite(returns)
        share = known / np.maximum(known.sum(axis=1, keepdims=True), 1)
        relative = np.empty((*known.shape, len(weights) + RANDOM_FEATURES))
        for few in (slice(first, first + few_bars) for first in range(0, len(some), few_bars)):
            values, features = relative[few], table[few, :, :-1].astype(np.float64)
            products = matrix_product(features, weights)
            products += biases
            values[:, :, : len(weights)] = features
            np.tanh(products, out=values[:, :, len(weights) :])
            values -= np.einsum("ba,baf->bf", share[few], values)[:, None]
            values *= known[few, :, None]
        returns = np.where(known, returns, 0.0)
        common = (share * returns).sum(axis=1)
        yield some, relative, (returns - common[:, None]) * known, common, known


def regime_returns(process: DecisionProcess, bars: IntArray) -> FloatArray:
    """Predicted log return over the market's of the bars that decisions are rewarded by, (bars, assets).

    The model is of the market's mean return and of the leading components of the assets' returns over it: normal in
    each regime. A decision knows the filtered probability of each regime as of its newest bar. Predictions are scaled
    by what they explain of returns that their model was not fitted to. Zero on other bars, without listing, and
    everywhere where that is nothing.

    ``bars`` (decisions,): bars of decisions, in order; no return of any bar but the next ones of these enters.
    """
    predicted: FloatArray = np.zeros(process.listed.shape)
    if len(bars) < FEWEST or predicted.shape[1] < 2:
        return predicted
    rewarded = np.zeros(len(predicted), dtype=np.bool_)
    rewarded[bars + 1] = True
    returns, relative, listed = _market(process, rewarded)

    def predict(fitted: BoolArray, some: IntArray) -> FloatArray:
        """Returns at some decisions by regimes that were fitted to some rows, less their mean over time."""
        model = fit_switching(returns, fitted)
        weights = model.smoothed * fitted[:, None]
        held = np.stack([(weights[:, s, None] * listed).sum(axis=0) for s in range(REGIMES)])
        sums = np.stack([(weights[:, s, None] * relative).sum(axis=0) for s in range(REGIMES)])
        now = model.filtered(returns, rewarded)[some - process.lag]
        ahead = matrix_product(now, np.linalg.matrix_power(model.transitions, 1 + process.lag))
        return matrix_product(ahead - weights.sum(axis=0) / weights.sum(), sums / np.maximum(held, 1.0))

    held_out = np.zeros((len(bars), predicted.shape[1]))
    for part in np.array_split(np.arange(len(bars)), PARTS):
        others = rewarded.copy()
        others[bars[part] + 1] = False
        held_out[part] = predict(others, bars[part])
    explained, size = float((held_out * relative[bars + 1]).sum()), float((held_out**2).sum())
    if explained > 0.0:  # NaN where a regime has no bar
        predicted[bars + 1] = min(explained / size, 1.0) * predict(rewarded, bars) * listed[bars + 1]
    return predicted


def _market(process: DecisionProcess, rows: BoolArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Market's mean return and leading components, of unit size; returns over that mean; and who is listed."""
    with np.errstate(divide="ignore"):
        logs = np.log(process.growth[:, :-1])
    listed = process.listed & np.isfinite(logs)
    logs = np.where(listed, logs, 0.0)
    mean = logs.sum(axis=1) / np.maximum(listed.sum(axis=1), 1)
    relative = np.where(listed, logs - mean[:, None], 0.0)
    known = torch.from_numpy(relative[rows])
    vectors = torch.linalg.eigh(known.T @ known).eigenvectors.flip(1)[:, : min(COMPONENTS, known.shape[1] - 1)]
    returns = np.concatenate([mean[:, None], matrix_product(relative, vectors.numpy())], axis=1)
    scale = returns[rows].std(axis=0)
    return returns / np.where(scale > 0.0, scale, 1.0) * rows[:, None], relative, listed


def matrix_product(rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Matrix product by torch, whose bits depend on ``train.threads``; NumPy's depend on the number of cores."""
    return (torch.from_numpy(rows) @ torch.from_numpy(np.ascontiguousarray(columns))).numpy()
