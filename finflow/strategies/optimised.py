"""Portfolios that an optimiser names from trailing returns: skfolio's, in rolling windows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.strategies.rolling_refit import Rolling

__all__ = [
    "HierarchicalRiskParity",
    "InverseVolatility",
    "MaximumDiversification",
    "MeanVariance",
    "MinimumCVaR",
    "MinimumVariance",
    "RiskParity",
]

FloatArray = NDArray[np.float64]

RISK_AVERSION = 5.0
"""Of mean-variance: a middling investor's."""


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


class MinimumCVaR(Rolling):
    """The long-only portfolio whose worst 5 % of days were mildest on average (Rockafellar and Uryasev 2000)."""

    name = "minimum-cvar"

    def fit(self, returns: FloatArray) -> FloatArray:
        from skfolio import RiskMeasure
        from skfolio.optimization import MeanRisk, ObjectiveFunction

        estimator = MeanRisk(
            objective_function=ObjectiveFunction.MINIMIZE_RISK, risk_measure=RiskMeasure.CVAR, cvar_beta=0.95
        )
        return _solve(estimator, returns)


class MeanVariance(Rolling):
    """The greatest mean less `RISK_AVERSION` / 2 times variance, both shrunk towards what all assets share.

    Means are shrunk by the Bayes-Stein rule (Jorion 1986), whose share lies between nothing and all (that of James and
    Stein, as skfolio has it, may be negative), and the covariance by that of Ledoit and Wolf (2004). The
    utility, not the Sharpe ratio, is maximised: it has an answer also where all means are negative.
    """

    name = "mean-variance"

    def fit(self, returns: FloatArray) -> FloatArray:
        from skfolio import RiskMeasure
        from skfolio.moments import LedoitWolf, ShrunkMu, ShrunkMuMethods
        from skfolio.optimization import MeanRisk, ObjectiveFunction
        from skfolio.prior import EmpiricalPrior

        covariance = LedoitWolf()
        mean = ShrunkMu(covariance, method=ShrunkMuMethods.BAYES_STEIN)
        estimator = MeanRisk(
            objective_function=ObjectiveFunction.MAXIMIZE_UTILITY,
            risk_measure=RiskMeasure.VARIANCE,
            risk_aversion=RISK_AVERSION / 2.0,
            prior_estimator=EmpiricalPrior(mu_estimator=mean, covariance_estimator=covariance),
        )
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


class HierarchicalRiskParity(Rolling):
    """Risk shared out from cluster to cluster of assets that move together (Lopez de Prado 2016)."""

    name = "hierarchical-risk-parity"

    def fit(self, returns: FloatArray) -> FloatArray:
        from skfolio.optimization import HierarchicalRiskParity as Estimator

        return _solve(Estimator(), returns)


def _solve(estimator: Any, returns: FloatArray) -> FloatArray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(returns)
    return np.asarray(estimator.weights_, dtype=np.float64)
