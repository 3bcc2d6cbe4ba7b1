"""Metrics of returns: of one series, or of thousands of resampled ones at once.

Every function is pure and takes simple returns of bars, net of costs, as fractions (0.01 is 1 %), shape (..., steps),
with 252 bars to a year (days) unless another number is passed. It gives a float for one series (steps,), and an array
(...) for several. The rules for bad input are the same everywhere: an empty series, or one with a NaN anywhere, gives
NaN, because a gap is a fault that must not vanish in a mean. What else is undefined stands at each function.

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

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec

import numpy as np
from numpy.typing import ArrayLike
from typing_extensions import TypedDict

from finflow.arrays import FloatArray, IntArray
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.page_numbers import (
    Cost,
    Drawdown,
    Number,
    Return,
    Sharpe,
    Shown,
    Turnover,
    Volatility,
    about,
)
from finflow.market.bar_frequency import BARS_PER_YEAR

FLAT = 1e-12  # a deviation of daily returns under this is rounding, not risk

P = ParamSpec("P")


def _metric(formula: Callable[Concatenate[FloatArray, P], FloatArray]) -> Callable[Concatenate[ArrayLike, P], Any]:
    """A formula along the last axis, NaN for empty series, as a float where there is one series alone."""

    @wraps(formula)
    def along(series: ArrayLike, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        values = np.asarray(series, dtype=np.float64)
        if values.shape[-1] == 0:
            result = np.full(values.shape[:-1], np.nan)
        else:
            result = np.asarray(formula(values, *args, **kwargs))
        return result if result.ndim else float(result)

    return along


@_metric
def annual_return(returns: FloatArray, bars_per_year: int = BARS_PER_YEAR) -> FloatArray:
    """Geometric mean return, a year: prod(1 + r)^(252 / n) - 1.

    A fraction a year; -1 after ruin (a return of -1). NaN where a return is under -1.
    Source: Bacon, Practical Portfolio Performance Measurement and Attribution (2008), chapter 2.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.expm1(bars_per_year * np.log1p(returns).mean(axis=-1)))


@_metric
def annual_volatility(returns: FloatArray, bars_per_year: int = BARS_PER_YEAR) -> FloatArray:
    """Standard deviation of the returns of bars (n - 1 below) times sqrt(252), or the root of the bars of a year.

    A fraction a year. 0 for a constant series; NaN for fewer than two returns.
    """
    return np.asarray(np.sqrt(float(bars_per_year)) * _deviation(returns))


@_metric
def sharpe(returns: FloatArray, cash_returns: ArrayLike = 0.0, bars_per_year: int = BARS_PER_YEAR) -> FloatArray:
    """Sharpe ratio: sqrt(252) * mean(x) / s(x), with x = r - cash and s the deviation with n - 1.

    No unit, annualised. NaN for fewer than two returns, and where s(x) is at most 1e-12, as for a portfolio that is
    all cash: without risk there is no ratio.
    Source: Sharpe, The Sharpe Ratio, Journal of Portfolio Management 21 (1994).
    """
    excess = returns - np.asarray(cash_returns, dtype=np.float64)
    return _ratio(excess, _deviation(excess), bars_per_year)


@_metric
def sortino(returns: FloatArray, cash_returns: ArrayLike = 0.0, bars_per_year: int = BARS_PER_YEAR) -> FloatArray:
    """Sortino ratio: sqrt(252) * mean(x) / sqrt(mean(min(x, 0)^2)), with x = r - cash.

    No unit, annualised; the mean below runs over all days, not only the losing ones. NaN where no day lost.
    Source: Sortino and Price, Performance Measurement in a Downside Risk Framework, Journal of Investing 3 (1994).
    """
    excess = returns - np.asarray(cash_returns, dtype=np.float64)
    risk = np.sqrt(np.mean(np.square(np.minimum(excess, 0.0)), axis=-1))
    return _ratio(excess, risk, bars_per_year)


def sharpe_of(backtest: Backtest) -> float:
    return float(sharpe(backtest.returns, backtest.cash_returns, backtest.bars_per_year))


def drawdown_series(returns: ArrayLike) -> FloatArray:
    """Loss from the highest wealth so far, the start included: W_t / max(1, max_{s <= t} W_s) - 1.

    Fractions in [-1, 0], shape (..., steps). Empty for an empty series; NaN from the first NaN on.
    """
    wealth = np.cumprod(1.0 + np.asarray(returns, dtype=np.float64), axis=-1)
    peaks = np.maximum(np.maximum.accumulate(wealth, axis=-1), 1.0)
    return np.asarray(wealth / peaks - 1.0)


