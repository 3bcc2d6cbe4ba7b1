"""Policies of DeMiguel, Garlappi and Uppal (2009) on monthly excess returns, and their Sharpe ratios out of sample.

Every month from the 121st on, a policy is estimated on the 120 months before and held for one month. A Sharpe ratio is
the mean over the deviation of those months' excess returns, a month. Weights are relative: they are divided by the
absolute value of their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import util
from pathlib import Path

import numpy as np
import pandas as pd
from skfolio.optimization import MeanRisk, ObjectiveFunction

from finflow.arrays import FloatArray
from finflow.errors import MarketError
from scripts.replicate.comparison import DGU, NAIVE_DIVERSIFICATION, Comparison

Policy = Callable[[FloatArray], FloatArray]

WINDOW = 120
IN_SAMPLE = "mean-variance, in sample"
FIRST, LAST = "1963-07", "2004-11"
FACTORS = ["Mkt-RF", "SMB", "HML"]


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


def shipped_sets() -> dict[str, pd.DataFrame]:
    """MKT/SMB/HML from both packages, as far as they are installed: by origin.

    Raises
    ------
    MarketError
        If neither is, or a month of the paper is missing.
    """
    found = {}
    if (path := _shipped("arch", Path("data", "frenchdata", "frenchdata.csv.gz"))) is not None:
        table = pd.read_csv(path)
        months = pd.to_datetime(table.pop("Date").astype(str), format="%Y%m")
        found["arch, 2018"] = _cut(table / 100.0, months)
    if (path := _shipped("linearmodels", Path("datasets", "french", "french.csv.bz2"))) is not None:
        table = pd.read_csv(path).rename(columns={"MktRF": "Mkt-RF"})
        found["linearmodels, 2017"] = _cut(table, pd.to_datetime(table.pop("dates")))
    if not found:
        raise MarketError("the factors are shipped by arch and by linearmodels: pip install 'finflow[markets]'")
    return found


def _cut(table: pd.DataFrame, dates: pd.Series) -> pd.DataFrame:
    """The months of the paper, all of them."""
    wanted = pd.period_range(FIRST, LAST, freq="M")
    part = table.set_index(pd.PeriodIndex(dates, freq="M"))[FACTORS].reindex(wanted)
    missing = part.index[part.isna().any(axis=1)]
    if len(missing):
        raise MarketError(f"the returns of {missing[0]} are not all there; the paper's months are {FIRST} to {LAST}")
    return part


def _shipped(package: str, inside: Path) -> Path | None:
    """A file of an installed package, which is not imported."""
    found = util.find_spec(package)
    folders = [] if found is None else list(found.submodule_search_locations or [])
    return next((path for folder in folders if (path := Path(folder) / inside).is_file()), None)
