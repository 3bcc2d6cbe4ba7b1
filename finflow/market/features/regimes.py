"""Feature of the market: the probability of the second of two regimes of its returns, filtered as of each bar.

The model is of the mean return over the assets and of the leading components of their returns over it, so that it sees
who leads as well as how much moves; the crisis score sees the mean alone. It is fitted on the training window. The
second regime is the one whose returns spread more.

References
----------
Hamilton (1989), A New Approach to the Economic Analysis of Nonstationary Time Series and the Business Cycle.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.market.features.rolling_windows import PanelView
from finflow.market.features.switching_model import COMPONENTS, FEWEST, SwitchingModel, fit_switching, rotated

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class RegimeFit(NamedTuple):
    """Parameters of the feature, from the training window.

    Attributes
    ----------
    components : float64 (assets, n)
        Leading directions of the returns over their mean.
    scale : float64 (1 + n,)
        Deviations of mean and components.
    second : int
        Number of the regime with the larger spread.
    """

    components: FloatArray
    scale: FloatArray
    model: SwitchingModel
    second: int


def regime(view: PanelView, fit: RegimeFit | None) -> FloatArray:
    """Probability of the second regime at the close of each bar, (bars,); 0.5 throughout where no model was fitted."""
    if fit is None:
        return np.full(len(view.returns), 0.5)
    mean, relative, known = _parts(view.returns)
    found: FloatArray = fit.model.filtered(_vector(mean, relative, fit.components) / fit.scale, known)[:, fit.second]
    return found


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
    """Mean return over the assets that have one, (bars,), returns over it, (bars, assets), and bars with two of them.

    Zeros where nothing is known.
    """
    known = np.isfinite(returns)
    count = known.sum(axis=1)
    mean = np.where(known, returns, 0.0).sum(axis=1) / np.maximum(count, 1)
    return mean, np.where(known, returns - mean[:, None], 0.0), count >= 2


def _vector(mean: FloatArray, relative: FloatArray, components: FloatArray) -> FloatArray:
    """Mean and components of each bar, (bars, 1 + n)."""
    return np.concatenate([mean[:, None], rotated(relative, components)], axis=1)
