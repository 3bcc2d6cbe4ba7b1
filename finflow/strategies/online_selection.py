"""Online portfolio selection: rules from the literature that learn from one day to the next and assume no model.

In the formulas ``b`` is the portfolio chosen last (not what it drifted to), ``x`` the price relatives of the newest
bar known, and the mean over assets is written ``mean(x)``. The first portfolio is the uniform one. Cash is never held.
An asset takes part on the bars at which it has a price; one that lists later begins with nothing, except in
exponentiated gradient, where it begins with its even share because what is nothing stays nothing there.

A rule remembers only the last portfolio. It is made anew from the prices whenever the decision asked for does not
follow the one before, so that the same information is always answered by the same weights.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from finflow.arrays import BoolArray, FloatArray
from finflow.ledger.constraints import project_to_simplex
from finflow.strategies.strategy import Information, Memo, equal_weights, memoised, with_cash


class OnlineSelection:
    """A rule that moves the portfolio chosen last by what the newest ``window`` prices brought."""

    name = "online"
    memo: Memo | None = None
    window = 2

    def __init__(self) -> None:
        self._weights: FloatArray = np.zeros(0)
        self._step = -1
        self._last: FloatArray = np.zeros(0)
        self._bars = 0

    def decide(self, information: Information) -> FloatArray:
        prices, step = information.prices, information.step
        follows = 0 < step == self._step + 1 and len(prices) == self._bars + 1
        first = len(prices) - 1
        if not (follows and np.array_equal(prices[-2], self._last, equal_nan=True)):
            self._weights = equal_weights(np.isfinite(prices[-1 - step]))[:-1]
            first = len(prices) - step
        for bar in range(first, len(prices)):
            known = prices[: bar + 1]
            inputs = [self._weights, known[-max(self.window, 2) :]]
            self._weights = memoised(self.memo, self.name, inputs, partial(self._advance, known))
        self._step, self._bars, self._last = step, len(prices), prices[-1].copy()
        held = np.where(information.listed, self._weights, 0.0)
        if held.sum() <= 0.0:
            return equal_weights(information.listed)
        return with_cash(held / held.sum())

    def _advance(self, prices: FloatArray) -> FloatArray:
        """The next portfolio, over the assets that have a price at both of the last two bars."""
        here = np.isfinite(prices[-1])
        known = here & np.isfinite(prices[-2])
        weights = self._enter(np.where(here, self._weights, 0.0), here & ~np.isfinite(prices[-2]))
        weights = weights / weights.sum() if weights.sum() > 0.0 else equal_weights(here)[:-1]
        if np.count_nonzero(known) < 2:
            return weights
        moved, share = weights.copy(), float(weights[known].sum())
        if share <= 0.0:
            return weights
        seen = prices if known.all() else prices[:, known]  # which would copy the whole history
        moved[known] = share * self.update(weights[known] / share, seen)
        return moved

    def _enter(self, weights: FloatArray, new: BoolArray) -> FloatArray:
        """Weights with assets that were not listed a bar ago; they begin with nothing."""
        return weights

    def update(self, weights: FloatArray, prices: FloatArray) -> FloatArray:
        """The next portfolio (assets,) from the last one and prices (bars, assets); all assets have the last two."""
        return weights


class ConstantRebalanced(OnlineSelection):
    """The uniform portfolio, restored at every decision (Cover 1991); equal weight by its name in this literature."""

    name = "crp"

    def decide(self, information: Information) -> FloatArray:
        return equal_weights(information.listed)


class ExponentiatedGradient(OnlineSelection):
    """``b_i`` becomes proportional to ``b_i exp(rate * x_i / (b . x))``; ``rate`` is 0.05 in the paper.

    References
    ----------
    Helmbold, Schapire, Singer and Warmuth (1998), On-Line Portfolio Selection Using Multiplicative Updates.
    """

    name = "eg"

    def __init__(self, rate: float = 0.05) -> None:
        super().__init__()
        self.rate = rate

    def update(self, weights: FloatArray, prices: FloatArray) -> FloatArray:
        relatives = prices[-1] / prices[-2]
        exponent = self.rate * relatives / float(weights @ relatives)
        raised = weights * np.exp(exponent - exponent.max())
        return np.asarray(raised / raised.sum())

    def _enter(self, weights: FloatArray, new: BoolArray) -> FloatArray:
        if not new.any():
            return weights
        count, total = np.count_nonzero(weights > 0.0) + np.count_nonzero(new), float(weights.sum())
        old = weights / total * (1.0 - np.count_nonzero(new) / count) if total > 0.0 else weights
        return np.where(new, 1.0 / count, old)


class PassiveAggressiveMeanReversion(OnlineSelection):
    """PAMR: keeps ``b`` while it earns no more than ``threshold``, else moves away from what just gained.

    ``b`` becomes the projection of ``b - tau (x - mean(x))`` onto the simplex, with
    ``tau = max(0, b . x - threshold) / |x - mean(x)|^2``. The threshold is ``epsilon`` of the paper, 0.5 there: a loss
    is suffered on all but the worst of days.

    References
    ----------
    Li, Zhao, Hoi and Gopalkrishnan (2012), PAMR: Passive Aggressive Mean Reversion Strategy for Portfolio Selection.
    """

    name = "pamr"

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold

    def update(self, weights: FloatArray, prices: FloatArray) -> FloatArray:
        relatives = prices[-1] / prices[-2]
        return _move(weights, relatives, -max(0.0, float(weights @ relatives) - self.threshold))


class MeanReversion(OnlineSelection):
    """OLMAR: moves towards what stands below its moving average, until a return of ``threshold`` is expected.

    The relatives predicted are ``mean of the last window prices / last price``; ``b`` becomes the projection of
    ``b + lambda (x - mean(x))`` onto the simplex, with ``lambda = max(0, threshold - b . x) / |x - mean(x)|^2`` and x
    the prediction. While fewer prices are known, the mean is over those. The paper has a window of 5 and a threshold,
    its ``epsilon``, of 10.

    References
    ----------
    Li and Hoi (2012), On-Line Portfolio Selection with Moving Average Reversion (OLMAR-1).
    """

    name = "olmar"

    def __init__(self, window: int = 5, threshold: float = 10.0) -> None:
        super().__init__()
        self.window = window
        self.threshold = threshold

    def update(self, weights: FloatArray, prices: FloatArray) -> FloatArray:
        predicted = self.predict(prices)
        return _move(weights, predicted, max(0.0, self.threshold - float(weights @ predicted)))

    def predict(self, prices: FloatArray) -> FloatArray:
        """Relatives of the next bar, (assets,)."""
        return np.asarray(np.nanmean(prices[-self.window :], axis=0) / prices[-1])


def _move(weights: FloatArray, relatives: FloatArray, by: float) -> FloatArray:
    """The projection of weights moved along the deviations of the relatives until their product grew by so much."""
    deviation = relatives - relatives.mean()
    squared = float(deviation @ deviation)
    if squared < 1e-16 or by == 0.0:  # all assets fared alike: there is nothing to choose between
        return weights
    return np.asarray(project_to_simplex(weights + by / squared * deviation))
