"""Tables of prices from a user's files, in any layout that can be recognised without guessing."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.errors import MarketError
from finflow.market.sources.adjusted_closes import ADJUSTED, with_adjusted_closes
from finflow.market.sources.price_sheet import KINDS, PriceSheet, plain_name, read_sheet

PriceTables = dict[str, pd.DataFrame]
"""Field name ("close" always, "open", "high", "low", "volume", "dividends" perhaps) -> frame of dates by assets."""

FIELDS = ("open", "high", "low", "close", "volume")
DIVIDENDS = "dividends"

WIDE, LONG, TWO_LEVELS = "one column an asset", "one row a date and asset", "one column a field and asset"
FILE_A_FIELD, FILE_AN_ASSET = "one file a field", "one file an asset"

_KNOWN = {**{name: name for name in FIELDS}, "adjclose": ADJUSTED, "adjustedclose": ADJUSTED, DIVIDENDS: DIVIDENDS}
_CLOSES = ("close", ADJUSTED)
_READ = (*FIELDS, ADJUSTED, DIVIDENDS)


@dataclass(frozen=True)
class _Wanted:
    """Assets to read, all of them when None; and whether dividends are."""

    assets: Collection[str] | None
    dividends: bool

    def __contains__(self, name: str) -> bool:
        return self.assets is None or name in self.assets

    def fields(self, found: Iterable[str]) -> list[str]:
        return [field for field in found if self.dividends or field != DIVIDENDS]


def read_prices(
    path: Path, kind: str, wanted: Collection[str] | None, auto_adjust: bool, dividends: bool = False
) -> tuple[PriceTables, dict[str, Any]]:
    """Read a file of prices, or a folder of such files.

    =========================  ==================================================================================
    file, one column an asset  Date and one column of closes an asset
    file, two lines of names   fields by assets, as yfinance's own frames are written (Price and Ticker)
    file, one row an asset     Date, a column Ticker, Symbol or Asset, Close and perhaps Open, High, Low, Volume
    folder, one file a field   close.csv, and perhaps open.csv, ..., each with one column an asset
    folder, one file an asset  AAPL.csv, ..., each with Date, Close and perhaps Open, High, Low, Volume
    =========================  ==================================================================================

    Case in the names of fields does not count, and other columns of files with fields are passed over. For Adj Close
    see `with_adjusted_closes`. Rows of the layouts with one asset a row or a file may come in any order; in the others
    dates must ascend.

    Parameters
    ----------
    kind : str
        "csv" or "parquet": of a folder, the files that end so.
    wanted : collection of str, or None
        Assets (and the benchmark) to read; all of them when None.
    dividends : bool
        Read the field Dividends too, and no Adj Close, whatever ``auto_adjust`` says; of a folder with one file a
        field it may have rows of the ex-dates alone. Else it is passed over.

    Returns
    -------
    tables, facts : PriceTables and dict
        A frame a field of those assets that are wanted and there; where they come from, how they are adjusted, and
        under "names" every asset there is.

    Raises MarketError: With one line that names the file, and line and column where there is one.
    """
    chosen = _Wanted(wanted, dividends)
    if path.is_dir():
        tables, layout, sheets, names = _folder(path, kind, chosen)
        listed = "".join(f"{sheet.path.name}\0{sheet.sha256}\n" for sheet in sheets)
        digest = hashlib.sha256(listed.encode()).hexdigest()
    else:
        sheet = read_sheet(path, kind)
        tables, layout, names = _file(sheet, chosen)
        sheets, digest = [sheet], sheet.sha256
    if dividends and DIVIDENDS not in tables:
        raise MarketError(
            f"{path} has no dividends, which market.dividends=cash needs: add a column Dividends beside Close, or a "
            f"file {DIVIDENDS}.{kind} beside close.{kind}"
        )
    tables, adjusted = with_adjusted_closes(path, tables, auto_adjust and not dividends)
    if "volume" in tables:  # nothing traded where nothing is listed is no volume
        volume = tables["volume"]
        unlisted = tables["close"].reindex(columns=volume.columns).isna()
        tables["volume"] = volume.mask((volume == 0.0) & unlisted)
    facts = {
        "source": kind,
        "file": path.name,
        "file_sha256": digest,
        "layout": layout,
        **({"files": len(sheets)} if path.is_dir() else {}),
        **adjusted,
        "names": names,
        "survivorship": "the assets are those of the file; if they were chosen with hindsight, results are too good",
    }
    return tables, facts


def _file(sheet: PriceSheet, wanted: _Wanted) -> tuple[PriceTables, str, tuple[str, ...]]:
    if sheet.assets is not None:
        names = tuple(pd.unique(sheet.assets))
        return _stacked([_Rows.of_many(sheet)], names, wanted), LONG, names
    if any(field for field, _ in sheet.columns):
        tables, names = _two_levels(sheet, wanted)
        return tables, TWO_LEVELS, names
    closes = [name for _, name in sheet.columns if _KNOWN.get(plain_name(name)) in _CLOSES]
    if closes:
        raise MarketError(
            f"{sheet.path} has a column {closes[0]!r} and none that names the asset, so it holds a single asset; name "
            "the folder with one such file an asset, or add a column Ticker (or rename the column, if it is an asset)"
        )
    return {"close": _wide(sheet, wanted)}, WIDE, tuple(name for _, name in sheet.columns)


def _folder(path: Path, kind: str, wanted: _Wanted) -> tuple[PriceTables, str, list[PriceSheet], tuple[str, ...]]:
    files = _files(path, kind)
    fields = [_KNOWN.get(plain_name(file.stem)) for file in files]
    close = next((file for file, field in zip(files, fields, strict=True) if field in _CLOSES), None)
    if close is not None:
        other = next((file for file, field in zip(files, fields, strict=True) if field is None), None)
        if other is not None:
            raise MarketError(
                f"{path} has both {close.name} and {other.name}: a folder holds one file a field (close.{kind}, "
                f"open.{kind}, ...) or one file an asset, not both"
            )
        sheets = {str(field): read_sheet(file, kind) for file, field in zip(files, fields, strict=True)}
        if len(sheets) < len(files):
            raise MarketError(f"{path} has two files of one field: {', '.join(file.name for file in files)}")
        tables, names = _by_field(sheets, wanted)
        return tables, FILE_A_FIELD, list(sheets.values()), names
    names = tuple(dict.fromkeys(file.stem for file in files))
    rows = [_Rows.of_one(read_sheet(file, kind)) for file in files if file.stem in wanted]
    return _stacked(rows, names, wanted), FILE_AN_ASSET, [part.sheet for part in rows], names


def _files(path: Path, kind: str) -> list[Path]:
    try:
        found = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
    except OSError as error:
        raise MarketError(f"market.path {path} cannot be read: {error.strerror or error}") from None
    files = [file for file in found if file.suffix.lower() == f".{kind}"]
    if files:
        return files
    others = [other for other in KINDS if any(file.suffix.lower() == f".{other}" for file in found)]
    hint = f"; it has .{others[0]} files: set market.source={others[0]}" if others else ""
    raise MarketError(f"market.path {path} is a folder without a .{kind} file{hint}")


def _wide(sheet: PriceSheet, wanted: _Wanted) -> pd.DataFrame:
    names = [name for _, name in sheet.columns]
    columns = {name: sheet.numbers(i) for i, name in enumerate(names) if name in wanted}
    return pd.DataFrame(columns, index=sheet.days)


def _two_levels(sheet: PriceSheet, wanted: _Wanted) -> tuple[PriceTables, tuple[str, ...]]:
    found: dict[str, dict[str, int]] = {}
    for position, (label, asset) in enumerate(sheet.columns):
        field = _KNOWN.get(plain_name(label))
        if field is not None and asset in found.setdefault(field, {}):
            raise MarketError(f"{sheet.path}: {label} of {asset!r} appears more than once")
        if field is not None:
            found[field][asset] = position
    names = tuple(found.get("close", found.get(ADJUSTED, {})))
    if not names:
        raise MarketError(f"{sheet.path} has no column Close under its two lines of names")
    kept = [name for name in names if name in wanted]
    return {
        field: pd.DataFrame({name: sheet.numbers(at[name]) for name in kept if name in at}, index=sheet.days)
        for field, at in found.items()
        if field in wanted.fields(found)
    }, names


def _by_field(sheets: dict[str, PriceSheet], wanted: _Wanted) -> tuple[PriceTables, tuple[str, ...]]:
    """Tables of a folder with a file a field; dates and assets are those of the closes, dividends need their own."""
    sheets = {field: sheets[field] for field in wanted.fields(sheets)}
    lead = sheets.get("close") or sheets[ADJUSTED]
    names = tuple(name for _, name in lead.columns)
    for field, sheet in sheets.items():
        if sheet.assets is not None or any(field for field, _ in sheet.columns):
            raise MarketError(f"{sheet.path} must have Date and one column an asset, as the file of one field")
        sparse = field == DIVIDENDS
        lacking = sheet.days.difference(lead.days) if sparse else lead.days.symmetric_difference(sheet.days)
        if len(lacking):
            lacks, has = (sheet, lead) if lacking[0] in lead.days else (lead, sheet)
            raise MarketError(f"{lacks.path} has no row of {lacking[0].date()}, and {has.path.name} has one")
        if not sheet.days.equals(lead.days[lead.days.isin(sheet.days)] if sparse else lead.days):
            raise MarketError(f"{sheet.path} has its dates in another order than {lead.path.name}, or repeats one")
        unknown = [name for _, name in sheet.columns if name not in names]
        if unknown:
            raise MarketError(f"{sheet.path} has a column {unknown[0]!r}, and {lead.path.name} has none")
    tables = {field: _wide(sheet, wanted) for field, sheet in sheets.items()}
    if DIVIDENDS in tables:
        tables[DIVIDENDS] = tables[DIVIDENDS].reindex(lead.days)
    return tables, names


@dataclass(frozen=True)
class _Rows:
    """A sheet whose rows are one asset on one date each: the asset of each row, and the column of each field."""

    sheet: PriceSheet
    assets: NDArray[np.object_]
    fields: dict[str, int]

    def numbers(self, field: str) -> NDArray[np.float64]:
        if field not in self.fields:
            return np.full(len(self.assets), np.nan)
        return self.sheet.numbers(self.fields[field])

    @classmethod
    def of_many(cls, sheet: PriceSheet) -> _Rows:
        fields = _fields_of(sheet, [name for _, name in sheet.columns])
        if not any(close in fields for close in _CLOSES):
            raise MarketError(
                f"{sheet.path} has a column that names the asset of a row (Ticker, Symbol or Asset) and no column "
                "Close; add one, or rename the first if it is an asset"
            )
        return cls(sheet, np.asarray(sheet.assets, dtype=object), fields)

    @classmethod
    def of_one(cls, sheet: PriceSheet) -> _Rows:
        if sheet.assets is not None:
            raise MarketError(
                f"{sheet.path} has a column that names the asset of a row; a folder holds one file a field or one file "
                "an asset: join such files to one"
            )
        name = sheet.path.stem
        labels = [field or other for field, other in sheet.columns]
        other = next((asset for field, asset in sheet.columns if field and asset.casefold() != name.casefold()), None)
        if other is not None:
            raise MarketError(f"{sheet.path} holds prices of {other!r}; a file is named after the asset in it")
        fields = _fields_of(sheet, labels)
        if not any(close in fields for close in _CLOSES):
            raise MarketError(
                f"{sheet.path} has no column Close ({', '.join(labels[:6]) or 'no columns but the date'}); each file "
                "of a folder is one asset, with Date, Close and perhaps Open, High, Low and Volume"
            )
        return cls(sheet, np.full(len(sheet.days), name, dtype=object), fields)


def _fields_of(sheet: PriceSheet, labels: Sequence[str]) -> dict[str, int]:
    fields: dict[str, int] = {}
    for position, label in enumerate(labels):
        field = _KNOWN.get(plain_name(label))
        if field in fields:
            raise MarketError(f"{sheet.path}: columns {labels[fields[field]]!r} and {label!r} are the same field")
        if field is not None:
            fields[field] = position
    return fields


def _stacked(parts: Sequence[_Rows], names: Iterable[str], wanted: _Wanted) -> PriceTables:
    """Tables of the assets wanted among `names`, from rows in any order; dates ascend."""
    kept = [name for name in names if name in wanted]
    if not parts:
        return {"close": pd.DataFrame(index=pd.DatetimeIndex([]), columns=kept, dtype=np.float64)}
    labels = pd.concat(
        [pd.DataFrame({"day": part.sheet.days.astype("datetime64[s]"), "asset": part.assets}) for part in parts],
        keys=range(len(parts)),
    )
    chosen = labels["asset"].isin(kept).to_numpy()
    labels = labels[chosen]
    _check_once(parts, labels)
    fields = wanted.fields(field for field in _READ if any(field in part.fields for part in parts))
    values = {field: np.concatenate([part.numbers(field) for part in parts])[chosen] for field in fields}
    table = pd.DataFrame(values, index=pd.MultiIndex.from_frame(labels, names=[None, None]))
    return {field: table[field].unstack().reindex(columns=kept) for field in fields}


def _check_once(parts: Sequence[_Rows], labels: pd.DataFrame) -> None:
    """Refuse a second row of a date and asset; the index of the labels is (part, row)."""
    repeated = labels.duplicated()
    if not repeated.any():
        return
    second = labels.index[int(repeated.argmax())]
    day, asset = labels.loc[second]
    first = labels.index[((labels["day"] == day) & (labels["asset"] == asset)).to_numpy().argmax()]
    places = [f"{parts[part].sheet.path}, {parts[part].sheet.place(row)}" for part, row in (second, first)]
    raise MarketError(f"{places[0]}: {asset!r} has a second row of {day.date()} (first: {places[1]})")
