"""Features of the market as a whole, which the gate and every expert read.

A feature has the shape (bars,); row t is made from bars <= t. Formulas and names are those of `asset_features`. The
market is the mean of the listed assets, m in the formulas, not the benchmark, so that it needs no data beyond the
assets.

Turbulence and the crisis probability have parameters, fitted on the rows before `fit_until`. The crisis probability is
that of two hidden states (Hamilton 1989): in each of them m is normal, with a mean and a variance of its own, and a
state lasts another bar with a probability of its own. The variances distinguish the states of stock markets (Turner,
Startz and Nelson 1989). The parameters are those of largest likelihood, by expectation maximisation (Baum et al. 1970)
from a fixed start. The feature is the filter, the probability of the bad state given the returns up to a bar; the
smoother, which uses later returns, serves in fitting only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from finflow.arrays import BoolArray, FloatArray
from finflow.compiled_function import compiled_function
from finflow.market.features import rolling_windows as rolling
from finflow.market.features.asset_features import Formula
from finflow.market.features.rolling_windows import FLOOR, FeatureWindows, PanelView

_FEWEST = 60
"""Training returns that an asset needs to count in the turbulence."""
_SHRINKAGE = 0.1
"""Weight of the identity in the correlations of the turbulence, so that they can be inverted (Ledoit and Wolf 2004)."""
_BLOCK = 256
_ROUNDS = 200
_GAIN = 1e-9
"""Fitting of the states ends when a round adds less log likelihood per bar."""
_SHORTEST = 0.01
"""Smallest probability that a state lasts another bar; it ends with at least a hundredth of it."""


def _spread(view: PanelView, window: int) -> FloatArray:
    return view.market_spread(window)[:, 0]


def _dispersion(view: PanelView, windows: FeatureWindows) -> FloatArray:
    known = np.isfinite(view.returns)
    count = known.sum(axis=1, keepdims=True)
    deviation = np.where(known, view.returns - view.market, 0.0)
    across = np.sqrt((deviation * deviation).sum(axis=1, keepdims=True) / np.maximum(count, 1))
    across = np.where(count > 1, across, np.nan)
    return np.log(np.maximum(rolling.mean(across, windows.brief)[:, 0], FLOOR))


def mean_correlation(view: PanelView) -> FloatArray:
    """Mean pair correlation, as (n^2 var(m) - sum s^2) / ((sum s)^2 - sum s^2).

    So an implied correlation is made from an index and its parts. Exact while the listed assets are the same through
    the window.
    """
    window = view.windows.medium
    spreads = view.spread(window)
    known = np.isfinite(spreads)
    count = known.sum(axis=1)
    spreads = np.where(known, spreads, 0.0)
    squares = (spreads * spreads).sum(axis=1)
    pairs = spreads.sum(axis=1) ** 2 - squares
    value = (count**2 * view.market_series.std(window)[:, 0] ** 2 - squares) / np.maximum(pairs, FLOOR**2)
    return np.where(count > 1, np.clip(value, -1.0, 1.0), np.nan)


def _trend(view: PanelView, windows: FeatureWindows) -> FloatArray:
    above = view.market_path - rolling.mean(view.market_path, windows.trend)
    deviation = _spread(view, max(windows.trend, windows.medium)) * math.sqrt(float(windows.trend))
    return above[:, 0] / deviation


def market_drawdown(view: PanelView) -> FloatArray:
    return (view.market_path - rolling.maximum(view.market_path, view.windows.year))[:, 0]


def _breadth(view: PanelView, windows: FeatureWindows) -> FloatArray:
    above = view.path - view.path_series.mean(windows.trend)
    known = np.isfinite(above)
    count = known.sum(axis=1)
    with np.errstate(invalid="ignore"):
        share = ((above > 0.0) & known).sum(axis=1) / np.maximum(count, 1)
    return np.where(count > 0, share, np.nan)


MARKET_FEATURES: dict[str, Formula] = {
    # m / std(m) over 63 bars: today's move in deviations (Jegadeesh 1990)
    "market_return_1": lambda v, w: v.market[:, 0] / _spread(v, w.medium),
    # Sum of m over 21 bars / (std(m) over 63 bars times sqrt 21): the month in deviations (Moskowitz et al. 2012)
    "market_return_{month}": lambda v, w: (
        v.market_series.total(w.month)[:, 0] / (_spread(v, w.medium) * math.sqrt(float(w.month)))
    ),
    # mean(m) / std(m) sqrt 252 over 252 bars: Sharpe ratio of the year, without cash (Sharpe 1966)
    "market_sharpe_{year}": lambda v, w: (
        v.market_series.mean(w.year)[:, 0] / _spread(v, w.long) * math.sqrt(v.panel.bars_per_year)
    ),
    # ln(std(m) sqrt 252) over 21 bars: log of the annual realised volatility (Andersen et al. 2003)
    "market_volatility": lambda v, w: np.log(_spread(v, w.brief) * math.sqrt(v.panel.bars_per_year)),
    # ln of std(m) over 21 bars / std(m) over 252 bars, a log ratio: against its last year (Moreira and Muir 2017)
    "market_volatility_ratio": lambda v, w: np.log(_spread(v, w.brief) / _spread(v, w.long)),
    # ln of the mean over 21 bars of the spread of r over assets, in logs (Solnik and Roulet 2000)
    "dispersion": _dispersion,
    # Mean pair correlation over 63 bars, -1 to 1, weighted by the product of deviations (Pollet and Wilson 2010)
    "mean_correlation": lambda v, _: mean_correlation(v),
    # (M - mean M) / (std(m) sqrt 200) over 200 bars, M the running sum of m: in deviations (Faber 2007)
    "market_trend": _trend,
    # M - max M over 252 bars, in log units, 0 or less: distance from the year's high (George and Hwang 2004)
    "market_drawdown": lambda v, _: market_drawdown(v),
    # Share of assets whose log price is above its 200-bar mean, 0 to 1 (Colby and Meyers 1988)
    "breadth": _breadth,
}
"""Name -> formula of the features without parameters, (bars,)."""


class TurbulenceFit(NamedTuple):
    """Training returns' center and scale (assets,), the inverse of their shrunk correlations, and assets used."""

    used: BoolArray
    center: FloatArray
    scale: FloatArray
    inverse: FloatArray


