"""Feature of the market: the probability of the second of two regimes of its returns, filtered as of each bar.

The Markov-switching model is of the mean return over the assets and of the leading components of their returns over it,
so that it sees who leads as well as how much moves; the crisis score sees the mean alone. It is fitted on the training
window, by expectation maximisation. The second regime is the one whose returns spread more.

References
----------
Hamilton (1989), A New Approach to the Economic Analysis of Nonstationary Time Series and the Business Cycle.
Rabiner (1989), A Tutorial on Hidden Markov Models, equations 19 to 40 (scaled forward and backward probabilities).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finflow.arrays import BoolArray, FloatArray
from finflow.compiled_function import compiled_function
from finflow.market.features.rolling_windows import PanelView

REGIMES = 2
COMPONENTS = 2  # of returns over the market's
FEWEST = 250  # bars that a model is fitted to
ITERATIONS = 60
TOLERANCE = 1e-2  # of the log likelihood
SPAN = 21  # bars of the average size of returns that the fit begins from
PRIOR = 10.0  # bars of the whole's covariance that each regime's is averaged with


class SwitchingModel(NamedTuple):
    """Regimes of a vector of returns: normal in each, with its own mean and covariance."""

    means: FloatArray  # (regimes, D)
    covariances: FloatArray  # (regimes, D, D)
    transitions: FloatArray  # (regimes, regimes): chance of each column's regime on the bar after one in the row's
    smoothed: FloatArray  # (bars, regimes): chance of each regime given all bars that the model was fitted to
    log_likelihood: float

    def filtered(self, returns: FloatArray, known: BoolArray) -> FloatArray:
        """Probability of each regime given the known rows so far, (bars, regimes)."""
        return forward(self.log_densities(returns, known), self.transitions, np.full(REGIMES, 0.5))[0]

    def log_densities(self, returns: FloatArray, known: BoolArray) -> FloatArray:
        """Log density of each row in each regime, less a constant; zero where it is not known, (bars, regimes)."""
        columns = []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            root = np.linalg.cholesky(np.linalg.inv(covariance))
            centred = np.ascontiguousarray((returns - mean).T)
            # whole columns at a time: NumPy is slow to sum rows of two or three numbers
            scaled = (sum(x * weight for x, weight in zip(centred, column, strict=True)) for column in root.T)
            columns.append(np.log(np.diag(root)).sum() - 0.5 * sum(column**2 for column in scaled))
        return np.stack(columns, axis=1) * known[:, None]


def fit_switching(returns: FloatArray, known: BoolArray) -> SwitchingModel:
    """Fit two regimes to the known rows (bars,) of returns (bars, D) of about unit size.

    Expectation maximisation, from bars of small and of large returns.
    """
    size = np.convolve(np.sqrt((returns**2).sum(axis=1)) * known, np.ones(SPAN) / SPAN, "same")
    large = size > np.median(size[known])
    smoothed = 0.1 + 0.8 * np.stack([~large, large], axis=1)
    transitions = np.array([[0.98, 0.02], [0.02, 0.98]])
    model = SwitchingModel(*_regimes(returns, smoothed * known[:, None]), transitions, smoothed, -np.inf)
    for _ in range(ITERATIONS):
        densities = model.log_densities(returns, known)
        smoothed, pairs, likelihood = forward_backward(densities, model.transitions, model.smoothed[0])
        before = model.log_likelihood
        transitions = pairs / pairs.sum(axis=1, keepdims=True)
        model = SwitchingModel(*_regimes(returns, smoothed * known[:, None]), transitions, smoothed, likelihood)
        if likelihood - before < TOLERANCE:
            break
    return model


def _regimes(returns: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weighted means and covariances, (regimes, D) and (regimes, D, D)."""
    weight, sums, squares = _weighted_sums(returns, weights)
    whole_mean = sums.sum(axis=0) / weight.sum()
    whole = squares.sum(axis=0) / weight.sum() - np.outer(whole_mean, whole_mean)
    means = sums / np.maximum(weight, 1e-12)[:, None]
    scatter = squares - weight[:, None, None] * means[:, :, None] * means[:, None, :]
    prior = PRIOR * (whole + 1e-9 * np.eye(len(whole)))
    return means, (scatter + prior) / (weight + PRIOR)[:, None, None]


