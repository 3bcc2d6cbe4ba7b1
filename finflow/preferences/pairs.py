"""Pairs of segments of strategies, their files (JSON lines or CSV), and the paths that segments are cut from."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from finflow.arrays import DateArray, FloatArray
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.errors import FinflowError, refuse
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.files import read_text_input, write_atomically
from finflow.strategies.classical import named_strategy
from finflow.strategies.strategy import Information, Strategy

NAME = "file of pairs"
COLUMNS = (*(f"{which}_{name}" for which in ("first", "second") for name in ("strategy", "start", "end")), "better")
Better = Literal["first", "second", "tie"]
SETTINGS = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


class Segment(BaseModel):
    """Consecutive holding periods of a strategy, which is named or has an import path, on the configured market.

    Its holding periods end from ``start`` to ``end``, days as the dates of a backtest's returns.
    """

    model_config = SETTINGS

    strategy: str = Field(min_length=1)
    start: dt.date
    end: dt.date

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end < self.start:
            raise ValueError(f"the segment ends on {self.end}, before it starts on {self.start}")
        return self


class Pair(BaseModel):
    """Two segments, and which is better; ``chance`` of the answer "first", where it is known: of a synthetic judge."""

    model_config = SETTINGS

    first: Segment
    second: Segment
    better: Better
    chance: float | None = Field(None, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _different(self) -> Self:
        if self.first == self.second:
            one = self.first
            raise ValueError(f"both segments are the same, {one.strategy} from {one.start} to {one.end}")
        return self

    @property
    def target(self) -> float:
        """Share of the preference that goes to the first: 1, 0, or a half of a tie."""
        return {"first": 1.0, "second": 0.0, "tie": 0.5}[self.better]

    def line(self) -> str:
        """The pair as a line of JSON, without its end."""
        return self.model_dump_json(exclude_none=True)


class PairFile(NamedTuple):
    """Pairs of one or several files, or of a judge; ``places`` are the file and line of each, for messages."""

    pairs: tuple[Pair, ...]
    places: tuple[str, ...]

    @property
    def attainable(self) -> float:
        """Expected accuracy of a judge's more frequent answers, over the pairs that are no ties; 0.5 where all are."""
        decided = np.array([pair.chance for pair in self.pairs if pair.better != "tie"], dtype=np.float64)
        return float(np.maximum(decided, 1.0 - decided).mean()) if len(decided) else 0.5

    def line(self) -> str:
        """Numbers of pairs, ties and contradictory answers, whichever segment of a pair is named first, in a line."""
        chosen = [{"first": one.first, "second": one.second, "tie": None}[one.better] for one in self.pairs]
        answers = {(frozenset((one.first, one.second)), best) for one, best in zip(self.pairs, chosen, strict=True)}
        contradictions = sum(count > 1 for count in Counter(compared for compared, _ in answers).values())
        text = f"{len(self.pairs):,} pairs, {chosen.count(None):,} ties"
        if contradictions:
            text += f"; {contradictions:,} pairs of segments have contradictory answers, all of which count"
        return text


def read_pairs(paths: Sequence[Path]) -> PairFile:
    """Read pairs from ``.csv`` files with the columns `COLUMNS`; other files have an object of JSON in every line.

    Raises FinflowError for a file that is missing or empty, and for the first line that is no pair, with its number.
    """
    places: list[str] = []
    pairs: list[Pair] = []
    for path in paths:
        text = read_text_input(path, NAME, FinflowError)
        lines = enumerate(text.splitlines(), start=1)
        rows = _csv_rows(path, text) if path.suffix.lower() == ".csv" else ((n, one) for n, one in lines if one.strip())
        before = len(pairs)
        for number, row in rows:
            places.append(f"{path}, line {number}")
            try:
                pairs.append(Pair.model_validate_json(row) if isinstance(row, str) else Pair.model_validate(row))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                where = ".".join(str(part) for part in first["loc"])
                message = " ".join(first["msg"].removeprefix("Value error, ").split())
                raise FinflowError(f"{places[-1]}: {where + ': ' if where else ''}{message}") from None
        refuse(len(pairs) == before, f"the {NAME} {path} is empty: it needs a pair of segments a line")
    return PairFile(tuple(pairs), tuple(places))


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as JSON lines, or as CSV where the file is named so; the whole file or nothing."""
    if path.suffix.lower() != ".csv":
        write_atomically(path, "".join(f"{pair.line()}\n" for pair in pairs))
        return
    table = pd.json_normalize([pair.model_dump(mode="json") for pair in pairs], sep="_")
    write_atomically(path, table[[*COLUMNS, "chance"]].to_csv(index=False, lineterminator="\n"))


def _csv_rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(io.StringIO(text), restkey="a cell without a column", skipinitialspace=True, strict=True)
    try:
        for row in reader:
            content: dict[str, Any] = {"first": {}, "second": {}}
            for column, value in row.items():
                which, _, name = column.strip().partition("_")
                if value:
                    place, key = (content[which], name) if which in content else (content, column)
                    place[key] = value
            yield reader.line_num, content
    except csv.Error as error:
        raise FinflowError(f"{path}, line {reader.line_num}: this is not CSV: {error}") from None


RANDOM = "random-"
PURPOSE = 91  # of the generators of random portfolios
PERIODS = (1, 5, 21, 63)
"""Decisions between two draws, by the seed's remainder."""


