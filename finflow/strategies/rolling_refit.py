"""Rules that are fitted on a trailing window now and then, and hold in between.

New weights are named at every `rebalance_every`-th decision, from the last `lookback` returns of the assets that have
them all. In between they name the observed portfolio, which trades nothing. While there are under `lookback` returns
they name equal weight. A fit that fails is an error: no other portfolio is put in its place unseen.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import MutableMapping

import numpy as np
from numpy.typing import NDArray

from finflow.errors import FinflowError
from finflow.strategies.strategy import Information, equal_weights, with_cash

__all__ = ["Rolling"]

FloatArray = NDArray[np.float64]

_DUST = 1e-6
"""Weights below this are what a solver leaves of zero."""


class Rolling(ABC):
    """A rule that is fitted on a trailing window at every `rebalance_every`-th decision, and holds in between.

    Parameters
    ----------
    rebalance_every : int
        Decisions between fits.
    lookback : int
        Simple returns that a fit uses.

    Attributes
    ----------
    memo : mutable mapping, optional
        Fits made before, by name and returns. Whoever runs a strategy many times over the same prices, with other
        costs, may hand one to all of them; results are the same with and without.
    """

    name = "rolling"
    leaves_cash = False
    """Whether weights that sum to less than one are meant: cash takes the rest."""

    def __init__(self, rebalance_every: int = 21, lookback: int = 252) -> None:
        self.rebalance_every = rebalance_every
        self.lookback = lookback
        self.memo: MutableMapping[tuple[str, bytes], FloatArray] | None = None

    def decide(self, information: Information) -> FloatArray:
        if information.step % self.rebalance_every != 0:
            return information.portfolio
        prices = information.prices[-(self.lookback + 1) :]
        if len(prices) < self.lookback + 1:
            return equal_weights(information.listed)
        usable = np.isfinite(prices).all(axis=0) & information.listed
        # A price that never moved has no risk to be budgeted; such an asset is left out until it does.
        usable &= np.where(usable, np.ptp(np.nan_to_num(prices), axis=0) > 0.0, False)
        if np.count_nonzero(usable) < 2:
            return equal_weights(information.listed)
        chosen = prices[:, usable]
        where = f"{self.name} at decision {information.step} (bar {len(information.prices) - 1})"
        try:
            fitted = np.asarray(self._fit_once(chosen[1:] / chosen[:-1] - 1.0), dtype=np.float64)
        except Exception as error:
            reason = " ".join(str(error).split())[:160]
            raise FinflowError(f"{where} could not be fitted: {reason}") from error
        nothing = not self.leaves_cash and fitted.sum() <= 0.0
        if fitted.shape != (chosen.shape[1],) or not np.isfinite(fitted).all() or nothing:
            raise FinflowError(f"{where} was fitted to something that is not a portfolio")
        weights = np.zeros(len(information.listed))
        fitted = np.where(fitted > _DUST, fitted, 0.0)
        weights[usable] = fitted if self.leaves_cash else fitted / fitted.sum()
        return with_cash(weights)

    def _fit_once(self, returns: FloatArray) -> FloatArray:
        """The fit of these returns, from the memo where it is there."""
        if self.memo is None:
            return self.fit(returns)
        key = (self.name, hashlib.sha256(returns.tobytes() + str(returns.shape).encode()).digest())
        if key not in self.memo:
            self.memo[key] = self.fit(returns)
        return self.memo[key]

    @abstractmethod
    def fit(self, returns: FloatArray) -> FloatArray:
        """Weights of shape (assets,) from simple returns of shape (lookback, assets)."""