def rotated(rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Products of rows (bars, D) with a few columns (D, n), row by row: no bit depends on how many bars there are."""
    return np.stack([(rows * column).sum(axis=1) for column in columns.T], axis=1)


@compiled_function()
def _weighted_sums(rows: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sums of weights (S,), of weighted rows (S, D), and of their squares (S, D, D)."""
    bars, regimes, size = len(rows), weights.shape[1], rows.shape[1]
    weight, sums, squares = np.zeros(regimes), np.zeros((regimes, size)), np.zeros((regimes, size, size))
    for t in range(bars):
        for s in range(regimes):
            w = weights[t, s]
            weight[s] += w
            for i in range(size):
                sums[s, i] += w * rows[t, i]
                for j in range(size):
                    squares[s, i, j] += w * rows[t, i] * rows[t, j]
    return weight, sums, squares


@compiled_function(error_model="numpy")
def forward(densities: FloatArray, transitions: FloatArray, first: FloatArray) -> tuple[FloatArray, float]:
    """Filtered probabilities (bars, S), and the log likelihood."""
    bars, regimes = densities.shape
    found, likelihood = np.empty_like(densities), 0.0
    predicted = first.copy()
    for t in range(bars):
        largest = np.max(densities[t])
        total = 0.0
        for i in range(regimes):
            found[t, i] = predicted[i] * np.exp(densities[t, i] - largest)
            total += found[t, i]
        likelihood += np.log(total) + largest
        for i in range(regimes):
            found[t, i] /= total
            predicted[i] = 0.0
        for i in range(regimes):
            for j in range(regimes):
                predicted[j] += found[t, i] * transitions[i, j]
    return found, likelihood


@compiled_function(error_model="numpy")
def forward_backward(
    densities: FloatArray, transitions: FloatArray, first: FloatArray
) -> tuple[FloatArray, FloatArray, float]:
    """Smoothed probabilities (bars, S), expected numbers of transitions (S, S), and the log likelihood."""
    filtered, likelihood = forward(densities, transitions, first)
    bars, regimes = densities.shape
    smoothed, pairs = np.empty_like(filtered), np.zeros((regimes, regimes))
    behind, ahead, joint = np.ones(regimes), np.empty(regimes), np.empty((regimes, regimes))
    for i in range(regimes):
        smoothed[bars - 1, i] = filtered[bars - 1, i]
    for t in range(bars - 2, -1, -1):
        largest = np.max(densities[t + 1])
        for j in range(regimes):
            ahead[j] = np.exp(densities[t + 1, j] - largest) * behind[j]
        total, reached = 0.0, 0.0
        for i in range(regimes):
            behind[i] = 0.0
            for j in range(regimes):
                joint[i, j] = filtered[t, i] * transitions[i, j] * ahead[j]
                behind[i] += transitions[i, j] * ahead[j]
                total += joint[i, j]
            reached += behind[i]
        for i in range(regimes):
            behind[i] /= reached
            mass = 0.0
            for j in range(regimes):
                pairs[i, j] += joint[i, j] / total
                mass += joint[i, j]
            smoothed[t, i] = mass / total
    return smoothed, pairs, likelihood


class RegimeFit(NamedTuple):
    components: FloatArray  # (assets, n): leading directions of the returns over their mean
    scale: FloatArray  # (1 + n,): deviations of mean and components
    model: SwitchingModel
    second: int  # number of the regime with the larger spread


def regime(view: PanelView, fit: RegimeFit | None) -> FloatArray:
    """Probability of the second regime at the close of each bar, (bars,); 0.5 throughout where no model was fitted."""
    if fit is None:
        return np.full(len(view.returns), 0.5)
    mean, relative, known = _parts(view.returns)
    return fit.model.filtered(_vector(mean, relative, fit.components) / fit.scale, known)[:, fit.second]


def fit_regimes(view: PanelView, fit_until: int) -> RegimeFit | None:
    """Fit the model on the rows before `fit_until`; None where they are too few, or have no two regimes."""
    mean, relative, known = _parts(view.returns[:fit_until])
    if known.sum() < FEWEST:
        return None
    squares = relative[known].T @ relative[known]
    vectors = np.linalg.eigh(squares)[1][:, ::-1][:, : min(COMPONENTS, len(squares) - 1)]
    returns = _vector(mean, relative, vectors)
    scale = returns[known].std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    model = fit_switching(returns / scale, known)
    if not (np.isfinite(model.means).all() and np.isfinite(model.transitions).all()):
        return None
    second = int(np.argmax(np.linalg.det(model.covariances)))
    return RegimeFit(vectors, scale, model._replace(smoothed=model.smoothed[-1:]), second)


def _parts(returns: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Mean return (bars,), returns over it (bars, assets), 0 where not known, and bars (bars,) with two known ones."""
    known = np.isfinite(returns)
    count = known.sum(axis=1)
    mean = np.where(known, returns, 0.0).sum(axis=1) / np.maximum(count, 1)
    return mean, np.where(known, returns - mean[:, None], 0.0), count >= 2


def _vector(mean: FloatArray, relative: FloatArray, components: FloatArray) -> FloatArray:
    """Mean and components of each bar, (bars, 1 + n)."""
    return np.concatenate([mean[:, None], rotated(relative, components)], axis=1)
