"""Tables of prices from a user's file: CSV and Parquet, one column an asset."""

from __future__ import annotations

import csv
import hashlib
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.errors import MarketError

__all__ = ["PriceTables", "read_csv", "read_parquet"]

PriceTables = dict[str, pd.DataFrame]
"""Field name ("close" always, "open", "high", "low", "volume" perhaps) -> frame of dates by assets."""

_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ISO_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?")


def read_csv(path: Path) -> tuple[PriceTables, dict[str, Any]]:
    """Read closing prices from a CSV file: first column the date (YYYY-MM-DD), then one column an asset.

    An empty cell (or NA, NaN, null) is a missing price, else a cell must be a number; nothing is guessed or repaired.

    Returns
    -------
    tables, facts : PriceTables and dict
        The frame of closes, and where it came from (file name and SHA-256).
    """
    digest = _hash(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = next(csv.reader(file), [])
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
    _check_header(path, names[1:])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                header=0,
                names=names,
                index_col=False,
                skip_blank_lines=False,
                dtype={0: str},
                skipinitialspace=True,
                encoding="utf-8-sig",
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        reason = " ".join(str(error).split())
        raise MarketError(f"{path} has lines with more cells than the header ({reason})") from None
    except UnicodeDecodeError as error:
        raise MarketError(f"{path} is not UTF-8 text ({error})") from None
    frame = frame.dropna(how="all")
    lines = frame.index.to_numpy() + 2
    frame = frame.reset_index(drop=True)
    return _tables(path, frame.iloc[:, 0], frame.iloc[:, 1:], digest, "csv", lambda row: f"line {lines[row]}")


def read_parquet(path: Path) -> tuple[PriceTables, dict[str, Any]]:
    """Read closing prices from a Parquet file: dates as the index or the first column, then one column an asset."""
    digest = _hash(path)
    try:
        frame = pd.read_parquet(path)
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise MarketError(f"{path} cannot be read as Parquet ({reason})") from None
    frame.columns = pd.Index([str(name) for name in frame.columns])
    if not isinstance(frame.index, pd.RangeIndex):
        dates = pd.Series(frame.index, index=range(len(frame)), name=frame.index.name or "index")
        frame = frame.reset_index(drop=True)
    else:
        if frame.shape[1] == 0:
            raise MarketError(f"{path} has no columns; expected dates and one column an asset")
        dates, frame = frame.iloc[:, 0].reset_index(drop=True), frame.iloc[:, 1:].reset_index(drop=True)
    _check_header(path, list(frame.columns))
    return _tables(path, dates, frame, digest, "parquet", lambda row: f"row {row + 1}")


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise MarketError(f"market.path {path} does not exist") from None
    except IsADirectoryError:
        raise MarketError(f"market.path {path} is a folder; name the file with the prices") from None
    except OSError as error:
        raise MarketError(f"market.path {path} cannot be read: {error.strerror or error}") from None


def _check_header(path: Path, names: list[str]) -> None:
    for position, name in enumerate(names):
        if not name:
            raise MarketError(f"{path}: column {position + 2} has no name")
        if name in names[:position]:
            raise MarketError(f"{path}: column {name!r} appears more than once")


def _tables(
    path: Path, dates: pd.Series[Any], prices: pd.DataFrame, digest: str, source: str, place: Callable[[int], str]
) -> tuple[PriceTables, dict[str, Any]]:
    index = _dates(path, dates, place)
    columns = {name: _numbers(path, prices[name], index, place) for name in prices.columns}
    close = pd.DataFrame(columns, index=index)
    facts = {
        "source": source,
        "file": path.name,
        "file_sha256": digest,
        "adjusted": "as in the file; dividends and splits count only if its prices are adjusted for them",
        "survivorship": "the assets are those of the file; if they were chosen with hindsight, results are too good",
    }
    return {"close": close}, facts


def _dates(path: Path, column: pd.Series[Any], place: Callable[[int], str]) -> pd.DatetimeIndex:
    """Dates without a time zone, the wall-clock day where there is one."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        days = pd.DatetimeIndex(column).tz_localize(None)
        days = days.normalize()
        missing = np.flatnonzero(days.isna())
        if missing.size:
            raise MarketError(f"{path}, {place(int(missing[0]))}: the date is missing")
        return days
    texts = [str(value).strip() for value in column]
    for row, text in enumerate(texts):
        if not _ISO_STAMP.fullmatch(text):
            shown = "missing" if text in ("nan", "None", "") else f"{text!r}, not of the form YYYY-MM-DD"
            raise MarketError(f"{path}, {place(row)}: the date (column {column.name!r}) is {shown}")
    days = pd.to_datetime(pd.Index([text[:10] for text in texts]), format="%Y-%m-%d", errors="coerce")
    wrong = np.flatnonzero(days.isna())
    if wrong.size:
        row = int(wrong[0])
        raise MarketError(f"{path}, {place(row)}: {texts[row]!r} is not a date")
    return days


def _numbers(path: Path, column: pd.Series[Any], index: pd.DatetimeIndex, place: Callable[[int], str]) -> Any:
    if pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_datetime64_any_dtype(column.dtype):
        raise MarketError(f"{path}: column {column.name!r} holds {column.dtype} values, not prices")
    values = pd.to_numeric(column, errors="coerce")
    wrong = np.flatnonzero((values.isna() & column.notna()).to_numpy())
    if wrong.size:
        row = int(wrong[0])
        raise MarketError(
            f"{path}, {place(row)}: column {column.name!r} has {str(column.iloc[row])[:40]!r} on {index[row].date()}, "
            "which is not a number"
        )
    return values.to_numpy(dtype=np.float64, na_value=np.nan)