@dataclass(frozen=True, eq=False)
class PortfolioPath:
    """Holding periods of one strategy, or a segment of them."""

    dates: DateArray  # (steps,), day at which each holding period ends
    returns: FloatArray  # (steps,), simple and net of costs
    turnover: FloatArray  # (steps,), of the trade that opened each period, as a share of wealth
    costs: FloatArray  # (steps,), share of wealth paid for it
    held: FloatArray  # (steps, K), weights before that trade, as observed; cash last
    filled: FloatArray  # and right after it

    def __len__(self) -> int:
        return len(self.dates)

    @classmethod
    def of(cls, run: Backtest) -> PortfolioPath:
        """The path of a backtest, which starts in cash."""
        held = np.roll(run.weights, 1, axis=0)
        held[0] = np.eye(held.shape[1])[-1]
        return cls(run.dates, run.returns, run.turnover, run.costs, held, run.weights)

    def rows(self, start: int, stop: int) -> PortfolioPath:
        return PortfolioPath(*(getattr(self, field.name)[start:stop] for field in fields(self)))


class RandomPortfolios:
    """Portfolios of the coverage mixture, drawn by a seed anew at every 1st, 5th, 21st or 63rd decision."""

    def __init__(self, seed: int) -> None:
        self.name = f"{RANDOM}{seed}"
        self._period = PERIODS[seed % len(PERIODS)]
        self._generator = np.random.default_rng(np.random.SeedSequence([PURPOSE, seed]))

    def decide(self, information: Information) -> FloatArray:
        """A new portfolio of what is listed, or the present one, which trades nothing."""
        if information.step % self._period:
            return information.portfolio
        drawn, _ = draw_coverage(self._generator, 1, len(information.portfolio), information.listed[None])
        return np.asarray(drawn[0])


class SegmentMarket(NamedTuple):
    """Market that segments lie in; ``window`` has the bars that may be learned from, never those of the test window."""

    process: DecisionProcess
    window: range
    config: Config


def simulate_strategies(market: SegmentMarket, names: Iterable[str]) -> dict[str, PortfolioPath]:
    """Backtest strategies, ``random-N`` or names that a backtest knows, over the whole window: name -> path.

    Raises FinflowError if there is no such strategy.
    """
    strategies: dict[str, Strategy] = {}
    for name in names:
        found = re.fullmatch(rf"{RANDOM}(0|[1-9][0-9]{{0,8}})", name)
        strategies[name] = RandomPortfolios(int(found[1])) if found else named_strategy(name, market.config.evaluation)
    runs = run_backtests(market.process, market.window, list(strategies.values()))
    return {name: PortfolioPath.of(run) for name, run in zip(strategies, runs, strict=True)}


def cut(path: PortfolioPath, segment: Segment) -> PortfolioPath:
    """Cut a segment out of the path of its strategy.

    Raises FinflowError if its dates lie outside the path, or no holding period ends on them.
    """
    start, end = np.datetime64(segment.start), np.datetime64(segment.end)
    dates = f"{segment.start} to {segment.end}"
    refuse(
        start < path.dates[0] or end > path.dates[-1],
        f"the dates {dates} of {segment.strategy} lie outside its holding periods in the training window "
        f"({path.dates[0]} to {path.dates[-1]})",
    )
    first, last = np.searchsorted(path.dates, [start, end + np.timedelta64(1, "D")])
    refuse(first == last, f"no holding period of {segment.strategy} ends from {dates}")
    return path.rows(int(first), int(last))
