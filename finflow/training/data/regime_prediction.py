"""Returns of assets over the market's, predicted by a Markov-switching model of two regimes.

The model is of the market's mean return and of the leading components of the assets' returns over it: normal in each
regime. A decision knows the filtered probability of each regime as of its newest bar. Predictions are scaled by what
they explain of returns that their model was not fitted to, and are zero where that is nothing.

References
----------
Hamilton (1989), A New Approach to the Economic Analysis of Nonstationary Time Series and the Business Cycle.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.market.features.switching_model import COMPONENTS, FEWEST, REGIMES, fit_switching

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

PARTS = 5  # contiguous parts of the bars, each predicted by a model of the others


def regime_returns(process: DecisionProcess, bars: NDArray[np.int64]) -> FloatArray:
    """Predicted log return over the market's of the bars that decisions are rewarded by, (bars, assets).

    Zero on other bars, without listing, and everywhere where the model explains nothing of bars that it was not fitted
    to.

    ``bars`` (decisions,): bars of decisions, in order; no return of any bar but the next ones of these enters.
    """
    predicted: FloatArray = np.zeros(process.listed.shape)
    if len(bars) < FEWEST or predicted.shape[1] < 2:
        return predicted
    rewarded = np.zeros(len(predicted), dtype=np.bool_)
    rewarded[bars + 1] = True
    returns, relative, listed = _market(process, rewarded)
    held_out = np.zeros((len(bars), predicted.shape[1]))
    for part in np.array_split(np.arange(len(bars)), PARTS):
        others = rewarded.copy()
        others[bars[part] + 1] = False
        held_out[part] = _predict(returns, relative, listed, rewarded, others, bars[part], process.lag)
    realised = relative[bars + 1]
    explained, size = float((held_out * realised).sum()), float((held_out**2).sum())
    if not explained > 0.0:  # NaN where a regime has no bar
        return predicted
    whole = _predict(returns, relative, listed, rewarded, rewarded, bars, process.lag)
    predicted[bars + 1] = min(explained / size, 1.0) * whole * listed[bars + 1]
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

    Less their mean over time: differences between the assets' means over all time are left out.
    """
    model = fit_switching(returns, fitted)
    weights = model.smoothed * fitted[:, None]
    held = np.stack([(weights[:, s, None] * listed).sum(axis=0) for s in range(REGIMES)])
    means = np.stack([(weights[:, s, None] * relative).sum(axis=0) for s in range(REGIMES)]) / np.maximum(held, 1.0)
    now = model.filtered(returns, known)[bars - lag]
    ahead = matrix_product(now, np.linalg.matrix_power(model.transitions, 1 + lag))
    return matrix_product(ahead - weights.sum(axis=0) / weights.sum(), means)


def matrix_product(rows: FloatArray, columns: FloatArray) -> FloatArray:
    """Matrix product by torch, whose bits depend on ``train.threads``; NumPy's depend on the number of cores."""
    product: FloatArray = (torch.from_numpy(rows) @ torch.from_numpy(np.ascontiguousarray(columns))).numpy()
    return product
