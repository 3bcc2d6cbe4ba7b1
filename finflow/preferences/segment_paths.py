"""Paths of portfolios that segments are cut from: of a stored backtest, or of a strategy simulated on the market."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.config import EvaluationConfig
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.errors import FinflowError, one_line
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.memory_limit import read_table
from finflow.preferences.pairs import Segment
from finflow.strategies.classical import named_strategy
from finflow.strategies.strategy import Information, Strategy

FloatArray = NDArray[np.float64]
Source = tuple[str | None, str]
REPORTS = "reports"
RANDOM = "random-"
PURPOSE = 91  # of the generators of random portfolios
PERIODS = (1, 5, 21, 63)
"""Decisions between two draws, by the seed's remainder."""


@dataclass(frozen=True, eq=False)
class PortfolioPath:
    """Holding periods of one strategy, or a segment of them.

    Attributes
    ----------
    dates : datetime64[D] (steps,)
        Day at which each holding period ends.
    returns : float64 (steps,)
        Simple returns net of costs.
    turnover : float64 (steps,)
        Of the trade that opened each period, as a share of wealth.
    costs : float64 (steps,)
        Share of wealth paid for it.
    held, filled : float64 (steps, K)
        Weights before that trade, as observed, and right after it; cash last.
    """

    dates: NDArray[np.datetime64]
    returns: FloatArray
    turnover: FloatArray
    costs: FloatArray
    held: FloatArray
    filled: FloatArray

    def __len__(self) -> int:
        return len(self.dates)

    @classmethod
    def of(cls, run: Backtest) -> PortfolioPath:
        """The path of a backtest, which starts in cash."""
        return cls(run.dates, run.returns, run.turnover, run.costs, held_before(run.weights), run.weights)

    def rows(self, start: int, stop: int) -> PortfolioPath:
        """Some of the holding periods."""
        return PortfolioPath(*(getattr(self, field.name)[start:stop] for field in fields(self)))


def held_before(weights: FloatArray) -> FloatArray:
    """Weights held before each trade, (steps, K), of those right after it: all in cash before the first."""
    before: FloatArray = np.roll(weights, 1, axis=0)
    before[0] = 0.0
    before[0, -1] = 1.0
    return before


def random_seed(name: str) -> int | None:
    """The seed in a name such as ``random-7``; None in any other name."""
    found = re.fullmatch(rf"{RANDOM}(0|[1-9][0-9]{{0,8}})", name)
    return None if found is None else int(found[1])


class RandomPortfolios:
    """Portfolios of the coverage mixture, drawn anew at every 1st, 5th, 21st or 63rd decision.

    Parameters
    ----------
    seed : int
        Draws the portfolios; its remainder modulo 4 chooses how often.
    """

    def __init__(self, seed: int) -> None:
        self.name = f"{RANDOM}{seed}"
        self._period = PERIODS[seed % len(PERIODS)]
        self._generator = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed]))

    def decide(self, information: Information) -> FloatArray:
        """A new portfolio of what is listed, or the present one, which trades nothing."""
        if information.step % self._period:
            return information.portfolio
        listed = information.listed[None]
        drawn: FloatArray = draw_coverage(self._generator, 1, len(information.portfolio), listed)[0][0]
        return drawn


class SegmentMarket(NamedTuple):
    """Market that segments lie in.

    Attributes
    ----------
    window : range
        Bars that may be learned from: never those of the test window.
    evaluation : EvaluationConfig
        Settings of named strategies.
    """

    process: DecisionProcess
    window: range
    evaluation: EvaluationConfig

    @property
    def span(self) -> tuple[np.datetime64, np.datetime64]:
        """First and last day at which a holding period ends."""
        bars = self.process.decision_bars(self.window)
        dates = self.process.panel.dates
        return dates[bars.start + 1], dates[bars.stop]


def segment_strategy(name: str, evaluation: EvaluationConfig) -> Strategy:
    """Make a strategy that a segment names: ``random-N``, or one that a backtest knows.

    Raises
    ------
    FinflowError
        If there is no such strategy.
    """
    seed = random_seed(name)
    return named_strategy(name, evaluation) if seed is None else RandomPortfolios(seed)


def simulate_strategies(market: SegmentMarket, names: Sequence[str]) -> dict[str, PortfolioPath]:
    """Backtest strategies over the whole window, each from cash on.

    Returns
    -------
    dict
        Name -> path.
    """
    if not names:
        return {}
    strategies = [segment_strategy(name, market.evaluation) for name in names]
    runs = run_backtests(market.process, market.window, strategies)
    return {name: PortfolioPath.of(run) for name, run in zip(names, runs, strict=True)}


def stored_path(run: str, strategy: str, process: DecisionProcess) -> PortfolioPath:
    """The path of a strategy in the report of a run: `returns.csv`, `holdings.parquet` and `trades.parquet`.

    Turnover and costs are those of the trades that the report lists; a change of the weights that the costs of a trade
    make is left out of its turnover.

    Parameters
    ----------
    run : str
        The run folder.
    strategy : str
        As the report names it; one whose holdings it keeps: the judged one.
    process : DecisionProcess
        Of the market, for the names and the order of its assets, and for the dates of the fills.

    Raises
    ------
    FinflowError
        If there is no such run or report, the report keeps no holdings of the strategy, or the assets differ.
    """
    folder = Path(run) / REPORTS
    if not folder.is_dir():
        raise FinflowError(f"there is no run {run} with a report: name a run folder that was evaluated or backtested")
    try:
        return _path_in(folder, run, strategy, process)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise FinflowError(f"the report of the run {run} cannot be read: {one_line(error)}") from None


