"""One file of dates and numbers, CSV or Parquet, read as it is, with a place for every mistake."""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

KINDS = ("csv", "parquet")

_DATES = ("date", "datetime", "timestamp")
_NAMES = ("ticker", "symbol", "asset")
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

    def numbers(self, position: int) -> FloatArray:
        """Values of a column, NaN where missing; `MarketError` for what is not a number."""
        cells, (field, asset) = self.cells[position], self.columns[position]
        name = f"{field} of {asset}" if field else asset
        if pd.api.types.is_bool_dtype(cells.dtype) or pd.api.types.is_datetime64_any_dtype(cells.dtype):
            raise MarketError(f"{self.path}: column {name!r} holds {cells.dtype} values, not numbers")
        if pd.api.types.is_numeric_dtype(cells.dtype):
            return cells.to_numpy(dtype=np.float64, na_value=np.nan)
        values = pd.to_numeric(cells, errors="coerce")
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
    return "".join(letter for letter in name.casefold() if letter not in " _-.")


def read_sheet(path: Path, kind: str, key: str = "market.path") -> PriceSheet:
    """Read a file of the kind "csv" or "parquet" that a ``key`` of the configuration names.

    The dates are the column called Date, Datetime or Timestamp, or else the first one (of Parquet the index, where it
    holds anything but integers). In a CSV file an empty cell (or NA, NaN, null) is a missing number, else a cell must
    be a number; nothing is guessed or repaired. Two lines of column names are read if they are those of yfinance.
    `MarketError` is one line that names the file, and line and column where there is one.
    """
    digest = hashlib.sha256(read_input(path, key, MarketError)).hexdigest()
    return _read_csv(path, digest) if kind == "csv" else _read_parquet(path, digest)


def _read_csv(path: Path, digest: str) -> PriceSheet:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
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
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise MarketError(f"{path} has lines with more cells than the header ({one_line(error, 1000)})") from None
    except pd.errors.EmptyDataError:
        frame = pd.DataFrame(columns=range(len(names)))
    except UnicodeDecodeError as error:
        raise MarketError(f"{path} is not UTF-8 text ({error})") from None
    blank = (frame.isna() | (frame == "")).all(axis=1)
    numbers = np.flatnonzero(~blank.to_numpy()) + skipped + 1
    frame = frame.loc[~blank].reset_index(drop=True)
    return _sheet(path, digest, frame, columns, lambda row: f"line {numbers[row]}")


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

    They begin with Price and Ticker, in either order; a third, with the name of the index and nothing else, may follow.
    """
    second, third = [line + [""] * (len(first) - len(line)) for line in more]
    words = (first[0].casefold(), second[0].casefold())
    if words not in (("price", "ticker"), ("ticker", "price")) or len(second) != len(first):
        return [], 1
    fields, assets = (first, second) if words[0] == "price" else (second, first)
    return list(zip(fields, assets, strict=True)), 3 if not any(third[1:]) and third[0] else 2


def _labelled(path: Path, columns: pd.MultiIndex) -> list[tuple[str, str]]:
    if columns.nlevels == 2:
        levels = [[str(value) for value in columns.get_level_values(level)] for level in (0, 1)]
        for fields, assets in (levels, levels[::-1]):
            if any(plain_name(field) in ("close", "adjclose") for field in fields):
                return list(zip(fields, assets, strict=True))
    raise MarketError(f"{path} has {columns.nlevels} levels of columns; expected one, or (Close, ...) by asset")


def _sheet(
    path: Path,
    digest: str,
    frame: pd.DataFrame,
    columns: list[tuple[str, str]],
    place: Callable[[int], str],
) -> PriceSheet:
    """Check the names of columns, whose positions name the frame's, and read the dates and the names of assets."""
    date, name = _special_columns(path, columns)
    positions = [position for position in range(len(columns)) if position not in (date, name)]
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
    return PriceSheet(path, digest, days, kept, tuple(frame[position] for position in positions), assets, place)


def _special_columns(path: Path, columns: Sequence[tuple[str, str]]) -> tuple[int, int | None]:
    """Positions of the dates, and of the names of assets where the file has a column of them."""
    names = [plain_name(name) if not field else "" for field, name in columns]
    date = next((position for position, name in enumerate(names) if name in _DATES), 0)
    named = [position for position, name in enumerate(names) if name in _NAMES]
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
    """Dates without a time zone, the wall-clock day where there is one."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        days = pd.DatetimeIndex(column).tz_localize(None).normalize()
        refuse_rows(np.isnat(days), lambda row: f"{path}, {place(row)}: the date is missing")
        return days
    codes, distinct = pd.factorize(_texts(path, column, name), use_na_sentinel=False)
    texts = pd.Series(distinct, dtype=object).where(pd.Series(distinct).notna(), "").astype(str)
    formed = texts.str.fullmatch(r"\d{4}-\d{2}-\d{2}([T ].*)?")

    def formless(row: int) -> str:
        text = str(texts.iloc[codes[row]])
        shown = "missing" if text in ("nan", "None", "NaT", "") else f"{text!r}, not of the form YYYY-MM-DD"
        return f"{path}, {place(row)}: the date (column {name!r}) is {shown}"

    refuse_rows(~formed.to_numpy()[codes], formless)
    days = pd.DatetimeIndex(pd.to_datetime(texts.str[:10], format="%Y-%m-%d", errors="coerce"))[codes]
    refuse_rows(np.isnat(days), lambda row: f"{path}, {place(row)}: {texts.iloc[codes[row]]!r} is not a date")
    return days
