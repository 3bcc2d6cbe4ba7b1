"""The portfolios an agent has to beat, and the way to name them.

All are rules from `Information` to weights; those of this file keep nothing between decisions. Those that are fitted
name new weights at every `rebalance_every`-th decision, from the last `lookback` returns of the assets that have them
all, and hold in between: they name the observed portfolio, which trades nothing. While there are under `lookback`
returns they name equal weight. A fit that fails is an error: no other portfolio is put in its place unseen.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import EvaluationConfig
from finflow.errors import FinflowError
from finflow.imports import import_path
from finflow.strategies.base import Information, Strategy, equal_weights, with_cash
from finflow.strategies.online import (
    ConstantRebalanced,
    ExponentiatedGradient,
    MeanReversion,
    PassiveAggressiveMeanReversion,
)

__all__ = [
    "COMPARED",
    "NAMED",
    "BuyAndHold",
    "EqualWeight",
    "InverseVolatility",
    "MaximumDiversification",
    "MinimumVariance",
    "Momentum",
    "RiskParity",
    "SixtyForty",
    "named_strategy",
]

FloatArray = NDArray[np.float64]

_DUST = 1e-6
"""Weights below this are what a solver leaves of zero."""


class EqualWeight:
    """The same weight in every listed asset, restored at every decision."""

    name = "equal-weight"

    def decide(self, information: Information) -> FloatArray:
        return equal_weights(information.listed)


class BuyAndHold:
    """Equal weight at the first decision, then nothing: one purchase, no further trade."""

    name = "buy-and-hold"

    def decide(self, information: Information) -> FloatArray:
        return equal_weights(information.listed) if information.step == 0 else information.portfolio


class SixtyForty:
    """Six tenths in the listed assets equally, four in cash, restored at every `rebalance_every`-th decision."""

    name = "sixty-forty"

    def __init__(self, rebalance_every: int = 21) -> None:
        self.rebalance_every = rebalance_every

    def decide(self, information: Information) -> FloatArray:
        if information.step % self.rebalance_every != 0:
            return information.portfolio
        return with_cash(0.6 * equal_weights(information.listed)[:-1])


class Rolling(ABC):
    """A rule that is fitted on a trailing window at every `rebalance_every`-th decision, and holds in between.

    Parameters
    ----------
    rebalance_every : int
        Decisions between fits.
    lookback : int
        Simple returns that a fit uses.
    """

    name = "rolling"

    def __init__(self, rebalance_every: int = 21, lookback: int = 252) -> None:
        self.rebalance_every = rebalance_every
        self.lookback = lookback

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
            fitted = np.asarray(self.fit(chosen[1:] / chosen[:-1] - 1.0), dtype=np.float64)
        except Exception as error:
            reason = " ".join(str(error).split())[:160]
            raise FinflowError(f"{where} could not be fitted: {reason}") from error
        if fitted.shape != (chosen.shape[1],) or not np.isfinite(fitted).all() or fitted.sum() <= 0.0:
            raise FinflowError(f"{where} was fitted to something that is not a portfolio")
        weights = np.zeros(len(information.listed))
        fitted = np.where(fitted > _DUST, fitted, 0.0)
        weights[usable] = fitted / fitted.sum()
        return with_cash(weights)

    @abstractmethod
    def fit(self, returns: FloatArray) -> FloatArray:
        """Weights of shape (assets,) from simple returns of shape (lookback, assets)."""


class InverseVolatility(Rolling):
    """Weights proportional to one over the standard deviation."""

    name = "inverse-volatility"

    def fit(self, returns: FloatArray) -> FloatArray:
        from skfolio.optimization import InverseVolatility as Estimator

        return _solve(Estimator(), returns)


class MinimumVariance(Rolling):
    """The long-only portfolio of least sample variance (Markowitz 1952)."""

    name = "minimum-variance"

    def fit(self, returns: FloatArray) -> FloatArray:
        from skfolio import RiskMeasure
        from skfolio.optimization import MeanRisk, ObjectiveFunction

        estimator = MeanRisk(objective_function=ObjectiveFunction.MINIMIZE_RISK, risk_measure=RiskMeasure.VARIANCE)
        return _solve(estimator, returns)


class RiskParity(Rolling):
    """Every asset adds the same to the portfolio's variance (Maillard, Roncalli and Teiletche 2010)."""

    name = "risk-parity"

    def fit(self, returns: FloatArray) -> FloatArray:
        from skfolio import RiskMeasure
        from skfolio.optimization import RiskBudgeting

        return _solve(RiskBudgeting(risk_measure=RiskMeasure.VARIANCE), returns)