def _path_in(folder: Path, run: str, strategy: str, process: DecisionProcess) -> PortfolioPath:
    """The same, where the tables are those of a report; other errors where they are not."""
    returns = pd.read_csv(folder / "returns.csv", index_col="date")
    held, traded = (read_table(folder / f"{name}.parquet") for name in ("holdings", "trades"))
    held, traded = held[held["strategy"] == strategy], traded[traded["strategy"] == strategy]
    if not len(held) or strategy not in returns:
        raise FinflowError(
            f"the run {run} keeps no holdings of {strategy!r}: name the strategy that its report judges, or leave the "
            "run out to simulate it on the configured market"
        )
    names = [*process.panel.assets, "cash"]
    foreign = sorted(set(held["asset"].astype(str)) - set(names))
    if foreign:
        raise FinflowError(f"the run {run} holds {foreign[0]}, which the configured market does not have")
    ends = np.asarray(returns.index, dtype="datetime64[D]")
    bars = np.searchsorted(process.panel.dates, ends)
    outside = (bars >= process.panel.n_bars) | (process.panel.dates[bars.clip(max=process.panel.n_bars - 1)] != ends)
    inside = ~outside & (bars > 0)
    fills = process.panel.dates[(bars - 1).clip(min=0, max=process.panel.n_bars - 1)]
    weights = _by_date(held, "weight", fills, names)
    costs, turnover = _trades(held, traded, fills)
    path = PortfolioPath(ends, returns[strategy].to_numpy(), turnover, costs, held_before(weights), weights)
    kept = np.flatnonzero(inside)
    if not len(kept):
        return path.rows(0, 0)
    return path.rows(int(kept[0]), int(kept[-1]) + 1)


def _by_date(table: pd.DataFrame, column: str, days: NDArray[np.datetime64], names: list[str]) -> FloatArray:
    """A column as an array (days, names), zero where there is no row."""
    plain = table.assign(asset=table["asset"].astype(str), date=table["date"].to_numpy().astype("datetime64[D]"))
    wide = plain.pivot(index="date", columns="asset", values=column)
    wide.index = pd.Index(wide.index.to_numpy().astype("datetime64[D]"))
    return np.asarray(wide.reindex(index=pd.Index(days), columns=names).fillna(0.0), dtype=np.float64)


def _trades(held: pd.DataFrame, traded: pd.DataFrame, days: NDArray[np.datetime64]) -> tuple[FloatArray, FloatArray]:
    """Costs as a share of wealth, and turnover, of the trades of each day, (days,) each."""

    def daily(table: pd.DataFrame, values: pd.Series[float]) -> FloatArray:
        total = values.groupby(table["date"].to_numpy().astype("datetime64[D]")).sum()
        total.index = pd.Index(total.index.to_numpy().astype("datetime64[D]"))
        return np.asarray(total.reindex(pd.Index(days)).fillna(0.0), dtype=np.float64)

    sold = traded[traded["side"] != "end"]
    paid = daily(sold, sold["cost"])
    change = sold["after"] - sold["before"]
    turnover = 0.5 * (daily(sold, change.abs()) + np.abs(daily(sold, change)))
    return paid / np.maximum(daily(held, held["value"]) + paid, 1e-12), turnover


def paths_of(market: SegmentMarket, sources: Iterable[Source]) -> dict[Source, PortfolioPath]:
    """Paths of all sources that segments name: stored ones read, the others simulated together.

    Raises
    ------
    FinflowError
        If a run or a strategy is unknown.
    """
    chosen = list(dict.fromkeys(sources))
    simulated = simulate_strategies(market, [name for run, name in chosen if run is None])
    return {
        (run, name): simulated[name] if run is None else stored_path(run, name, market.process) for run, name in chosen
    }


def cut(path: PortfolioPath, segment: Segment, market: SegmentMarket) -> PortfolioPath:
    """Cut a segment out of its path.

    Raises
    ------
    FinflowError
        If its dates lie outside the path, or outside the window of the market.
    """
    start, end = np.datetime64(segment.start), np.datetime64(segment.end)
    first, last = market.span
    if len(path):
        first, last = max(first, path.dates[0]), min(last, path.dates[-1])
    if not len(path) or start < first or end > last:
        span = f"{first} to {last}" if len(path) and first <= last else "no day in common"
        raise FinflowError(
            f"the dates {segment.start} to {segment.end} of {segment.strategy} lie outside its holding periods in the "
            f"training window ({span})"
        )
    rows = np.searchsorted(path.dates, [start, end + np.timedelta64(1, "D")])
    found = path.rows(int(rows[0]), int(rows[1]))
    if not len(found):
        raise FinflowError(f"no holding period of {segment.strategy} ends from {segment.start} to {segment.end}")
    return found
