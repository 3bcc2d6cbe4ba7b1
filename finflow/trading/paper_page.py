"""`paper.html` and `paper.json`: a paper account compared with its backtest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from finflow.arrays import FloatArray
from finflow.evaluation.page.drawing import BLUE, LIGHT_GREY, TIMES, Rendered, date_axis, legend_of_figure, render
from finflow.evaluation.page.page_numbers import Number, Shown, about
from finflow.evaluation.page.section import ROW, Section, columns_of, figure_section, make_table
from finflow.evaluation.page.whole_page import Headline, Page, Tile
from finflow.market.panel import MarketPanel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


LATEST = 10  # evenings in the table
ALPHA = 0.05
FEWEST = 63  # returns of the backtest that an expectation needs
SHIFT = 2.0  # scale of the alternatives: shifts of the annual Sharpe ratio
LAGS = 10  # bars over which autocorrelation of returns counts
HORIZON = 100  # years in which the band may come to exclude an account that earns nothing


@dataclass(frozen=True)
class Expectation:
    """Distribution of a bar's log return by a backtest of ``count`` bars; ``ratio`` is long-run over plain variance."""

    mean: float
    deviation: float
    count: int
    bars_per_year: int
    ratio: float = 1.0

    @classmethod
    def of(cls, returns: FloatArray, bars_per_year: int) -> Expectation | None:
        """That of the simple returns of a backtest; None where they are too few, or do not move."""
        logs = np.log1p(returns[np.isfinite(returns) & (returns > -1.0)])
        if len(logs) < FEWEST or not float(logs.std()) > 0.0:
            return None
        return cls(float(logs.mean()), float(logs.std(ddof=1)), len(logs), bars_per_year, variance_ratio(logs))

    def _clock(self, returns: FloatArray) -> FloatArray:
        return self.ratio * np.cumsum(np.square((np.log1p(returns) - self.mean) / self.deviation))

    def _factors(self, clock: FloatArray) -> tuple[FloatArray, FloatArray]:
        """``q`` and ``k`` of the evidence at each value of the clock, (n,)."""
        known, shift = 1.0 + clock / self.count, SHIFT**2 / self.bars_per_year
        return shift * clock / known, shift / np.square(self.deviation * known)

    def log_evidence(self, returns: FloatArray) -> FloatArray:
        """Logarithm of the evidence against the expectation after each return of an account, (n,)."""
        excess = np.cumsum(np.log1p(returns) - self.mean)
        spread, weight = self._factors(self._clock(returns))
        return np.asarray(0.5 * (excess**2 * weight / (1.0 + spread) - np.log1p(spread)), dtype=np.float64)

    def band(self, returns: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Edges of the account's growth, of 1 invested, after each of its returns: low and high, (n,)."""
        width = self._width(self._clock(returns))
        middle = self.mean * np.arange(1.0, len(returns) + 1.0)
        return np.exp(middle - width), np.exp(middle + width)

    def _width(self, clock: FloatArray) -> FloatArray:
        spread, weight = self._factors(clock)
        return np.asarray(np.sqrt((2.0 * math.log(1.0 / ALPHA) + np.log1p(spread)) * (1.0 + spread) / weight))

    def told_from(self, returns: FloatArray) -> int | None:
        """Returns, these included, after which the band excludes an account that earns nothing; None for never.

        The least ``n`` with ``n |mean| > sqrt((2 log(1 / ALPHA) + log(1 + q)) (1 + q) / k)``, where ``q`` and ``k`` are
        those of the clock after ``n`` returns, of which those to come deviate like the backtest's.
        """
        clock = np.append(0.0, self._clock(returns))
        clock = np.append(clock, clock[-1] + self.ratio * np.arange(1.0, HORIZON * self.bars_per_year + 1.0))[1:]
        told = np.flatnonzero(np.arange(1.0, len(clock) + 1.0) * abs(self.mean) > self._width(clock))
        later = told[told >= len(returns) - 1]
        return int(later[0]) + 1 if later.size else None

    def left_on(self, returns: FloatArray) -> int | None:
        """First return after which the account was outside what was expected; None where it never was."""
        outside = np.flatnonzero(self.log_evidence(returns) >= -math.log(ALPHA))
        return int(outside[0]) if outside.size else None


def variance_ratio(returns: FloatArray) -> float:
    """Long-run over plain variance of returns, with Bartlett's weights for `LAGS` lags; 1 where it is less."""
    centred = returns - returns.mean()
    shared = sum((1.0 - lag / (LAGS + 1.0)) * float(centred[lag:] @ centred[:-lag]) for lag in range(1, LAGS + 1))
    return max(1.0, 1.0 + 2.0 * shared / float(centred @ centred))


@dataclass(frozen=True)
class PaperDay:
    """One evening of a paper account."""

    date: Annotated[str, about("Bar.")]
    value: Annotated[float, about("Value before the fill, in money."), Shown("value", ",")]
    simple_return: Annotated[Number, about("Net, to this bar; null at the first."), Shown("return", "%", plus=True)]
    turnover: Annotated[float, about("Of the fill."), Shown("turnover", "%")]
    cost: Annotated[float, about("Of the fill, a fraction of wealth.")]
    low: Annotated[Number, about("Lower edge of the band, in money; null without one."), Shown("expected from", ",")]
    high: Annotated[Number, about("Upper edge of the band, in money; null without one."), Shown("to", ",")]
    evidence: Annotated[Number, about("20 or more is outside the band, at 5 %."), Shown("evidence against it")]
    equal_weight: Annotated[Number, about("Equal weight at the ledger's costs, in money."), Shown("equal weight", ",")]
    benchmark: Annotated[Number, about("The benchmark without costs, in money; null without."), Shown("benchmark", ",")]


@dataclass(frozen=True)
class PaperNumbers:
    """Numbers of a paper account."""

    account: Annotated[str, about("First day that a decision fills on; the name of the account.")]
    date: Annotated[str, about("Newest bar.")]
    value: Annotated[float, about("Value at it, in money."), Shown("Account", ",")]
    total_return: Annotated[float, about("Net return since the beginning."), Shown("Net return", "%", plus=True)]
    sharpe: Annotated[
        Number, about("Sharpe ratio in excess of cash, a year; null for less than two returns."), Shown("Sharpe ratio")
    ]
    turnover: Annotated[float, about("Sum over all fills."), Shown("Turnover so far", TIMES)]
    outside_since: Annotated[
        str | None, about("First bar at which it was outside the expected band; null where it never was.")
    ]
    expected_from: Annotated[int, about("Returns of the backtest behind the expectation; 0 without one.")]
    told: Annotated[bool, about("True where the band leaves out an account that has earned nothing.")]
    told_from: Annotated[int | None, about("Returns after which it should, or does; null where it never does.")]
    days: Annotated[list[PaperDay], about("Every evening since the first fill.")]


def paper_numbers(
    lines: Sequence[Mapping[str, Any]], expected: Expectation | None, panel: MarketPanel, equal: Mapping[str, float]
) -> PaperNumbers:
    """Numbers of an account from its evenings, as the log has them, the panel, and equal weight's values by date."""
    filled = [line for line in lines if line["filled"] is not None]
    ended = [line for line in filled if line["simple_return"] is not None]
    returns = np.array([line["simple_return"] for line in ended])
    capital = float(lines[0]["wealth"])
    low = high = evidence = np.full(len(returns), math.nan)
    left = None
    if expected is not None and len(returns):
        low, high = (capital * edge for edge in expected.band(returns))
        evidence, left = np.exp(expected.log_evidence(returns)), expected.left_on(returns)
    edges = np.pad(np.stack([low, high, evidence]), ((0, 0), (len(filled) - len(returns), 0)), constant_values=math.nan)
    index = np.full(panel.n_bars, math.nan) if panel.benchmark is None else panel.benchmark
    beside = [(equal.get(line["date"], math.nan), index[panel.bars_until(line["date"]) - 1]) for line in filled]
    others = capital * np.array(beside).reshape(-1, 2) / np.array(beside[:1]).reshape(-1, 2)
    gained = [math.nan] * (len(filled) - len(returns)) + returns.tolist()
    rows = zip(filled, gained, edges.T.tolist(), others.tolist(), strict=True)
    days = [PaperDay(one["date"], one["wealth"], net, one["turnover"], one["cost"], *a, *b) for one, net, a, b in rows]
    cash = np.array([panel.cash_returns[panel.bars_until(line["date"]) - 1] for line in ended])
    spread = float((returns - cash).std(ddof=1)) if len(returns) > 1 else 0.0
    value = float(lines[-1]["wealth"])
    return PaperNumbers(
        account=str(lines[0]["account"]),
        date=str(lines[-1]["date"]),
        value=value,
        total_return=value / capital - 1.0,
        sharpe=float((returns - cash).mean()) / spread * math.sqrt(panel.bars_per_year) if spread > 0.0 else math.nan,
        turnover=float(sum(line["turnover"] for line in lines)),
        outside_since=None if left is None else ended[left]["date"],
        expected_from=0 if expected is None else expected.count,
        told=bool(len(low) and (low[-1] > capital or high[-1] < capital)),
        told_from=None if expected is None else expected.told_from(returns),
        days=days,
    )


def paper_page(numbers: PaperNumbers) -> Page:
    if not numbers.expected_from:
        kind, heading = "not-compared", "Paper account"
        text = "The run has no backtest before the account began: there is no expected band."
    elif numbers.outside_since is not None:
        kind, heading = "behind", "Outside the expected band"
        text = f"Since {numbers.outside_since} the account is outside the band that its backtest implies (5 %)."
    elif not numbers.told:
        kind, heading = "not-shown", "Nothing can be distinguished yet"
        when = f"it would not tell them apart in {HORIZON} years, by a backtest of {numbers.expected_from:,} returns"
        told = f"it tells them apart from about {numbers.told_from or 0:,} evenings on"
        when = when if numbers.told_from is None else told
        text = f"The band (5 %) holds both the backtest and an account that earns nothing; {when}."
    else:
        kind, heading = "ahead", "As expected"
        text = "The account is within the band that its backtest implies (5 %, at every check)."
    # a Sharpe ratio of a few days is noise: it is in the file alone
    shown = [one for one in columns_of(PaperNumbers) if numbers.told or one[1].path != ("sharpe",)]
    tiles, others = [Tile(name, cell) for name, cell in shown], _compared(numbers)
    beside = columns_of(PaperDay, "days", str(len(numbers.days) - 1), names=others)
    tiles += [Tile(name.capitalize(), cell) for name, cell in beside]
    finding = Headline("", heading, words=(text,), kind=kind, label="Paper account", tiles=tuple(tiles))
    method = (
        "The value is before the fill of the evening, after the costs of all fills before it.",
        "Equal weight is rebalanced every evening from the first fill on, at the prices and costs of the run's ledger.",
        *["The benchmark is held from the first fill on, without costs."] * ("benchmark" in others),
        f"The band holds an account that behaves like its backtest, at all times, with a probability of "
        f"{1 - ALPHA:.0%} at least: it comes from the {numbers.expected_from:,} returns of the backtest before the "
        "account began, and includes the uncertainty of their mean. It may be checked every day.",
        "The band widens with the account's own squared deviations, so that a turbulent market alone is no evidence.",
    )
    rows = [((str(n),), day.date) for n, day in enumerate(numbers.days)][-LATEST:]
    columns = [one for one in columns_of(PaperDay, "days", ROW) if one[0] != "benchmark" or "benchmark" in others]
    table = make_table("Evenings", "Evening", rows, columns, heading=False)
    sections = [
        *([figure_section(_figure(numbers))] if len(numbers.days) > 1 else []),
        Section("evenings", "Latest evenings", tables=(table,)),
        Section("method", "How it is tested", notes=method),
    ]
    evenings = f"{len(numbers.days):,} evenings, up to {numbers.date}"
    return Page(f"Paper account of {numbers.account}", evenings, finding, sections, numbers)


def _compared(numbers: PaperNumbers) -> list[str]:
    """Columns of the evenings with values that the account is compared with."""
    return [name for name in ("equal_weight", "benchmark") for day in numbers.days[-1:] if getattr(day, name) > 0.0]


def _figure(numbers: PaperNumbers) -> Rendered:
    dates = np.array([day.date for day in numbers.days], dtype="datetime64[D]")
    values, low, high = (np.array([getattr(day, name) for day in numbers.days]) for name in ("value", "low", "high"))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        if numbers.expected_from:
            axes.fill_between(dates, low, high, color=LIGHT_GREY, label="to be expected", linewidth=0.0)
        for name, dash in zip(_compared(numbers), ("--", ":"), strict=False):
            others = [getattr(day, name) for day in numbers.days]
            axes.plot(dates, others, color="black", linestyle=dash, label=name.replace("_", " "))
        axes.plot(dates, values, color=BLUE, label="account")
        axes.set_ylabel("value, in money")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        date_axis(axes, dates)
        legend_of_figure(figure, axes)

    return Rendered(
        "account",
        "Account",
        "Value of the account every evening beside what it is compared with, and the band that its backtest implies.",
        f"Line chart of the account's value: {values[0]:,.0f} at first, {values[-1]:,.0f} at the end.",
        render(draw, 3.6),
    )
