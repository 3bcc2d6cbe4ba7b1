"""One file of dates and numbers, CSV or Parquet, read as it is, with a place for every mistake."""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.arrays import FloatArray
from finflow.config.section_types import first_repeated
from finflow.errors import MarketError, one_line, refuse
from finflow.files import read_input, read_table
from finflow.market.panel_checks import refuse_rows
from finflow.market.sources.number_marks import COMMAS, NumberMarks, marks_of, separator_of

KINDS = ("csv", "parquet")

_DATES = ("date", "datetime", "timestamp")
_NAMES = ("ticker", "symbol", "asset")
_CLOSES = ("close", "adjclose", "adjustedclose", "adjcp", "closeadj")
_FIELDS = (*_CLOSES, "open", "high", "low", "volume", "dividends", "stocksplits", "capitalgains")
_OTHER_DATES = ("tradedate", "tradingdate", "day", "time")
_OTHER_NAMES = ("tic", "code", "tscode", "stockcode", "instrument", "secid", "ric", "isin", "permno", "name")
"""Names of dates and assets in other programs' exports, read beside a close; alone they may be tickers."""
_MISSING = ["", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None"]
"""Cells that stand for a missing number. A ticker may be called NA."""


@dataclass(frozen=True)
class PriceSheet:
    path: Path
    sha256: str  # of the file's bytes
    days: pd.DatetimeIndex  # one a row, without a time zone: the wall-clock day where the file has times
    columns: tuple[tuple[str, str], ...]  # (field, asset) of each; the field is "" in files with one line of names
    cells: tuple[pd.Series[Any], ...]
    assets: NDArray[np.object_] | None  # the asset of each row, where the file has a column that names it
    place: Callable[[int], str]  # row -> how a message names it
    row_numbers: tuple[str, ...] = ()  # columns that were left out, because they count the rows
    marks: NumberMarks = COMMAS

    def numbers(self, position: int) -> FloatArray:
        """Values of a column, NaN where missing; `MarketError` for what is not a number."""
        cells, (field, asset) = self.cells[position], self.columns[position]
        name = f"{field} of {asset}" if field else asset
        if pd.api.types.is_bool_dtype(cells.dtype) or pd.api.types.is_datetime64_any_dtype(cells.dtype):
            raise MarketError(f"{self.path}: column {name!r} holds {cells.dtype} values, not numbers")
        if pd.api.types.is_numeric_dtype(cells.dtype):
            return cells.to_numpy(dtype=np.float64, na_value=np.nan)
        try:
            values = pd.to_numeric(cells, errors="coerce")
        except OverflowError:
            raise MarketError(f"{self.path}: column {name!r} holds a number beyond 1e308; correct it") from None
        refuse_rows(
            (values.isna() & cells.notna()).to_numpy(),
            lambda row: (
                f"{self.path}, {self.place(row)}: column {name!r} has {str(cells.iloc[row])[:40]!r} on "
                f"{self.days[row].date()}, which is not a number"
            ),
        )
        return values.to_numpy(dtype=np.float64, na_value=np.nan)


def plain_name(name: str) -> str:
    """A column's name as it is compared: "Adj Close", "adj_close" and "adjclose" are one."""
    return "".join(letter for letter in name.casefold() if letter not in " _-.<>")


def read_sheet(path: Path, kind: str, key: str = "market.path") -> PriceSheet:
    """Read a file of the kind "csv" or "parquet" that a ``key`` of the configuration names.

    In a CSV file an empty cell (or NA, NaN, null) is a missing number, else a cell must be a number. Of Parquet the
    dates are the index, where it holds anything but integers. `MarketError` is one line that names the file, and line
    and column where there is one.
    """
    digest = hashlib.sha256(read_input(path, key, MarketError)).hexdigest()
    return _read_csv(path, digest) if kind == "csv" else _read_parquet(path, digest)


def _read_csv(path: Path, digest: str) -> PriceSheet:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            separator = separator_of(file.readline())
            file.seek(0)
            lines = csv.reader(file, delimiter=separator)
            header, *more = [next(lines, []) for _ in range(3)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise MarketError(f"{path} is not a CSV file of UTF-8 text ({error})") from None
    if not header:
        raise MarketError(
            f"{path} is empty, or its first line is; expected a header line with Date and one column an asset"
        )
    if any("\0" in name for name in header):
        raise MarketError(f"{path} is not a CSV file of UTF-8 text (it has zero bytes)")
    names = [name.strip() for name in header]
    if len(names) == 1:
        raise MarketError(
            f"{path} has one column only ({names[0][:60]!r}); expected Date and one an asset, separated by commas"
        )
    labels, skipped = _two_lines(names, [[cell.strip() for cell in line] for line in more])
    columns = labels or [("", label) for label in names]
    text = [column for column in _special_columns(path, columns) if column is not None]
    missing: Any = {column: _MISSING for column in range(len(names)) if column not in text}
    try:
        marks = marks_of(path, separator, skipped, list(missing))
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                header=None,
                names=range(len(names)),
                skiprows=skipped,
                index_col=False,
                skip_blank_lines=False,
                dtype=dict.fromkeys(text, str),
                keep_default_na=False,
                na_values=missing,
                skipinitialspace=True,
                encoding="utf-8-sig",
                low_memory=False,
                sep=marks.separator,
                decimal=marks.decimal,
                thousands=marks.thousands or None,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning, csv.Error) as error:
        raise MarketError(f"{path} has lines with more cells than the header ({one_line(error, 1000)})") from None
    except pd.errors.EmptyDataError:
        frame = pd.DataFrame(columns=range(len(names)))
    except UnicodeDecodeError as error:
        raise MarketError(f"{path} is not UTF-8 text ({error})") from None
    blank = (frame.isna() | (frame == "")).all(axis=1)
    numbers = np.flatnonzero(~blank.to_numpy()) + skipped + 1
    frame = frame.loc[~blank].reset_index(drop=True)
    return replace(_sheet(path, digest, frame, columns, lambda row: f"line {numbers[row]}"), marks=marks)


def _read_parquet(path: Path, digest: str) -> PriceSheet:
    try:
        frame = read_table(path)
    except Exception as error:
        raise MarketError(f"{path} cannot be read as Parquet ({one_line(error, 120)})") from None
    if isinstance(frame.columns, pd.MultiIndex):
        columns = _labelled(path, frame.columns)
    else:
        columns = [("", str(name)) for name in frame.columns]
    if isinstance(frame.index, pd.MultiIndex) or not pd.api.types.is_integer_dtype(frame.index.dtype):
        index = pd.DataFrame({k: frame.index.get_level_values(k) for k in range(frame.index.nlevels)})
        columns = [*(("", str(name or "index")) for name in frame.index.names), *columns]
        frame = pd.concat([index, frame.reset_index(drop=True)], axis=1)
    refuse(not columns, f"{path} has no columns; expected dates and one column an asset", MarketError)
    frame = frame.set_axis(range(len(columns)), axis=1).reset_index(drop=True)
    return _sheet(path, digest, frame, columns, lambda row: f"row {row + 1}")


def _two_lines(first: list[str], more: list[list[str]]) -> tuple[list[tuple[str, str]], int]:
    """(field, asset) of each column under two lines of names as yfinance's frames are written, and the lines of that.

    One of the lines has names of fields alone. A third, with the name of the index and nothing else, may follow.
    """
    second, third = [line + [""] * (len(first) - len(line)) for line in more]
    pairs = [(first, second), (second, first)] if len(second) == len(first) > 1 and all(second[1:]) else []
    if (first[0].casefold(), second[0].casefold()) == ("ticker", "price"):
        pairs = pairs[1:]
    for fields, assets in pairs:
        if all(plain_name(field) in _FIELDS for field in fields[1:]) and not second[0][:1].isdigit():
            return list(zip(fields, assets, strict=True)), 3 if not any(third[1:]) and third[0] else 2
    return [], 1


def _labelled(path: Path, columns: pd.MultiIndex) -> list[tuple[str, str]]:
    if columns.nlevels == 2:
        levels = [[str(value) for value in columns.get_level_values(level)] for level in (0, 1)]
        for fields, assets in (levels, levels[::-1]):
            if any(plain_name(field) in ("close", "adjclose") for field in fields):
                return list(zip(fields, assets, strict=True))
    raise MarketError(f"{path} has {columns.nlevels} levels of columns; expected one, or (Close, ...) by asset")


def _sheet(
    path: Path, digest: str, frame: pd.DataFrame, columns: list[tuple[str, str]], place: Callable[[int], str]
) -> PriceSheet:
    """Check the names of columns, whose positions name the frame's, and read the dates and the names of assets."""
    date, name = _special_columns(path, columns)
    others = [position for position in range(len(columns)) if position not in (date, name)]
    counts = [position for position in others if name is None and _counts_rows(frame[position], columns[position])]
    positions = [position for position in others if position not in counts and (columns[position][1] or name is None)]
    kept = tuple(columns[position] for position in positions)
    for position in positions:
        refuse(not columns[position][1], f"{path}: column {position + 1} has no name", MarketError)
    if (repeated := first_repeated([" of ".join(filter(None, pair)) for pair in kept])) is not None:
        raise MarketError(f"{path}: column {repeated!r} appears more than once")
    days = _dates(path, frame[date], columns[date][1] or columns[date][0], place)
    assets = None
    if name is not None:
        assets = _texts(path, frame[name], columns[name][1]).mask(frame[name].isna(), "").to_numpy(dtype=object)
        column = columns[name][1]
        refuse_rows(assets == "", lambda row: f"{path}, {place(row)}: column {column!r} is empty; it names the asset")
    cells, numbers = tuple(frame[position] for position in positions), [columns[position][1] for position in counts]
    return PriceSheet(path, digest, days, kept, cells, assets, place, tuple(filter(None, numbers)))


def _counts_rows(cells: pd.Series[Any], column: tuple[str, str]) -> bool:
    """True of numbers that rise by one each row: in ten rows or more, or from 0 or 1 on in a column without a name."""
    if column[0] or not pd.api.types.is_numeric_dtype(cells.dtype) or len(cells) < 2:
        return False
    numbers = cells.to_numpy(np.float64, na_value=np.nan)
    numbers = numbers[: len(numbers) - int(np.isnan(numbers[-1]))]  # today's row may have none
    return bool((np.diff(numbers) == 1.0).all()) and (len(numbers) >= 10 or (not column[1] and numbers[0] in (0, 1)))


def _special_columns(path: Path, columns: Sequence[tuple[str, str]]) -> tuple[int, int | None]:
    """Positions of the dates, and of the names of assets where the file has a column of them."""
    names = [plain_name(name) if not field else "" for field, name in columns]
    known = _OTHER_DATES if any(name in _CLOSES for name in names) else ()
    date = next((names.index(name) for name in (*_DATES, *known) if name in names), 0)
    named = [position for position, name in enumerate(names) if name in _NAMES]
    if not named and known:
        named = [names.index(name) for name in _OTHER_NAMES if name in names][:1]
    if len(named) > 1:
        both = " and ".join(repr(columns[position][1]) for position in named[:2])
        raise MarketError(f"{path} has the columns {both}: leave one that names the asset of a row")
    return date, named[0] if named else None


def _texts(path: Path, column: pd.Series[Any], name: str) -> pd.Series[Any]:
    try:
        return column.astype(str).str.strip()
    except UnicodeDecodeError as error:
        raise MarketError(f"{path}: column {name!r} holds bytes that are not UTF-8 text ({error})") from None


def _dates(path: Path, column: pd.Series[Any], name: str, place: Callable[[int], str]) -> pd.DatetimeIndex:
    """Dates without a time zone: the day of the exchange, which is the wall-clock day of the zone of its time stamps.

    Afternoons of UTC may be the next day's midnight in Asia, so they are refused.
    """
    utc = (
        f"column {name!r} has afternoons of UTC, which do not say the exchange's day; write its days, or its time zone"
    )
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        stamps = pd.DatetimeIndex(column)
        in_utc = str(stamps.tz).removeprefix("Etc/") in ("UTC", "GMT")
        refuse(in_utc and bool((stamps.hour >= 12).any()), f"{path}: {utc}", MarketError)
        days = stamps.tz_localize(None).normalize()
        refuse_rows(np.isnat(days), lambda row: f"{path}, {place(row)}: the date is missing")
        return days
    codes, distinct = pd.factorize(_texts(path, column, name), use_na_sentinel=False)
    texts = pd.Series(distinct, dtype=object).where(pd.Series(distinct).notna(), "").astype(str)
    texts = texts.str.replace(r"^(\d{4})(\d\d)(\d\d)$", r"\1-\2-\3", regex=True)
    late = texts.str.fullmatch(r".{10}[T ](1[2-9]|2\d):.*([Zz]|UTC|GMT|[+-]00(:?00)?)").to_numpy(np.bool_)
    if late.any() and not texts.str.fullmatch(r".{10}[T ].*[+-](?!00:?00)\d\d:?\d\d").any():
        refuse_rows(late[codes], lambda row: f"{path}, {place(row)}: {utc}")
    formed = texts.str.fullmatch(r"\d{4}-\d{2}-\d{2}([T ].*)?")

    def formless(row: int) -> str:
        text = str(texts.iloc[codes[row]])
        shown = "missing" if text in ("nan", "None", "NaT", "") else f"{text!r}, not of the form YYYY-MM-DD"
        return f"{path}, {place(row)}: the date (column {name!r}) is {shown}"

    refuse_rows(~formed.to_numpy()[codes], formless)
    days = pd.DatetimeIndex(pd.to_datetime(texts.str[:10], format="%Y-%m-%d", errors="coerce"))[codes]
    refuse_rows(np.isnat(days), lambda row: f"{path}, {place(row)}: {texts.iloc[codes[row]]!r} is not a date")
    return days
