"""Policies of DeMiguel, Garlappi and Uppal (2009) on monthly excess returns, and their Sharpe ratios out of sample.

Every month from the 121st on, a policy is estimated on the 120 months before and held for one month. A Sharpe ratio is
the mean over the deviation of those months' excess returns, a month. Weights are relative: they are divided by the
absolute value of their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from skfolio.optimization import MeanRisk, ObjectiveFunction

from scripts.replicate.comparison import Comparison
from scripts.replicate.published import DGU, NAIVE_DIVERSIFICATION

FloatArray = NDArray[np.float64]
Policy = Callable[[FloatArray], FloatArray]

WINDOW = 120
IN_SAMPLE = "mean-variance, in sample"


def compare_policies(sets: Mapping[str, pd.DataFrame]) -> list[Comparison]:
    """Sharpe ratios of the policies and the published ones, by origin of the monthly excess returns."""
    rows = []
    for origin, table in sets.items():
        returns = table.to_numpy(dtype=np.float64)
        months = {what: hold(returns, policy) for what, policy in POLICIES.items()}
        months["market"] = table["Mkt-RF"].to_numpy(dtype=np.float64)[WINDOW:]
        ratios = {what: sharpe(values) for what, values in months.items()}
        ratios[IN_SAMPLE] = in_sample(returns[WINDOW:])
        for what, published in NAIVE_DIVERSIFICATION.items():
            said = (
                f"the months judged; {in_sample(returns):.4f} over all"
                if what == IN_SAMPLE
                else _closing(months[what], float(published))
            )
            rows.append(Comparison(f"MKT/SMB/HML ({origin})", what, ratios[what], published, DGU, said))
    return rows


def hold(returns: FloatArray, policy: Policy) -> FloatArray:
    """Excess returns of a policy, (months - 120,), each by the weights of the 120 months before it."""
    found = []
    for month in range(WINDOW, len(returns)):
        weights = policy(returns[month - WINDOW : month])
        found.append(float(returns[month] @ weights) / abs(float(weights.sum())))
    return np.array(found)


def sharpe(returns: FloatArray) -> float:
    """Mean over deviation (n - 1), a month."""
    return float(returns.mean() / returns.std(ddof=1))


def in_sample(returns: FloatArray) -> float:
    """Largest Sharpe ratio of any portfolio over these very months: the root of mu' C^-1 mu."""
    mean = returns.mean(axis=0)
    return float(np.sqrt(mean @ np.linalg.solve(np.cov(returns.T), mean)))


def _even(returns: FloatArray) -> FloatArray:
    return np.ones(returns.shape[1])


def _minimum_variance(returns: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.solve(np.cov(returns.T), np.ones(returns.shape[1])), dtype=np.float64)


def _mean_variance(returns: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.solve(np.cov(returns.T), returns.mean(axis=0)), dtype=np.float64)


def _long_minimum_variance(returns: FloatArray) -> FloatArray:
    return np.asarray(MeanRisk().fit(returns).weights_, dtype=np.float64)


def _long_mean_variance(returns: FloatArray) -> FloatArray:
    """Largest mean less half the variance (risk aversion 1), long only and fully invested."""
    model = MeanRisk(objective_function=ObjectiveFunction.MAXIMIZE_UTILITY, risk_aversion=0.5)
    return np.asarray(model.fit(returns).weights_, dtype=np.float64)


POLICIES: dict[str, Policy] = {
    "1/N": _even,
    "mean-variance": _mean_variance,
    "mean-variance, long only": _long_mean_variance,
    "minimum variance": _minimum_variance,
    "minimum variance, long only": _long_minimum_variance,
}


def _closing(returns: FloatArray, published: float) -> str:
    """Change of the mean that would close the gap: what later revisions of the returns would have to bring."""
    change = (published - sharpe(returns)) * float(returns.std(ddof=1))
    return f"closed by {1e4 * change:+.1f} bp a month"
