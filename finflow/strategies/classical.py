"""The portfolios an agent has to beat, and the way to name them.

Rules of optimisers and of one signal are fitted on a trailing window now and then, and hold in between. While there are
under `lookback` returns they name equal weight. A fit that fails is an error: no other portfolio is put in its place
unseen. The others of this file keep nothing between decisions; online selection is in `online_selection`.
"""

from __future__ import annotations

import difflib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from finflow.arrays import FloatArray
from finflow.config import EvaluationConfig
from finflow.errors import FinflowError, one_line, refuse, typed_line
from finflow.imports import import_path
from finflow.market.bar_frequency import bars_per_month
from finflow.strategies.online_selection import (
    ConstantRebalanced,
    ExponentiatedGradient,
    MeanReversion,
    PassiveAggressiveMeanReversion,
)
from finflow.strategies.strategy import Information, Memo, Strategy, equal_weights, memoised, with_cash

OPTIMISERS = (
    "inverse-volatility",
    "minimum-variance",  # Markowitz (1952)
    "risk-parity",  # Maillard, Roncalli and Teiletche (2010)
    "maximum-diversification",  # Choueifaty and Coignard (2008)
    "hierarchical-risk-parity",  # Lopez de Prado (2016)
    "mean-variance",  # means and covariance shrunk towards what all assets share; Ledoit and Wolf (2004)
    "minimum-cvar",  # of the worst 5 % of days; Rockafellar and Uryasev (2000)
)
RISK_AVERSION = 5.0  # of mean-variance: a middling investor's
_DUST = 1e-6  # weights below this are what a solver leaves of zero


class Rolling(ABC):
    """A rule that is fitted at every `rebalance_every`-th decision, on the last `lookback` simple returns."""

    name = "rolling"
    leaves_cash = False  # true where weights that sum to less than one are meant: cash takes the rest
    of_a_year = False  # true where a fit uses a year's returns, of bars of any length, in place of the last `lookback`

    def __init__(self, rebalance_every: int = 21, lookback: int = 252) -> None:
        self.rebalance_every = rebalance_every
        self.lookback = lookback
        self.memo: Memo | None = None  # fits made before

    def decide(self, information: Information) -> FloatArray:
        if information.step % self.rebalance_every != 0:
            return information.portfolio
        window = information.bars_per_year if self.of_a_year else self.lookback
        prices = information.prices[-(window + 1) :]
        if len(prices) < window + 1:
            return equal_weights(information.listed)
        usable = np.isfinite(prices).all(axis=0) & information.listed
        # A price that never moved has no risk to be budgeted; such an asset is left out until it does.
        usable &= np.where(usable, np.ptp(np.nan_to_num(prices), axis=0) > 0.0, False)
        if np.count_nonzero(usable) < 2:
            return equal_weights(information.listed)
        chosen = prices[:, usable]
        where = f"{self.name} at decision {information.step} (bar {len(information.prices) - 1})"
        try:
            returns = chosen[1:] / chosen[:-1] - 1.0
            fitted = np.asarray(memoised(self.memo, self.name, [returns], lambda: self.fit(returns)), dtype=np.float64)
        except Exception as error:
            raise FinflowError(f"{where} could not be fitted: {one_line(error)}") from error
        nothing = not self.leaves_cash and fitted.sum() <= 0.0
        refuse(
            fitted.shape != (chosen.shape[1],) or not np.isfinite(fitted).all() or nothing,
            f"{where} was fitted to something that is not a portfolio",
        )
        weights = np.zeros(len(information.listed))
        fitted = np.where(fitted > _DUST, fitted, 0.0)
        weights[usable] = fitted if self.leaves_cash else fitted / fitted.sum()
        return with_cash(weights)

    @abstractmethod
    def fit(self, returns: FloatArray) -> FloatArray:
        """Weights of shape (assets,) from simple returns of shape (lookback, assets)."""