def turbulence(view: PanelView, fitted: TurbulenceFit) -> FloatArray:
    """ln of the mean over 10 bars of z' C^-1 z / n, a log ratio: unusual moves (Kritzman and Li 2010).

    z are returns standardised by each asset's training mean and deviation, C their training correlations shrunk a tenth
    towards the identity, n the number of assets that have a return. An asset with under 60 training returns is left
    out.
    """
    known = np.isfinite(view.returns) & fitted.used
    padded = _standardised(view, known, fitted.center, fitted.scale)
    distance = np.empty(len(padded))
    for start in range(0, len(padded), _BLOCK):
        block = padded[start : start + _BLOCK]
        distance[start : start + _BLOCK] = ((block @ fitted.inverse) * block).sum(axis=1)
    n_known = known.sum(axis=1)
    per_asset = np.where(n_known > 0, distance[: len(known)] / np.maximum(n_known, 1), np.nan)
    return np.log(np.maximum(rolling.mean(per_asset[:, None], view.windows.fortnight)[:, 0], FLOOR))


def fit_turbulence(view: PanelView, fit_until: int) -> TurbulenceFit:
    """Fit the parameters of `turbulence` on the rows before `fit_until`."""
    training = view.returns[1:fit_until]
    counts = np.isfinite(training).sum(axis=0)
    used = counts >= _FEWEST
    known = np.isfinite(view.returns) & used
    center = np.where(known[1:fit_until], training, 0.0).sum(axis=0) / np.maximum(counts, 1)
    centred = np.where(known[1:fit_until], training - center, 0.0)
    scale = np.maximum(np.sqrt((centred * centred).sum(axis=0) / np.maximum(counts - 1, 1)), FLOOR)
    standard = _standardised(view, known, center, scale)
    product = standard[1:fit_until].T @ standard[1:fit_until] / max(fit_until - 1, 1)
    deviation = np.sqrt(np.maximum(np.diag(product), 1e-12))
    correlation = (1.0 - _SHRINKAGE) * product / np.outer(deviation, deviation)
    np.fill_diagonal(correlation, 1.0)
    return TurbulenceFit(used, center, scale, np.linalg.inv(correlation))


