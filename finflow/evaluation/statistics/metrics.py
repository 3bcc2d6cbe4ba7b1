"""What a series of daily returns was worth.

Every function is pure and takes daily simple returns, net of costs, as fractions (0.01 is 1 %), shape (steps,), with
252 days to a year. The rules for bad input are the same everywhere: an empty series, or one with a NaN anywhere,
gives NaN, because a gap is a fault that must not vanish in a mean. What else is undefined is said at each function.

Agreement with quantstats 0.0.86 (held by tests, to 1e-10): `annual_return` is its `cagr`, `annual_volatility` its
`volatility`, `sharpe` and `sortino` its functions of that name, `max_drawdown` and `calmar` too. Four differences:

- Cash: quantstats takes one annual rate `rf` and turns it into (1 + rf)^(1/252) - 1 a day. Ours takes the cash return
  of each day. They are equal where cash pays the same every day.
- `cvar`: quantstats' default is a normal distribution's tail; ours is historical. Its `method="historical"` takes the
  mean of all returns up to the interpolated quantile, so a whole number of days; ours weighs the last day by the
  fraction of it that belongs to the tail. They are equal where alpha * n is whole, if alpha is at most a half.
- A series without risk: quantstats divides rounding by rounding (or gives inf); here the ratio is NaN.
- A NaN: quantstats leaves the day out; here the result is NaN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from finflow.evaluation.backtest import Backtest
from finflow.evaluation.statistics import path_metrics as paths

if TYPE_CHECKING:
    from finflow.evaluation.statistics.path_metrics import Array


def annual_return(returns: ArrayLike) -> float:
    """Geometric mean return, a year: prod(1 + r)^(252 / n) - 1.

    A fraction a year; -1 after ruin (a return of -1). NaN where a return is under -1.
    Source: Bacon, Practical Portfolio Performance Measurement and Attribution (2008), chapter 2.
    """
    return float(paths.annual_return(_series(returns)))


def annual_volatility(returns: ArrayLike) -> float:
    """Standard deviation of daily returns (n - 1 below) times sqrt(252).

    A fraction a year. 0 for a constant series; NaN for fewer than two returns.
    """
    return float(paths.annual_volatility(_series(returns)))


def sharpe(returns: ArrayLike, cash_returns: ArrayLike = 0.0) -> float:
    """Sharpe ratio: sqrt(252) * mean(x) / s(x), with x = r - cash and s the deviation with n - 1.

    No unit, annualised. NaN for fewer than two returns, and where s(x) is at most 1e-12, as for a portfolio that is
    all cash: without risk there is no ratio.
    Source: Sharpe, The Sharpe Ratio, Journal of Portfolio Management 21 (1994).
    """
    return float(paths.sharpe(_series(returns) - np.asarray(cash_returns, dtype=np.float64)))


def sortino(returns: ArrayLike, cash_returns: ArrayLike = 0.0) -> float:
    """Sortino ratio: sqrt(252) * mean(x) / sqrt(mean(min(x, 0)^2)), with x = r - cash.

    No unit, annualised; the mean below runs over all days, not only the losing ones. NaN where no day lost.
    Source: Sortino and Price, Performance Measurement in a Downside Risk Framework, Journal of Investing 3 (1994).
    """
    return float(paths.sortino(_series(returns) - np.asarray(cash_returns, dtype=np.float64)))


def drawdown_series(returns: ArrayLike) -> Array:
    """Loss from the highest wealth so far, the start included: W_t / max(1, max_{s <= t} W_s) - 1.

    Fractions in [-1, 0], shape (steps,). Empty for an empty series; NaN from the first NaN on.
    """
    return paths.drawdowns(_series(returns))


def max_drawdown(returns: ArrayLike) -> float:
    """The lowest value of `drawdown_series`: a fraction in [-1, 0], 0 where wealth never fell."""
    return float(paths.max_drawdown(_series(returns)))


def calmar(returns: ArrayLike) -> float:
    """Annual return over the depth of the maximum drawdown, over the whole window.

    No unit. NaN where wealth never fell.
    Source: Young, Calmar Ratio: A Smoother Tool, Futures 20 (1991); he takes the last three years, we the window.
    """
    return float(paths.calmar(_series(returns)))


def cvar(returns: ArrayLike, alpha: float = 0.05) -> float:
    """Conditional value at risk: the mean of the worst `alpha` share of daily returns.

    With k = alpha * n and the returns in ascending order: (sum of the first floor(k) + (k - floor(k)) * the next) / k,
    so that the result moves smoothly with alpha; where k is under 1, the worst day. A return, so a loss is negative,
    as in `objectives.cvar_target`.
    Source: Rockafellar and Uryasev, Conditional Value-at-Risk for General Loss Distributions, Journal of Banking &
    Finance 26 (2002), proposition 8.
    """
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"alpha must be in (0, 1], got {alpha}")
    return float(paths.cvar(_series(returns), alpha))


def annual_turnover(turnover: ArrayLike) -> float:
    """Mean daily turnover times 252: how many times a year the whole portfolio is replaced.

    Of half-sums of absolute trades, cash among the assets; the first purchase out of cash counts as one.
    """
    return float(paths.annual_sum(_series(turnover)))


def annual_cost(costs: ArrayLike) -> float:
    """Mean daily cost times 252, as a fraction of wealth a year; the first purchase is among it."""
    return float(paths.annual_sum(_series(costs)))


def monthly_returns(dates: NDArray[np.datetime64], returns: ArrayLike) -> pd.DataFrame:
    """Returns compounded within calendar months.

    Parameters
    ----------
    dates : datetime64[D] (steps,)
        The days on which the returns were earned, ascending.
    returns : float64 (steps,)
        Daily simple returns.

    Returns
    -------
    DataFrame
        One row a year (index "year"), columns 1 to 12 and "year", the return of the year as far as the window covers
        it. NaN in months outside the window.
    """
    series = pd.Series(_series(returns), index=pd.DatetimeIndex(dates))
    growth = series + 1.0
    index = pd.DatetimeIndex(growth.index)
    monthly = growth.groupby([index.year, index.month]).prod(skipna=False) - 1.0
    table = monthly.unstack().reindex(columns=range(1, 13))
    table["year"] = growth.groupby(index.year).prod(skipna=False) - 1.0
    table.index.name = "year"
    table.columns.name = None
    return table


def summarise(backtest: Backtest, alpha: float = 0.05) -> dict[str, float]:
    """Every metric of this module for one backtest, under the keys that `metrics.json` uses."""
    returns, cash = backtest.returns, backtest.cash_returns
    return {
        "annual_return": annual_return(returns),
        "annual_volatility": annual_volatility(returns),
        "sharpe": sharpe(returns, cash),
        "sortino": sortino(returns, cash),
        "calmar": calmar(returns),
        "max_drawdown": max_drawdown(returns),
        "cvar": cvar(returns, alpha),
        "annual_turnover": annual_turnover(backtest.turnover),
        "annual_cost": annual_cost(backtest.costs),
    }


def _series(values: ArrayLike) -> Array:
    series = np.asarray(values, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"expected one series of shape (steps,), got shape {series.shape}")
    return series