class Optimised(Rolling):
    """A portfolio of one of skfolio's optimisers, by its name in `OPTIMISERS`."""

    def __init__(self, name: str, rebalance_every: int = 21, lookback: int = 252) -> None:
        super().__init__(rebalance_every, lookback)
        self.name = name

    def fit(self, returns: FloatArray) -> FloatArray:
        estimator = optimisers()[self.name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            estimator.fit(returns)
        return np.asarray(estimator.weights_, dtype=np.float64)


def optimisers() -> dict[str, Any]:
    """Make skfolio's optimisers, long-only, in the order of `OPTIMISERS`.

    Skfolio is imported only here, since that takes a second. Mean-variance shrinks means by the Bayes-Stein rule
    (Jorion 1986), whose share lies between nothing and all; its utility, unlike the Sharpe ratio, has an answer where
    all means are negative.
    """
    from skfolio import RiskMeasure, moments, optimization
    from skfolio.prior import EmpiricalPrior

    covariance = moments.LedoitWolf()
    mean = moments.ShrunkMu(covariance, method=moments.ShrunkMuMethods.BAYES_STEIN)
    made = (
        optimization.InverseVolatility(),
        optimization.MeanRisk(risk_measure=RiskMeasure.VARIANCE),
        optimization.RiskBudgeting(risk_measure=RiskMeasure.VARIANCE),
        optimization.MaximumDiversification(),
        optimization.HierarchicalRiskParity(),
        optimization.MeanRisk(
            objective_function=optimization.ObjectiveFunction.MAXIMIZE_UTILITY,
            risk_measure=RiskMeasure.VARIANCE,
            risk_aversion=RISK_AVERSION / 2.0,
            prior_estimator=EmpiricalPrior(mu_estimator=mean, covariance_estimator=covariance),
        ),
        optimization.MeanRisk(risk_measure=RiskMeasure.CVAR, cvar_beta=0.95),
    )
    return dict(zip(OPTIMISERS, made, strict=True))


class Momentum(Rolling):
    """Equal weight in the third of the assets, rounded up, with the best 12-1 return (Jegadeesh and Titman 1993)."""

    name = "momentum"
    of_a_year = True

    def fit(self, returns: FloatArray) -> FloatArray:
        return _best_third(_twelve_one(returns))


class TimeSeriesMomentum(Rolling):
    """The same share for every asset, held while its 12-1 return is positive, else in cash.

    The long-only form of Moskowitz, Ooi and Pedersen (2012), without their scaling by volatility, which would need
    leverage.
    """

    name = "time-series-momentum"
    leaves_cash = of_a_year = True

    def fit(self, returns: FloatArray) -> FloatArray:
        return np.asarray((_twelve_one(returns) > 0.0) / returns.shape[1])


class LowVolatility(Rolling):
    """Equal weight in the third of the assets that moved least (Blitz and van Vliet 2007); a third is rounded up."""

    name = "low-volatility"

    def fit(self, returns: FloatArray) -> FloatArray:
        return _best_third(-returns.std(axis=0, ddof=1))


def _twelve_one(returns: FloatArray) -> FloatArray:
    """Log return (assets,) of a year of simple returns (bars, assets) without its last twelfth."""
    return np.asarray(np.log1p(returns[: -bars_per_month(len(returns))]).sum(axis=0))


def _best_third(score: FloatArray) -> FloatArray:
    """Equal weight in the third with the highest score."""
    chosen = np.argsort(-score, kind="stable")[: -(-len(score) // 3)]
    weights = np.zeros(len(score))
    weights[chosen] = 1.0 / len(chosen)
    return weights


PATIENT = "equal-weight-patient"


class EqualWeight:
    """The same weight in every listed asset, restored at every decision."""

    name = "equal-weight"

    def decide(self, information: Information) -> FloatArray:
        return equal_weights(information.listed)


class PatientEqualWeight:
    """Equal weight, restored once a month (every 21 daily bars) and held in between.

    The verdict compares with it, because what only saves the costs of daily rebalancing has not beaten equal weight.
    """

    name = PATIENT

    def decide(self, information: Information) -> FloatArray:
        month = bars_per_month(information.bars_per_year)
        return information.portfolio if information.step % month else equal_weights(information.listed)


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


def _optimised(name: str, config: EvaluationConfig) -> Strategy:
    return Optimised(name, config.rebalance_every, config.lookback)


NAMED: dict[str, Callable[[EvaluationConfig], Strategy]] = {
    "equal-weight": lambda config: EqualWeight(),
    "buy-and-hold": lambda config: BuyAndHold(),
    "sixty-forty": lambda config: SixtyForty(config.rebalance_every),
    **{name: partial(_optimised, name) for name in OPTIMISERS},
    "momentum": lambda config: Momentum(config.rebalance_every),
    "time-series-momentum": lambda config: TimeSeriesMomentum(config.rebalance_every),
    "low-volatility": lambda config: LowVolatility(config.rebalance_every, config.lookback),
    "crp": lambda config: ConstantRebalanced(),
    "eg": lambda config: ExponentiatedGradient(),
    "pamr": lambda config: PassiveAggressiveMeanReversion(),
    "olmar": lambda config: MeanReversion(),
}
"""Name on the command line -> how to make the strategy from the evaluation's configuration."""

ONLINE = ("crp", "eg", "pamr", "olmar")
COMPARED = tuple(name for name in NAMED if name not in ("crp", "eg"))
"""Strategies that every report compares with: all but crp, which equals equal weight, and eg, which nearly does. The
two run when they are named."""


def named_strategy(name: str, config: EvaluationConfig) -> Strategy:
    """Make a strategy by a key of `NAMED`, or by the import path of a user's, `package.module:Name`.

    Name is a strategy, or a class or function that makes one from nothing or from the evaluation's configuration.

    Raises FinflowError, naming the nearest strategy, or what is wrong with the import.
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
        strategy: Any = import_path(path)
        if not hasattr(strategy, "decide") or inspect.isclass(strategy):
            needed = [
                parameter
                for parameter in inspect.signature(strategy).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            ]
            strategy = strategy(config) if needed else strategy()
    except Exception as error:
        # Whatever a user's module raises is reported to that user.
        raise FinflowError(f"strategy {path!r} cannot be made: {typed_line(error)}") from error
    if not isinstance(strategy, Strategy):
        raise FinflowError(f"strategy {path!r} has no name and decide(information), as a strategy must")
    return strategy
