"""Evidence from years that a policy has not seen, and the confidence that it justifies.

Candidates (stages of training, blends with a reference) were backtested on held-out blocks of bars. The
one with the largest mean gain over the reference, less one standard error over the blocks, is chosen; what remains of
its gain once the choice among many is accounted for decides how much of it is used.

References
----------
Thomas, Theocharous and Ghavamzadeh (2015), High Confidence Policy Improvement: deploy what is shown to be better.
Politis and Romano (1994), The Stationary Bootstrap. White (2000), A Reality Check for Data Snooping: the choice lies
inside the bootstrap. James and Stein (1961): positive-part shrinkage of an estimate by its own size.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

RESAMPLES = 500
#: ``1 - SHRINKAGE / t^2`` is zero up to t = 1.73, one half at 2.45 and .88 at 5. A gain of true size d with standard
#: error 1 is best scaled by d^2 / (d^2 + 1), of which ``1 - 1 / t^2`` is the natural estimate; three instead of one
#: keeps the chance of a quarter or more of a policy that gains nothing (t over 2) at 2.3 %.
SHRINKAGE = 3.0


class BlendChoice(NamedTuple):
    """Choice among candidates by their gains out of sample.

    Attributes
    ----------
    gain : float
        Mean over bars of what is gained over the reference, costs paid.
    t_statistic : float
        Of the gain, its error robust to autocorrelation, less what the best of as many candidates without any gain
        would show on average.
    selection : float
        That allowance, in the same units.
    confidence : float
        Share of the candidate that the evidence justifies, in 0..1.
    """

    candidate: int
    gain: float
    t_statistic: float
    selection: float
    confidence: float


def shrunk(t_statistic: float) -> float:
    """``max(0, 1 - 3 / t^2)`` for positive t, else 0."""
    return max(0.0, 1.0 - SHRINKAGE / t_statistic**2) if t_statistic > 0.0 else 0.0


def least_gain(gains: FloatArray, blocks: NDArray[np.int64]) -> FloatArray:
    """Mean gain of each candidate less one standard error over the blocks, (candidates,).

    Parameters
    ----------
    gains : array, (candidates, bars)
    blocks : int array, (bars,)
        Block of each bar, numbered from 0.
    """
    count = int(blocks.max()) + 1
    means = np.stack([gains[:, blocks == block].mean(axis=1) for block in range(count)], axis=1)
    error = means.std(axis=1, ddof=1) / math.sqrt(count) if count > 1 else 0.0
    bound: FloatArray = gains.mean(axis=1) - error
    return bound


def choose(gains: FloatArray, blocks: NDArray[np.int64], seed: int) -> BlendChoice:
    """Choose the candidate with the best lower bound, and judge it with the choice taken into account.

    Parameters
    ----------
    gains : array, (candidates, bars)
        Rewards (or log growth) less the reference's on the same bars, in their order.
    blocks : int array, (bars,)
    seed : int
        Of the bootstrap.
    """
    from arch.bootstrap import StationaryBootstrap

    chosen = int(np.argmax(least_gain(gains, blocks)))
    length = max(round(gains.shape[1] ** (1.0 / 3.0)), 1)
    bootstrap = StationaryBootstrap(length, gains.T, seed=np.random.default_rng(seed))
    # over resampled bars, the same for all candidates: (resamples, candidates)
    means = np.asarray(bootstrap.apply(lambda rows: rows.mean(axis=0), RESAMPLES), dtype=np.float64)
    errors = np.maximum(means.std(axis=0, ddof=1), 1e-15)
    mean = float(gains[chosen].mean())
    centred = (means - gains.mean(axis=1)) / errors
    selection = float(centred.max(axis=1).mean())
    t_statistic = mean / float(errors[chosen]) - selection
    return BlendChoice(chosen, mean, t_statistic, selection, shrunk(t_statistic))
