"""Pairs of segments of strategies, and their files: CSV or JSON lines, read, written, and appended to."""

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
from finflow.line_file import append_line, drop_last_line

NAME = "file of pairs"
SEGMENT_COLUMNS = ("run", "strategy", "start", "end")
COLUMNS = (*(f"{which}_{name}" for which in ("first", "second") for name in SEGMENT_COLUMNS), "better")
OPTIONAL = ("first_run", "second_run", "chance")
Better = Literal["first", "second", "tie"]


class _Record(BaseModel):
    """Base of records: immutable, without unknown names, NaN or infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


class Segment(_Record):
    """Consecutive holding periods of a strategy.

    Attributes
    ----------
    strategy : str
        Name of a strategy, or its import path.
    start, end : date
        First and last day on which one of its holding periods ends, as the dates of a backtest's returns.
    run : str or None
        Folder of the run whose stored backtest it is cut from; None for a strategy simulated on the configured market.
    """

    strategy: str = Field(min_length=1)
    start: dt.date
    end: dt.date
    run: str | None = None

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end < self.start:
            raise ValueError(f"the segment ends on {self.end}, before it starts on {self.start}")
        return self

    @property
    def source(self) -> tuple[str | None, str]:
        """Run and strategy, by which segments share a path."""
        return self.run, self.strategy

    def __str__(self) -> str:
        of = "" if self.run is None else f" of {self.run}"
        return f"{self.strategy}{of} from {self.start} to {self.end}"


class Pair(_Record):
    """Two segments, and which is better.

    Attributes
    ----------
    better : {"first", "second", "tie"}
    chance : float or None
        Probability of the answer "first", where it is known: of a synthetic judge.
    """

    first: Segment
    second: Segment
    better: Better
    chance: float | None = Field(None, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _different(self) -> Self:
        if self.first == self.second:
            raise ValueError(f"both segments are the same, {self.first}")
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
    contradictions : int
        Pairs of segments with different answers.
    """

    pairs: tuple[Pair, ...]
    places: tuple[str, ...]
    contradictions: int

    @property
    def ties(self) -> int:
        """Number of ties."""
        return sum(pair.better == "tie" for pair in self.pairs)

    def line(self) -> str:
        """The file in a line."""
        text = f"{len(self.pairs):,} pairs, {self.ties:,} ties"
        if self.contradictions:
            text += f"; {self.contradictions:,} pairs of segments have contradictory answers, all of which count"
        return text


def read_pairs(paths: Sequence[Path]) -> PairFile:
    """Read pairs of segments.

    Parameters
    ----------
    paths : sequence of Path
        ``.csv`` files with the columns ``first_run`` (may be empty or left out), ``first_strategy``, ``first_start``,
        ``first_end``, the same of ``second_``, and ``better``; other files have an object of JSON in every line.

    Raises
    ------
    FinflowError
        One line, with the number of the line: for a file that is missing or empty, and for the first line that is no
        pair. Contradictory answers are counted, and are no error.
    """
    pairs: list[Pair] = []
    places: list[str] = []
    for path in paths:
        text = read_text_input(path, NAME, FinflowError)
        rows = _csv_rows(path, text) if path.suffix.lower() == ".csv" else _json_rows(path, text)
        before = len(pairs)
        for place, row in rows:
            pairs.append(_pair(place, row))
            places.append(place)
        if len(pairs) == before:
            raise FinflowError(f"the {NAME} {path} is empty: it needs a pair of segments a line")
    return PairFile(tuple(pairs), tuple(places), count_contradictions(pairs))


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write pairs as JSON lines, or as CSV where the file is named so; the whole file or nothing."""
    if path.suffix.lower() == ".csv":
        stream = io.StringIO()
        writer = csv.DictWriter(stream, [*COLUMNS, "chance"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(_as_row(pair) for pair in pairs)
        write_atomically(path, stream.getvalue())
    else:
        write_atomically(path, "".join(f"{_as_json(pair)}\n" for pair in pairs))


def append_answer(path: Path, pair: Pair) -> None:
    """Append an answer to a file of JSON lines, in one write that is flushed to the disk.

    Raises
    ------
    OutputError
        If it cannot be written.
    FinflowError
        If the file is named as a CSV file.
    """
    check_grows(path)
    append_line(path, _as_json(pair))


def take_back_answer(path: Path, pair: Pair) -> None:
    """Remove the last answer from a file.

    Raises
    ------
    OutputError
        If the file ends with something else, or cannot be written.
    """
    drop_last_line(path, _as_json(pair))


def check_grows(path: Path) -> None:
    """Refuse a file that answers cannot be added to.

    Raises
    ------
    FinflowError
        If it is named as a CSV file.
    """
    if path.suffix.lower() == ".csv":
        raise FinflowError(f"answers are added to files of JSON lines, not to {path}: name one that ends with .jsonl")


def _as_json(pair: Pair) -> str:
    content = pair.model_dump(mode="json", exclude_none=True)
    return json.dumps(content, ensure_ascii=False, allow_nan=False)


def _as_row(pair: Pair) -> dict[str, object]:
    row: dict[str, object] = {"better": pair.better, "chance": pair.chance}
    for which, segment in (("first", pair.first), ("second", pair.second)):
        row |= {f"{which}_{name}": getattr(segment, name) for name in SEGMENT_COLUMNS}
    return row


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
    reader = csv.DictReader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        missing = [name for name in COLUMNS if name not in header and name not in OPTIONAL]
        unknown = [name for name in header if name not in COLUMNS and name not in OPTIONAL]
        if header and (missing or unknown):
            fault = f"lacks the column {missing[0]}" if missing else f"has an unknown column {unknown[0]!r}"
            raise FinflowError(f"{path}, line 1: the header {fault}; the columns are {', '.join(COLUMNS)}")
        reader.fieldnames = header
        for row in reader:
            place = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise FinflowError(f"{place}: the row has not as many cells as the header has columns")
            given = {name: value.strip() for name, value in row.items() if value.strip()}
            content: dict[str, Any] = {name: given[name] for name in ("better", "chance") if name in given}
            for which in ("first", "second"):
                segment = {name: given.get(f"{which}_{name}") for name in SEGMENT_COLUMNS}
                content[which] = {name: value for name, value in segment.items() if value is not None}
            yield place, content
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


def count_contradictions(pairs: Sequence[Pair]) -> int:
    """Number of pairs of segments with different answers, whichever of the two is named first."""
    answers: dict[frozenset[Segment], set[Segment | None]] = {}
    for pair in pairs:
        chosen = {"first": pair.first, "second": pair.second, "tie": None}[pair.better]
        answers.setdefault(frozenset((pair.first, pair.second)), set()).add(chosen)
    return sum(len(found) > 1 for found in answers.values())
