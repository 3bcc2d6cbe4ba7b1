"""Pairs of segments of strategies, and their files: JSON lines or CSV."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from finflow.errors import FinflowError
from finflow.files import read_text_input, write_atomically

NAME = "file of pairs"
COLUMNS = (*(f"{which}_{name}" for which in ("first", "second") for name in ("strategy", "start", "end")), "better")
Better = Literal["first", "second", "tie"]
SETTINGS = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


class Segment(BaseModel):
    """Consecutive holding periods of a strategy that is simulated on the configured market.

    Attributes
    ----------
    strategy : str
        Name of a strategy, or its import path.
    start, end : date
        First and last day on which one of its holding periods ends, as the dates of a backtest's returns.
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
    """Two segments, and which is better.

    Attributes
    ----------
    better : {"first", "second", "tie"}
    chance : float or None
        Probability of the answer "first", where it is known: of a synthetic judge.
    """

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


class PairFile(NamedTuple):
    """Pairs of one or several files.

    Attributes
    ----------
    places : tuple of str
        File and line of each, for messages.
    """

    pairs: tuple[Pair, ...]
    places: tuple[str, ...]

    def line(self) -> str:
        """Numbers of pairs, ties and contradictory answers, whichever segment of a pair is named first, in a line."""
        answers: dict[frozenset[Segment], set[Segment | None]] = {}
        for pair in self.pairs:
            chosen = {"first": pair.first, "second": pair.second, "tie": None}[pair.better]
            answers.setdefault(frozenset((pair.first, pair.second)), set()).add(chosen)
        contradictions = sum(len(found) > 1 for found in answers.values())
        text = f"{len(self.pairs):,} pairs, {count_ties(self.pairs):,} ties"
        if contradictions:
            text += f"; {contradictions:,} pairs of segments have contradictory answers, all of which count"
        return text


def count_ties(pairs: Sequence[Pair]) -> int:
    return sum(pair.better == "tie" for pair in pairs)


def read_pairs(paths: Sequence[Path]) -> PairFile:
    """Read pairs of segments.

    Parameters
    ----------
    paths : sequence of Path
        ``.csv`` files with the columns `COLUMNS`; other files have an object of JSON in every line.

    Raises
    ------
    FinflowError
        For a file that is missing or empty, and for the first line that is no pair, with its number.
    """
    places: list[str] = []
    pairs: list[Pair] = []
    for path in paths:
        text = read_text_input(path, NAME, FinflowError)
        rows = _csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text)
        found = [(place, _pair(place, row)) for place, row in rows]
        if not found:
            raise FinflowError(f"the {NAME} {path} is empty: it needs a pair of segments a line")
        places += [place for place, _ in found]
        pairs += [pair for _, pair in found]
    return PairFile(tuple(pairs), tuple(places))


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as JSON lines, or as CSV where the file is named so; the whole file or nothing."""
    if path.suffix.lower() != ".csv":
        write_atomically(path, "".join(f"{json_line(pair)}\n" for pair in pairs))
        return
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*COLUMNS, "chance"])
    writer.writerows(
        [*pair.first.model_dump().values(), *pair.second.model_dump().values(), pair.better, pair.chance]
        for pair in pairs
    )
    write_atomically(path, stream.getvalue())


def json_line(pair: Pair) -> str:
    """A pair as a line of JSON, without its end."""
    return json.dumps(pair.model_dump(mode="json", exclude_none=True), ensure_ascii=False, allow_nan=False)


def _json_rows(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            yield place, json.loads(line)
        except (ValueError, RecursionError):
            raise FinflowError(f"{place}: this is not JSON; a line is an object of first, second and better") from None


def _csv_rows(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    reader = csv.DictReader(io.StringIO(text), restkey="a cell without a column", skipinitialspace=True, strict=True)
    try:
        for row in reader:
            content: dict[str, Any] = {"first": {}, "second": {}}
            for column, value in row.items():
                which, _, name = column.strip().partition("_")
                if value:
                    place, key = (content[which], name) if which in content else (content, column)
                    place[key] = value
            yield f"{path}, line {reader.line_num}", content
    except csv.Error as error:
        raise FinflowError(f"{path}, line {reader.line_num}: this is not CSV: {error}") from None


def _pair(place: str, content: Any) -> Pair:
    try:
        return Pair.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise FinflowError(f"{place}: {where + ': ' if where else ''}{' '.join(message.split())}") from None
