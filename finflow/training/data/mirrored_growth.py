"""Histories mirrored around predicted returns: antithetic paths that cancel the noise of realised returns.

A policy that follows the gradient of realised rewards fits their noise as well. Where the reward of a decision is the
mean of its rewards on the bar as it was and on the bar mirrored around its predicted return, ``2 E[r] - r`` in
logarithms, the first order of that noise cancels and variances stay. Predictions are those of a Markov-switching model,
as far as it predicts bars that it was not fitted to, and a ridge regression of the residuals on the assets' features
and on random functions of them (Rahimi and Recht), with a penalty for either, the best over contiguous parts of the
bars.

References
----------
Hammersley and Morton (1956), A New Monte Carlo Technique: Antithetic Variates.
Hamilton (1989), A New Approach to the Economic Analysis of Nonstationary Time Series and the Business Cycle.
Rahimi and Recht (2007), Random Features for Large-Scale Kernel Machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.config import MirroredConfig
from finflow.cores import forked
from finflow.env.decision_process import DecisionProcess
from finflow.env.process_variants import with_growths
from finflow.training.data.regime_prediction import PARTS, matrix_product, regime_returns
from finflow.training.data.rollouts import RolloutMarket

FloatArray = NDArray[np.float64]
Penalties = tuple[float, float]

RANDOM_FEATURES = 200
READ_FEATURES = 4  # that each random feature reads on average
PENALTIES = tuple(10.0 ** (0.5 * power) for power in range(-10, 7))  # in multiples of the features' mean sum of squares
ROWS = 65_536  # of bars and assets, read at once


Functions = tuple[FloatArray, FloatArray]
"""Weights (features, functions), mostly zeros, and biases of random functions ``tanh(x W + b)`` of features."""


class Predictions(NamedTuple):
    """Predicted log returns of the bars that decisions are rewarded by.

    ``returns`` (bars, assets): NaN where there is none. ``slope``: of returns, less their mean over assets, on
    out-of-fold predictions of them: 1 where predictions are unbiased, less where they are too large; 0 where nothing is
    predicted.
    """

    returns: FloatArray
    slope: float


class _Moments(NamedTuple):
    squares: Tensor
    products: Tensor


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


def predicted_returns(process: DecisionProcess, segments: Sequence[range], regimes: bool = True) -> Predictions:
    """Predict the log return of every bar that a decision of some segments is rewarded by.

    Returns less their mean over assets are predicted by the market's regime and, as to the rest, by the features as the
    decision knew them, less their mean likewise; that mean itself by its average over the segments. Predictions by
    regime count by the slope of returns on them already, so that theirs is 1 here.

    ``segments``: bars of decisions; no reward of any other enters.
    """
    bars = np.concatenate([np.arange(one.start, one.stop) for one in segments])
    by_regime = regime_returns(process, bars) if regimes else np.zeros(process.listed.shape)
    n_features = process.asset_features.shape[2] - 1
    rng = np.random.default_rng(n_features)
    weights = rng.standard_normal((n_features, RANDOM_FEATURES))
    weights = weights * (rng.random(weights.shape) * n_features < READ_FEATURES)
    functions = weights, rng.standard_normal(RANDOM_FEATURES)
    parts = [_moments(process, functions, part, by_regime) for part in np.array_split(bars, PARTS) if len(part)]
    coefficients, by_others, products = _ridge(parts)
    predicted = np.full(process.listed.shape, np.nan)
    level, count, squares = 0.0, 0, 0.0
    for some in _chunks(process, bars):
        relative, _, common, known = _rows(process, functions, some)
        by_features = matrix_product(relative, coefficients)
        predicted[some + 1] = np.where(known, by_features + by_regime[some + 1], np.nan)
        level, count = level + float(common.sum()), count + int(known.any(axis=1).sum())
        squares += float(np.square(by_regime[some + 1] * known).sum())
    explained = squares + by_others
    slope = (squares + products) / explained if explained > 0.0 else 0.0
    return Predictions(predicted + level / max(count, 1), slope)


def _ridge(parts: Sequence[_Moments]) -> tuple[FloatArray, float, float]:
    """Fit with the penalties that predict parts best by the others; zeros where none beats predicting zero.

    The features and their random functions have a penalty each: first the best that is the same for both, then each in
    turn the best with the other fixed, until neither changes.

    Returns the coefficients; and sums of predictions by those of the other parts, squared and times what they predict.
    """
    sums: dict[Penalties, tuple[float, float]] = {}

    def error(penalties: Penalties) -> float:
        if penalties not in sums:
            sums[penalties] = _predicted_by_others(parts, penalties)
        squares, products = sums[penalties]
        return squares - 2.0 * products

    best, before = min(((one, one) for one in PENALTIES), key=error), None
    while best != before:
        before = best
        best = min(((one, best[1]) for one in PENALTIES), key=error)
        best = min(((best[0], one) for one in PENALTIES), key=error)
    if len(parts) == 1 or error(best) >= 0.0:
        return np.zeros(len(parts[0].products)), 0.0, 0.0
    return _fit(parts, best).numpy(), *sums[best]


def _predicted_by_others(parts: Sequence[_Moments], penalties: Penalties) -> tuple[float, float]:
    squares = products = 0.0
    for place, part in enumerate(parts):
        others = [*parts[:place], *parts[place + 1 :]]
        if others:
            fitted = _fit(others, penalties)
            squares += float(fitted @ part.squares @ fitted)
            products += float(fitted @ part.products)
    return squares, products


def _fit(parts: Sequence[_Moments], penalties: Penalties) -> Tensor:
    """Coefficients by ridge regression, (functions,); penalties of the features and of their random functions."""
    squares = torch.stack([one.squares for one in parts]).sum(dim=0)
    products = torch.stack([one.products for one in parts]).sum(dim=0)
    unit = max(float(squares.trace()) / len(products), 1e-12)
    penalty = torch.full((len(products),), penalties[0] * unit, dtype=torch.float64)
    penalty[-RANDOM_FEATURES:] = penalties[1] * unit
    coefficients: Tensor = torch.linalg.solve(squares + penalty.diag(), products)
    return coefficients


def _moments(
    process: DecisionProcess, functions: Functions, bars: NDArray[np.int64], explained: FloatArray
) -> _Moments:
    """Sums over the decisions at some bars, of returns less what is explained of them, (bars, assets)."""
    size = len(functions[0]) + RANDOM_FEATURES
    squares = torch.zeros((size, size), dtype=torch.float64)
    products = torch.zeros(size, dtype=torch.float64)
    for some in _chunks(process, bars):
        relative, excess, _, known = _rows(process, functions, some)
        excess = excess - explained[some + 1] * known
        rows = torch.from_numpy(relative.reshape(-1, size))
        values = torch.from_numpy(excess.reshape(-1))
        squares, products = squares + rows.T @ rows, products + rows.T @ values
    return _Moments(squares, products)


def _chunks(process: DecisionProcess, bars: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    count = max(ROWS // process.listed.shape[1], 1)
    for start in range(0, len(bars), count):
        yield bars[start : start + count]


def _rows(
    process: DecisionProcess, functions: Functions, bars: NDArray[np.int64]
) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.bool_]]:
    """Features and returns of decisions at some bars less their means over assets, those of returns, and who is known.

    Returns
    -------
    relative : float64 (bars, assets, functions)
    excess : float64 (bars, assets)
    common : float64 (bars,)
    known : bool (bars, assets)
    """
    table = process.asset_features[bars - process.lag]
    with np.errstate(divide="ignore"):
        returns = np.log(process.growth[bars + 1, :-1])
    known = (table[:, :, -1] > 0.0) & process.listed[bars] & np.isfinite(returns)
    share = known / np.maximum(known.sum(axis=1, keepdims=True), 1)
    features, (weights, biases) = table[:, :, :-1].astype(np.float64), functions
    values = np.concatenate([features, np.tanh(matrix_product(features, weights) + biases)], axis=-1)
    relative = values - np.einsum("ba,baf->bf", share, values)[:, None]
    returns = np.where(known, returns, 0.0)
    common = (share * returns).sum(axis=1)
    return relative * known[:, :, None], (returns - common[:, None]) * known, common, known


Segments = Sequence[range]


class Mirror(NamedTuple):
    """Mirrored bars of some segments.

    ``offset``: bars from a bar to its mirrored one in the table of growth; 0 where there is none. ``weight``: of what
    is earned there.
    """

    offset: int
    weight: float


NO_MIRROR = Mirror(0, 0.0)


def with_mirrored_bars(
    market: RolloutMarket, learned: Sequence[Segments], config: MirroredConfig
) -> tuple[RolloutMarket, list[Mirror]]:
    """Market with bars mirrored around returns that are predicted from the bars that learners learn from."""
    if config.weight == 0.0:
        return market, [NO_MIRROR for _ in learned]
    half = (len(learned) + 1) // 2
    with forked(partial(_predictions, market, learned[half:], config.regimes)) as second:
        first = _predictions(market, learned[:half], config.regimes)
    growths, mirrors = [], []
    for number, expected in enumerate([*first, *second()]):
        growths.append(mirrored_growth(market.process, expected.returns))
        weight = config.weight * (mirror_scale(expected.slope) if config.scaled else 1.0)
        mirrors.append(Mirror((1 + number) * len(market.process.growth), weight))
    return market._replace(process=with_growths(market.process, growths)), mirrors


def _predictions(market: RolloutMarket, learned: Sequence[Segments], regimes: bool) -> list[Predictions]:
    return [predicted_returns(market.process, segments, regimes) for segments in learned]


def mirror_scale(slope: float) -> float:
    """Share of the weight of mirrored bars, 0 to 1, where returns have a slope on predictions from other bars."""
    return min(max(2.0 * slope - 1.0, 0.0), 1.0)