class MaximumDiversification(Rolling):
    """The greatest ratio of mean volatility to portfolio volatility (Choueifaty and Coignard 2008)."""

    name = "maximum-diversification"

    def fit(self, returns: FloatArray) -> FloatArray:
        from skfolio.optimization import MaximumDiversification as Estimator

        return _solve(Estimator(), returns)


class Momentum(Rolling):
    """Equal weight in the third of the assets with the best 12-1 return (Jegadeesh and Titman 1993).

    The return over 252 bars without the last 21, whatever `lookback` is; a third is rounded up.
    """

    name = "momentum"

    def __init__(self, rebalance_every: int = 21) -> None:
        super().__init__(rebalance_every, lookback=252)

    def fit(self, returns: FloatArray) -> FloatArray:
        past = np.log1p(returns[:-21]).sum(axis=0)
        winners = np.argsort(-past, kind="stable")[: -(-len(past) // 3)]
        weights = np.zeros(len(past))
        weights[winners] = 1.0 / len(winners)
        return weights


def _solve(estimator: Any, returns: FloatArray) -> FloatArray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(returns)
    return np.asarray(estimator.weights_, dtype=np.float64)


NAMED: dict[str, Callable[[EvaluationConfig], Strategy]] = {
    "equal-weight": lambda config: EqualWeight(),
    "buy-and-hold": lambda config: BuyAndHold(),
    "sixty-forty": lambda config: SixtyForty(config.rebalance_every),
    "inverse-volatility": lambda config: InverseVolatility(config.rebalance_every, config.lookback),
    "minimum-variance": lambda config: MinimumVariance(config.rebalance_every, config.lookback),
    "risk-parity": lambda config: RiskParity(config.rebalance_every, config.lookback),
    "maximum-diversification": lambda config: MaximumDiversification(config.rebalance_every, config.lookback),
    "momentum": lambda config: Momentum(config.rebalance_every),
    "crp": lambda config: ConstantRebalanced(),
    "eg": lambda config: ExponentiatedGradient(),
    "pamr": lambda config: PassiveAggressiveMeanReversion(),
    "olmar": lambda config: MeanReversion(),
}
"""Name on the command line -> how to make the strategy from the evaluation's configuration."""

ONLINE = ("crp", "eg", "pamr", "olmar")
COMPARED = tuple(name for name in NAMED if name not in ONLINE)
"""What every report shows beside the judged strategy. Online selection is run when it is named: crp is equal weight
again, and what the others lose to costs would set the scale of every figure."""


def named_strategy(name: str, config: EvaluationConfig) -> Strategy:
    """Make a strategy from its name, or from the import path of a user's own.

    Parameters
    ----------
    name : str
        A key of `NAMED`, or `package.module:Name`, where Name is a strategy, or a class or function that makes one from
        nothing or from the evaluation's configuration.

    Raises
    ------
    FinflowError
        Naming the nearest strategy, or what is wrong with the import.
    """
    if name in NAMED:
        return NAMED[name](config)
    if ":" in name:
        return _imported(name, config)
    near = difflib.get_close_matches(name, NAMED, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(NAMED)
    raise FinflowError(f"there is no strategy {name!r}; {hint}known are {known}, and package.module:Name for your own")


def _imported(path: str, config: EvaluationConfig) -> Strategy:
    try:
        found: Any = import_path(path)
        if not hasattr(found, "decide") or inspect.isclass(found):
            needed = [
                parameter
                for parameter in inspect.signature(found).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            ]
            found = found(config) if needed else found()
    except Exception as error:
        # Whatever a user's own module raises is reported to that user.
        reason = " ".join(str(error).split())[:160]
        raise FinflowError(f"strategy {path!r} cannot be made: {type(error).__name__}: {reason}") from error
    if not isinstance(found, Strategy):
        raise FinflowError(f"strategy {path!r} has no name and decide(information), as a strategy must")
    return found
