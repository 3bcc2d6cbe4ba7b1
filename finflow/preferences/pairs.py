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
SEGMENT_COLUMNS = ("strategy", "start", "end")
COLUMNS = (*(f"{which}_{name}" for which in ("first", "second") for name in SEGMENT_COLUMNS), "better")
Better = Literal["first", "second", "tie"]


class _Record(BaseModel):
    """Base of records: immutable, without unknown names, NaN or infinities."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, str_strip_whitespace=True)


class Segment(_Record):
    """Consecutive holding periods of a strategy, by its name or import path.

    ``start`` and ``end`` are days at which they end.
    """

    strategy: str = Field(min_length=1)
    start: dt.date
    end: dt.date

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.end < self.start:
            raise ValueError(f"the segment ends on {self.end}, before it starts on {self.start}")
        return self

    def __str__(self) -> str:
        return f"{self.strategy} from {self.start} to {self.end}"


class Pair(_Record):
    """Two segments, and which is better.

    ``chance`` is the probability of the answer "first", where a judge's is known.
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
    """Pairs of files, with the file and line of each, and the number of contradictory ones."""

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
    """Read pairs of segments; contradictory answers are counted, and are no error.

    ``.csv`` files have the columns ``first_strategy``, ``first_start``, ``first_end``, the same of ``second_``, and
    ``better``; other files have an object of JSON in every line. A FinflowError, with the number of the line, for a
    file that is missing or empty, and for the first line that is no pair.
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
    """Append an answer to a file of JSON lines, in one write that is flushed to the disk."""
    check_grows(path)
    append_line(path, _as_json(pair))


def take_back_answer(path: Path, pair: Pair) -> None:
    """Remove the last answer from a file; an OutputError if it ends with something else, or cannot be written."""
    drop_last_line(path, _as_json(pair))


def check_grows(path: Path) -> None:
    """Refuse a file that answers cannot be added to: one that is named as a CSV file."""
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
        missing = [name for name in COLUMNS if name not in header]
        unknown = [name for name in header if name not in (*COLUMNS, "chance")]
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
                names = [name for name in SEGMENT_COLUMNS if f"{which}_{name}" in given]
                content[which] = {name: given[f"{which}_{name}"] for name in names}
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
