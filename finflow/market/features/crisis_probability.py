"""How likely the market is in its bad state: two hidden states, fitted on the training window (Hamilton 1989).

In each state the market's daily log return is normal, with a mean and a variance of its own; a state lasts another bar
with a probability of its own. That variance is what tells the states of stock markets apart (Turner, Startz and Nelson
1989). The parameters are those of largest likelihood on the training window, found by expectation maximisation (Baum et
al. 1970) from a fixed start. What is shown is the filter: the probability of the bad state given the returns up to a
bar. The smoother, which knows what comes later, is used in fitting alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from finflow.market.features.asset_features import View

__all__ = ["TwoStates", "crisis", "filtered", "fit_states"]

FloatArray = NDArray[np.float64]

_ROUNDS = 200
_GAIN = 1e-9
"""Fitting ends when a round adds less log likelihood per bar."""
_FLOOR = 1e-4
"""Smallest daily deviation of a state, which keeps it from closing in on a single return."""
_SHORTEST = 0.01
"""A state lasts another bar with at least this probability, and ends with at least a hundredth of it."""


class TwoStates(NamedTuple):
    """A market of two states, the calm one first: the other has the larger variance.

    Attributes
    ----------
    means, variances : float64 (2,)
        Of the daily log return in each state.
    stay : float64 (2,)
        Chance that a state lasts another bar.
    """

    means: FloatArray
    variances: FloatArray
    stay: FloatArray


def crisis(view: View, fit: int | TwoStates) -> FloatArray:
    """P(bad state at t | m up to t), 0 to 1: a filter of two states fitted on training (Hamilton 1989), shape (bars,).

    Two states in which m is normal, each with a mean, a variance and a persistence; bad is the one of larger variance.
    The horizon is what the persistence makes it, some weeks. Parameters come from the rows before `fit` alone, or
    are those given.
    """
    market = view.market[:, 0]
    return filtered(market, fit_states(market[:fit]) if isinstance(fit, int) else fit)


def fit_states(returns: FloatArray) -> TwoStates:
    """The two states of largest likelihood.

    Parameters
    ----------
    returns : float64 (bars,)
        Log returns; NaN where none is known, which says nothing about the state.
    """
    known = returns[np.isfinite(returns)]
    variance = max(float(known.var()), _FLOOR**2) if known.size else 1.0
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


def filtered(returns: FloatArray, states: TwoStates) -> FloatArray:
    """Probability of the second state at each bar, given the returns up to it; NaN where there is no return."""
    likelihoods, _ = _likelihoods(returns, states)
    return np.where(np.isfinite(returns), _forward(likelihoods, states.stay)[:, 1], np.nan)


def _likelihoods(returns: FloatArray, states: TwoStates) -> tuple[FloatArray, float]:
    """Density of each return in both states over the larger of the two, (bars, 2), and the sum of its log."""
    apart = returns[:, None] - states.means
    logs = -0.5 * (apart * apart / states.variances + np.log(2.0 * np.pi * states.variances))
    logs = np.where(np.isfinite(returns)[:, None], logs, 0.0)
    largest = logs.max(axis=1, keepdims=True)
    return np.exp(logs - largest), float(largest.sum())


@njit(cache=True)
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


@njit(cache=True)
def _expectations(likelihoods: FloatArray, stay: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Given all returns: each state's probability at each bar, expected moves between states, and the evidence."""
    forward = _forward(likelihoods, stay)
    smooth = np.empty_like(forward)
    pairs = np.zeros((2, 2))
    move = np.array([[stay[0], 1.0 - stay[0]], [1.0 - stay[1], stay[1]]])
    evidence = np.log(0.5 * likelihoods[0, 0] + 0.5 * likelihoods[0, 1])
    last = len(forward) - 1
    smooth[last] = forward[last]
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
    """The states that make the expected returns and moves likeliest; one that nothing belongs to stays as it is."""
    known = np.isfinite(returns)
    values, weights = returns[known, None], probability[known]
    mass = weights.sum(axis=0)
    held = mass > 1.0
    shares = weights / np.where(held, mass, 1.0)
    means = np.where(held, (shares * values).sum(axis=0), states.means)
    variances = np.maximum((shares * (values - means) ** 2).sum(axis=0), _FLOOR**2)
    stay = np.diag(pairs) / np.maximum(pairs.sum(axis=1), 1e-12)
    return TwoStates(
        means,
        np.where(held, variances, states.variances),
        np.where(held, np.clip(stay, _SHORTEST, 1.0 - _SHORTEST / 100.0), states.stay),
    )
