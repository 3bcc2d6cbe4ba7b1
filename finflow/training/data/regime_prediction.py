"""Returns of assets over the market's, predicted by a Markov-switching model of two regimes.

The model is of the market's mean return and of the leading components of the assets' returns over it: normal in each
regime, with that regime's mean and covariance. It is fitted by expectation maximisation; a decision knows the filtered
probability of each regime as of its newest bar. A prediction counts as much as it explains of returns that its model
was not fitted to, and not at all where it explains nothing of them.

References
----------
Hamilton (1989), A New Approach to the Economic Analysis of Nonstationary Time Series and the Business Cycle.
Rabiner (1989), A Tutorial on Hidden Markov Models, equations 19 to 40 (scaled forward and backward probabilities).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.compiled_function import compiled_function
from finflow.env.decision_process import DecisionProcess

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

REGIMES = 2
COMPONENTS = 2  # of returns over the market's
PARTS = 5  # contiguous parts of the bars, each predicted by a model of the others
FEWEST = 250  # bars that a model is fitted to
ITERATIONS = 60
TOLERANCE = 1e-2  # of the log likelihood
SPAN = 21  # bars of the average size of returns that the fit begins from
PRIOR = 10.0  # bars of the whole's covariance that each regime's is averaged with


class SwitchingModel(NamedTuple):
    """Regimes of a vector of returns.

    Attributes
    ----------
    means : float64 (regimes, D)
    covariances : float64 (regimes, D, D)
    transitions : float64 (regimes, regimes)
        Probability of each column's regime on the bar after one in the row's.
    smoothed : float64 (bars, regimes)
        Probability of each regime given all bars that the model was fitted to.
    log_likelihood : float
    """

    means: FloatArray
    covariances: FloatArray
    transitions: FloatArray
    smoothed: FloatArray
    log_likelihood: float

    def filtered(self, returns: FloatArray, known: BoolArray) -> FloatArray:
        """Probability of each regime given the known rows so far, (bars, regimes)."""
        found: FloatArray = forward(self.log_densities(returns, known), self.transitions, np.full(REGIMES, 0.5))[0]
        return found

    def log_densities(self, returns: FloatArray, known: BoolArray) -> FloatArray:
        """Log density of each row in each regime, less a constant; zero where it is not known, (bars, regimes)."""
        columns = []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            root = np.linalg.cholesky(np.linalg.inv(covariance))
            scaled = _product(returns - mean, root)
            columns.append(np.log(np.diag(root)).sum() - 0.5 * (scaled**2).sum(axis=1))
        return np.stack(columns, axis=1) * known[:, None]


def regime_returns(process: DecisionProcess, bars: NDArray[np.int64]) -> FloatArray:
    """Predicted log return over the market's of the bars that decisions are rewarded by, (bars, assets).

    Zero on other bars, without listing, and everywhere where the model explains nothing of bars that it was not fitted
    to.

    Parameters
    ----------
    process : DecisionProcess
    bars : int64 (decisions,)
        Bars of decisions, in order; no return of any bar but the next ones of these enters.
    """
    found: FloatArray = np.zeros(process.listed.shape)
    if len(bars) < FEWEST or found.shape[1] < 2:
        return found
    rewarded = np.zeros(len(found), dtype=np.bool_)
    rewarded[bars + 1] = True
    returns, relative, listed = _market(process, rewarded)
    apart = np.zeros((len(bars), found.shape[1]))
    for part in np.array_split(np.arange(len(bars)), PARTS):
        others = rewarded.copy()
        others[bars[part] + 1] = False
        apart[part] = _predict(returns, relative, listed, rewarded, others, bars[part], process.lag)
    realised = relative[bars + 1]
    explained, size = float((apart * realised).sum()), float((apart**2).sum())
    if not explained > 0.0:  # nor where a regime has no bar, and its numbers are none
        return found
    whole = _predict(returns, relative, listed, rewarded, rewarded, bars, process.lag)
    found[bars + 1] = min(explained / size, 1.0) * whole * listed[bars + 1]
    return found


def fit_switching(returns: FloatArray, known: BoolArray) -> SwitchingModel:
    """Fit two regimes by expectation maximisation, from bars of small and of large returns.

    Parameters
    ----------
    returns : float64 (bars, D)
        Of about unit size.
    known : bool (bars,)
        Rows to fit to.
    """
    size = np.convolve(np.sqrt((returns**2).sum(axis=1)) * known, np.ones(SPAN) / SPAN, "same")
    large = size > np.median(size[known])
    smoothed = 0.1 + 0.8 * np.stack([~large, large], axis=1)
    transitions = np.array([[0.98, 0.02], [0.02, 0.98]])
    model = SwitchingModel(*_regimes(returns, smoothed * known[:, None]), transitions, smoothed, -np.inf)
    for _ in range(ITERATIONS):
        densities = model.log_densities(returns, known)
        smoothed, pairs, likelihood = smooth(densities, model.transitions, model.smoothed[0])
        moved = SwitchingModel(
            *_regimes(returns, smoothed * known[:, None]),
            pairs / pairs.sum(axis=1, keepdims=True),
            smoothed,
            likelihood,
        )
        converged = likelihood - model.log_likelihood < TOLERANCE
        model = moved
        if converged:
            break
    return model


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
    returns = np.concatenate([mean[:, None], _product(relative, vectors.numpy())], axis=1)
    scale = returns[rows].std(axis=0)
    return returns / np.where(scale > 0.0, scale, 1.0) * rows[:, None], relative, listed


def _predict(
    returns: FloatArray,
    relative: FloatArray,
    listed: BoolArray,
    known: BoolArray,
    fitted: BoolArray,
    bars: NDArray[np.int64],
    lag: int,
) -> FloatArray:
    """Returns expected at some decisions by regimes that were fitted to some rows, (decisions, assets).

    Less their mean over time: which assets earn more in all is not said.
    """
    model = fit_switching(returns, fitted)
    weights = model.smoothed * fitted[:, None]
    held = np.stack([(weights[:, s, None] * listed).sum(axis=0) for s in range(REGIMES)])
    means = np.stack([(weights[:, s, None] * relative).sum(axis=0) for s in range(REGIMES)]) / np.maximum(held, 1.0)
    now = model.filtered(returns, known)[bars - lag]
    ahead = _product(now, np.linalg.matrix_power(model.transitions, 1 + lag))
    return _product(ahead - weights.sum(axis=0) / weights.sum(), means)


def _regimes(returns: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weighted means and covariances, (regimes, D) and (regimes, D, D)."""
    weight, sums, squares = _weighted_sums(returns, weights)
    whole_mean = sums.sum(axis=0) / weight.sum()
    whole = squares.sum(axis=0) / weight.sum() - np.outer(whole_mean, whole_mean)
    means = sums / np.maximum(weight, 1e-12)[:, None]
    own = squares - weight[:, None, None] * means[:, :, None] * means[:, None, :]
    prior = PRIOR * (whole + 1e-9 * np.eye(len(whole)))
    return means, (own + prior) / (weight + PRIOR)[:, None, None]