def _standardised(view: PanelView, known: BoolArray, center: FloatArray, scale: FloatArray) -> FloatArray:
    """Standardised returns, zero where not known, and zeros below up to a whole number of blocks.

    Blocks of one size, so that a row's bits do not depend on how many rows come after it.
    """
    bars, n_assets = known.shape
    padded = np.zeros((-(-bars // _BLOCK) * _BLOCK, n_assets))
    np.divide(view.returns - center, scale, out=padded[:bars], where=known)
    return padded


class TwoStates(NamedTuple):
    """Mean, variance and chance to last another bar of two states, (2,) each; the second has the larger variance."""

    means: FloatArray
    variances: FloatArray
    stay: FloatArray


def fit_states(returns: FloatArray) -> TwoStates:
    """Fit the two states of largest likelihood to log returns (bars,).

    NaN where none is known, which leaves the state's probability unchanged.
    """
    known = returns[np.isfinite(returns)]
    variance = max(float(known.var()), FLOOR**2) if known.size else 1.0
    mean = float(known.mean()) if known.size else 0.0
    states = TwoStates(np.array([mean, mean]), np.array([0.5, 2.0]) * variance, np.array([0.98, 0.98]))
    before = -np.inf
    for _ in range(_ROUNDS if known.size > 1 else 0):
        likelihoods, scale = _likelihoods(returns, states)
        probability, pairs, evidence = _expectations(likelihoods, states.stay)
        likelihood = float(evidence + scale)
        if likelihood - before < _GAIN * known.size:
            break
        before = likelihood
        states = _maximised(returns, probability, pairs, states)
    order = np.argsort(states.variances, kind="stable")
    return TwoStates(states.means[order], states.variances[order], states.stay[order])


def crisis(returns: FloatArray, states: TwoStates) -> FloatArray:
    """P(bad state at t | m up to t), 0 to 1: a filter of two states fitted on training (Hamilton 1989), shape (bars,).

    Two states in which m is normal, each with a mean, a variance and a persistence; bad is the one of larger variance.
    NaN where there is no return.
    """
    likelihoods, _ = _likelihoods(returns, states)
    return np.where(np.isfinite(returns), _forward(likelihoods, states.stay)[:, 1], np.nan)


def _likelihoods(returns: FloatArray, states: TwoStates) -> tuple[FloatArray, float]:
    """Density of each return in both states over the larger of the two, (bars, 2), and the sum of its log."""
    centred = returns[:, None] - states.means
    logs = -0.5 * (centred * centred / states.variances + np.log(2.0 * np.pi * states.variances))
    logs = np.where(np.isfinite(returns)[:, None], logs, 0.0)
    largest = logs.max(axis=1, keepdims=True)
    return np.exp(logs - largest), float(largest.sum())


@compiled_function()
def _forward(likelihoods: FloatArray, stay: FloatArray) -> FloatArray:
    """Probabilities of both states given what is known up to each bar; even before the first."""
    result = np.empty_like(likelihoods)
    calm, bad = 0.5, 0.5
    for bar in range(len(likelihoods)):
        if bar > 0:
            calm, bad = calm * stay[0] + bad * (1.0 - stay[1]), calm * (1.0 - stay[0]) + bad * stay[1]
        calm, bad = calm * likelihoods[bar, 0], bad * likelihoods[bar, 1]
        total = calm + bad
        calm, bad = calm / total, bad / total
        result[bar, 0], result[bar, 1] = calm, bad
    return result


@compiled_function()
def _expectations(likelihoods: FloatArray, stay: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Given all returns: each state's probability at each bar, expected moves between states, and the evidence."""
    forward = _forward(likelihoods, stay)
    smooth = np.empty_like(forward)
    pairs = np.zeros((2, 2))
    move = np.array([[stay[0], 1.0 - stay[0]], [1.0 - stay[1], stay[1]]])
    evidence = np.log(0.5 * likelihoods[0, 0] + 0.5 * likelihoods[0, 1])
    last = len(forward) - 1
    smooth[last, 0], smooth[last, 1] = forward[last, 0], forward[last, 1]
    for bar in range(last - 1, -1, -1):
        total = 0.0
        for after in range(2):
            reached = forward[bar, 0] * move[0, after] + forward[bar, 1] * move[1, after]
            total += reached * likelihoods[bar + 1, after]
            for now in range(2):
                pairs[now, after] += forward[bar, now] * move[now, after] / reached * smooth[bar + 1, after]
        evidence += np.log(total)
        for now in range(2):
            smooth[bar, now] = 0.0
            for after in range(2):
                reached = forward[bar, 0] * move[0, after] + forward[bar, 1] * move[1, after]
                smooth[bar, now] += forward[bar, now] * move[now, after] / reached * smooth[bar + 1, after]
    return smooth, pairs, evidence


def _maximised(returns: FloatArray, probability: FloatArray, pairs: FloatArray, states: TwoStates) -> TwoStates:
    """Maximise the expected likelihood over the states; one without probability mass keeps its parameters."""
    known = np.isfinite(returns)
    values, weights = returns[known, None], probability[known]
    mass = weights.sum(axis=0)
    held = mass > 1.0
    shares = weights / np.where(held, mass, 1.0)
    means = np.where(held, (shares * values).sum(axis=0), states.means)
    variances = np.maximum((shares * (values - means) ** 2).sum(axis=0), FLOOR**2)
    stay = np.clip(np.diag(pairs) / np.maximum(pairs.sum(axis=1), 1e-12), _SHORTEST, 1.0 - _SHORTEST / 100.0)
    return TwoStates(means, np.where(held, variances, states.variances), np.where(held, stay, states.stay))