@_metric
def max_drawdown(returns: FloatArray) -> FloatArray:
    """The lowest value of `drawdown_series`: a fraction in [-1, 0], 0 where wealth never fell."""
    return np.asarray(drawdown_series(returns).min(axis=-1))


@_metric
def calmar(returns: FloatArray, bars_per_year: int = BARS_PER_YEAR) -> FloatArray:
    """Annual return over the depth of the maximum drawdown, over the whole window.

    No unit. NaN where wealth never fell.
    Source: Young, Calmar Ratio: A Smoother Tool, Futures 20 (1991); he takes the last three years, we the window.
    """
    annual, deepest = annual_return(returns, bars_per_year), max_drawdown(returns)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.less(deepest, 0.0), np.divide(annual, np.abs(deepest)), np.nan)


@_metric
def cvar(returns: FloatArray, alpha: float = 0.05) -> FloatArray:
    """Conditional value at risk: the mean of the worst `alpha` share, in (0, 1], of daily returns.

    With k = alpha * n and the returns in ascending order: (sum of the first floor(k) + (k - floor(k)) * the next) / k,
    so that the result moves smoothly with alpha; where k is under 1, the worst day. A return, so a loss is negative,
    as in `objectives.cvar_target`.
    Source: Rockafellar and Uryasev, Conditional Value-at-Risk for General Loss Distributions, Journal of Banking &
    Finance 26 (2002), proposition 8.
    """
    steps = returns.shape[-1]
    share = alpha * steps
    whole = min(int(share), steps - 1)
    ordered = np.partition(returns, whole, axis=-1)
    worst = ordered[..., :whole].sum(axis=-1) + (share - whole) * ordered[..., whole]
    if share < 1.0:
        worst, share = ordered[..., 0], 1.0
    return np.where(np.isnan(returns).any(axis=-1), np.nan, worst / share)


@_metric
def annual_turnover(turnover: FloatArray, bars_per_year: int = BARS_PER_YEAR) -> FloatArray:
    """Mean turnover of a bar times the bars of a year: how many times a year the whole portfolio is replaced.

    Of half-sums of absolute trades, cash among the assets; the first purchase out of cash counts as one.
    """
    return np.asarray(bars_per_year * turnover.mean(axis=-1))


@_metric
def annual_cost(costs: FloatArray, bars_per_year: int = BARS_PER_YEAR) -> FloatArray:
    """Mean cost of a bar times the bars of a year, as a fraction of wealth a year; the first purchase is among it."""
    return np.asarray(bars_per_year * costs.mean(axis=-1))


class Metrics(TypedDict):
    """Metrics of one series of daily net returns."""

    annual_return: Return
    annual_volatility: Volatility
    sharpe: Sharpe
    sortino: Annotated[
        Number, about("As the Sharpe ratio, over the root mean square of the days below cash."), Shown("Sortino")
    ]
    calmar: Annotated[Number, about("Return a year over the depth of the maximum drawdown."), Shown("Calmar")]
    max_drawdown: Drawdown
    cvar: Annotated[Number, about("Mean of the worst cvar_alpha share of daily returns."), Shown("CVaR", "%")]
    annual_turnover: Turnover
    annual_cost: Cost


def summarise(backtest: Backtest, alpha: float = 0.05, days: IntArray | None = None) -> dict[str, Any]:
    """Every metric of a backtest, or of resamples of its days (..., steps), under the keys of `metrics.json`."""
    chosen: Any = slice(None) if days is None else days
    returns, cash = backtest.returns[chosen], backtest.cash_returns[chosen]
    year = backtest.bars_per_year
    return {
        "annual_return": annual_return(returns, year),
        "annual_volatility": annual_volatility(returns, year),
        "sharpe": sharpe(returns, cash, year),
        "sortino": sortino(returns, cash, year),
        "calmar": calmar(returns, year),
        "max_drawdown": max_drawdown(returns),
        "cvar": cvar(returns, alpha),
        "annual_turnover": annual_turnover(backtest.turnover[chosen], year),
        "annual_cost": annual_cost(backtest.costs[chosen], year),
    }


def _deviation(values: FloatArray) -> FloatArray:
    if values.shape[-1] < 2:
        return np.full(values.shape[:-1], np.nan)
    return np.asarray(values.std(axis=-1, ddof=1))


def _ratio(excess: FloatArray, risk: FloatArray, bars_per_year: int) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sqrt(float(bars_per_year)) * excess.mean(axis=-1) / risk
    return np.where(risk > FLAT, ratio, np.nan)