def _product(rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Matrix product by torch, whose bits depend on ``train.threads``; NumPy's depend on the number of cores."""
    found: FloatArray = (torch.from_numpy(rows) @ torch.from_numpy(np.ascontiguousarray(columns))).numpy()
    return found


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


@compiled_function()
def forward(densities: FloatArray, transitions: FloatArray, first: FloatArray) -> tuple[FloatArray, float]:
    """Filtered probabilities (bars, S), and the log likelihood."""
    found, likelihood = np.empty_like(densities), 0.0
    predicted = first.copy()
    for t in range(len(densities)):
        largest = densities[t].max()
        joint = predicted * np.exp(densities[t] - largest)
        total = joint.sum()
        likelihood += np.log(total) + largest
        found[t] = joint / total
        predicted[:] = 0.0
        for i in range(len(first)):
            for j in range(len(first)):
                predicted[j] += found[t, i] * transitions[i, j]
    return found, likelihood


@compiled_function()
def smooth(densities: FloatArray, transitions: FloatArray, first: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Smoothed probabilities (bars, S), expected numbers of transitions (S, S), and the log likelihood."""
    filtered, likelihood = forward(densities, transitions, first)
    bars, regimes = densities.shape
    smoothed, pairs = np.empty_like(filtered), np.zeros((regimes, regimes))
    behind, joint = np.ones(regimes), np.empty((regimes, regimes))
    smoothed[-1] = filtered[-1]
    for t in range(bars - 2, -1, -1):
        ahead = np.exp(densities[t + 1] - densities[t + 1].max()) * behind
        total = 0.0
        for i in range(regimes):
            for j in range(regimes):
                joint[i, j] = filtered[t, i] * transitions[i, j] * ahead[j]
                total += joint[i, j]
        pairs += joint / total
        for i in range(regimes):
            behind[i] = (transitions[i] * ahead).sum()
            smoothed[t, i] = joint[i].sum() / total
        behind /= behind.sum()
    return smoothed, pairs, likelihood
