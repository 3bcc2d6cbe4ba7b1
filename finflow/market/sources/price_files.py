"""Tables of prices from a user's files, in any layout that can be recognised without guessing."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.errors import MarketError, refuse
from finflow.market.price_adjustments import PriceTables, SourcePrices
from finflow.market.sources.number_marks import COMMAS
from finflow.market.sources.price_sheet import KINDS, PriceSheet, plain_name, read_sheet

FIELDS = ("open", "high", "low", "close", "volume")
DIVIDENDS = "dividends"

WIDE, LONG, TWO_LEVELS = "one column an asset", "one row a date and asset", "one column a field and asset"
FILE_A_FIELD, FILE_AN_ASSET = "one file a field", "one file an asset"

_ADJUSTED = "adj_close"
_KNOWN = {**{name: name for name in FIELDS}, "vol": "volume", DIVIDENDS: DIVIDENDS}
_KNOWN |= dict.fromkeys(("adjclose", "adjustedclose", "adjcp", "closeadj"), _ADJUSTED)
_CLOSES = ("close", _ADJUSTED)

_Layout = tuple[PriceTables, str, Sequence[PriceSheet], tuple[str, ...]]
"""Tables of the assets that are wanted, name of the layout, files that were read, and every asset there is."""


@dataclass(frozen=True)
class _Wanted:
    """Assets to read, all of them when None; and whether dividends are."""

    assets: Collection[str] | None
    dividends: bool

    def __contains__(self, name: str) -> bool:
        return self.assets is None or name in self.assets

    def field(self, name: str) -> str | None:
        """Field that a column or a file of this name has; None where it is passed over."""
        field = _KNOWN.get(plain_name(name))
        return field if self.dividends or field != DIVIDENDS else None


def read_prices(
    path: Path, kind: str, wanted: Collection[str] | None, auto_adjust: bool, dividends: bool = False
) -> SourcePrices:
    """Read a file of prices, or a folder of such files; their layouts: docs/reference/market.md, CSV and Parquet.

    Parameters
    ----------
    kind : str
        "csv" or "parquet": of a folder, the files that end so.
    wanted : collection of str, or None
        Assets (and the benchmark) to read; all of them when None.
    dividends : bool
        Read the field Dividends too, and no Adj Close, whatever ``auto_adjust`` says; of a folder with one file a
        field it may have rows of the ex-dates alone. Else it is passed over.

    Raises MarketError: With one line that names the file, and line and column where there is one.
    """
    chosen = _Wanted(wanted, dividends)
    if path.is_dir():
        tables, layout, sheets, names = _folder(path, kind, chosen)
        listed = "".join(f"{sheet.path.name}\0{sheet.sha256}\n" for sheet in sheets)
        digest = hashlib.sha256(listed.encode()).hexdigest()
    else:
        tables, layout, sheets, names = _file(read_sheet(path, kind), chosen)
        digest = sheets[0].sha256
    if dividends and DIVIDENDS not in tables:
        raise MarketError(
            f"{path} has no dividends, which market.dividends=cash needs: add a column Dividends beside Close, or a "
            f"file {DIVIDENDS}.{kind} beside close.{kind}"
        )
    tables, adjusted = _with_adjusted_closes(path, tables, auto_adjust and not dividends)
    if "volume" in tables:  # nothing traded where nothing is listed is no volume
        volume = tables["volume"]
        tables["volume"] = volume.mask((volume == 0.0) & tables["close"].reindex(columns=volume.columns).isna())
    facts = {
        "source": kind,
        "file": path.name,
        "file_sha256": digest,
        "layout": layout,
        **({"files": len(sheets)} if path.is_dir() else {}),
        **({"marks": sheets[0].marks.in_words()} if sheets and sheets[0].marks != COMMAS else {}),
        **({"row_numbers": counts} if (counts := [name for one in sheets for name in one.row_numbers]) else {}),
        **adjusted,
        "survivorship": "the assets are those of the file; if they were chosen with hindsight, results are too good",
    }
    return SourcePrices(tables, facts, names)


def _with_adjusted_closes(path: Path, tables: PriceTables, auto_adjust: bool) -> tuple[PriceTables, dict[str, str]]:
    """Make the close the one asked for, and say in words how the prices are adjusted.

    With ``auto_adjust`` an Adj Close becomes the close, and open, high and low are multiplied by Adj Close / Close;
    else it is left out.
    """
    if _ADJUSTED not in tables:
        words = "as in the file; dividends and splits count only if its prices are adjusted for them"
        return tables, {"adjusted": words}
    rest = {field: table for field, table in tables.items() if field != _ADJUSTED}
    if not auto_adjust:
        if "close" not in rest:
            raise MarketError(
                f"{path} has Adj Close and no Close; set market.auto_adjust=true and market.dividends=reinvested"
            )
        words = "the file's Close, not its Adj Close (market.auto_adjust=false): dividends are left out"
        return rest, {"adjusted": words}
    adjusted = tables[_ADJUSTED]
    words = "the file's Adj Close, which counts dividends and splits"
    if "close" not in rest:
        out = [field for field in ("open", "high", "low") if rest.pop(field, None) is not None]
        note = {"fields_left_out": f"{', '.join(out)}: the file has no Close, so how to adjust them is unknown"}
        return {"close": adjusted, **rest}, {"adjusted": words, **(note if out else {})}
    close = rest["close"]
    lacking = [name for name in close.columns if name not in adjusted or not adjusted[name].notna().any()]
    if lacking:
        raise MarketError(
            f"{path}: {lacking[0]!r} has no Adj Close, and others have; give it to all of them, or set "
            "market.auto_adjust=false to use Close"
        )
    ratio = adjusted[list(close.columns)] / close
    for field in ("open", "high", "low"):
        if field in rest:
            rest[field] = rest[field] * ratio[list(rest[field].columns)]
    rest["close"] = adjusted[list(close.columns)]
    return rest, {"adjusted": f"{words}; open, high and low times Adj Close / Close"}


def _file(sheet: PriceSheet, wanted: _Wanted) -> _Layout:
    if sheet.assets is not None:
        lacks = (
            f"{sheet.path} has a column that names the asset of a row (Ticker, Symbol or Asset) and no column Close; "
            "add one, or rename the first if it is an asset"
        )
        rows = _rows(sheet, [name for _, name in sheet.columns], sheet.assets, wanted, lacks)
        names = tuple(pd.unique(sheet.assets))
        return _stacked([sheet], [rows], names, wanted), LONG, [sheet], names
    if any(field for field, _ in sheet.columns):
        found: dict[str, dict[str, int]] = {}
        for position, (label, asset) in enumerate(sheet.columns):
            field = wanted.field(label)
            if field is not None and found.setdefault(field, {}).setdefault(asset, position) != position:
                raise MarketError(f"{sheet.path}: {label} of {asset!r} appears more than once")
        names = tuple(found.get("close", found.get(_ADJUSTED, {})))
        refuse(not names, f"{sheet.path} has no column Close under its two lines of names", MarketError)
        kept = [name for name in names if name in wanted]
        tables = {
            field: pd.DataFrame({name: sheet.numbers(at[name]) for name in kept if name in at}, index=sheet.days)
            for field, at in found.items()
        }
        return tables, TWO_LEVELS, [sheet], names
    closes = [name for _, name in sheet.columns if wanted.field(name) in _CLOSES]
    if closes:
        raise MarketError(
            f"{sheet.path} has a column {closes[0]!r} and none that names the asset, so it holds a single asset; name "
            "the folder with one such file an asset, or add a column Ticker (or rename the column, if it is an asset)"
        )
    return {"close": _wide(sheet, wanted)}, WIDE, [sheet], tuple(name for _, name in sheet.columns)


def _folder(path: Path, kind: str, wanted: _Wanted) -> _Layout:
    files = _files(path, kind)
    by_field = [(file, _KNOWN.get(plain_name(file.stem))) for file in files]
    close = next((file for file, field in by_field if field in _CLOSES), None)
    if close is None:
        names = tuple(dict.fromkeys(file.stem for file in files))
        sheets = [read_sheet(file, kind) for file in files if file.stem in wanted]
        rows = [_rows_of_one(sheet, wanted) for sheet in sheets]
        return _stacked(sheets, rows, names, wanted), FILE_AN_ASSET, sheets, names
    other = next((file for file, field in by_field if field is None), None)
    if other is not None:
        raise MarketError(
            f"{path} has both {close.name} and {other.name}: a folder holds one file a field (close.{kind}, "
            f"open.{kind}, ...) or one file an asset, not both"
        )
    fields = {str(field): read_sheet(file, kind) for file, field in by_field}
    if len(fields) < len(files):
        raise MarketError(f"{path} has two files of one field: {', '.join(file.name for file in files)}")
    lead = fields.get("close") or fields[_ADJUSTED]
    tables = {
        field: _like(sheet, lead, wanted, sparse=field == DIVIDENDS)
        for field, sheet in fields.items()
        if wanted.field(field) is not None
    }
    return tables, FILE_A_FIELD, list(fields.values()), tuple(name for _, name in lead.columns)


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
    columns = {name: sheet.numbers(i) for i, (_, name) in enumerate(sheet.columns) if name in wanted}
    return pd.DataFrame(columns, index=sheet.days)


def _like(sheet: PriceSheet, lead: PriceSheet, wanted: _Wanted, sparse: bool) -> pd.DataFrame:
    """Table of a file of one field; dates and assets are those of the closes, of ``sparse`` ones some of them."""
    if sheet.assets is not None or any(field for field, _ in sheet.columns):
        raise MarketError(f"{sheet.path} must have Date and one column an asset, as the file of one field")
    lacking = sheet.days.difference(lead.days) if sparse else lead.days.symmetric_difference(sheet.days)
    if len(lacking):
        lacks, has = (sheet, lead) if lacking[0] in lead.days else (lead, sheet)
        raise MarketError(f"{lacks.path} has no row of {lacking[0].date()}, and {has.path.name} has one")
    if not sheet.days.equals(lead.days[lead.days.isin(sheet.days)] if sparse else lead.days):
        raise MarketError(f"{sheet.path} has its dates in another order than {lead.path.name}, or repeats one")
    unknown = next((column[1] for column in sheet.columns if column not in lead.columns), None)
    refuse(unknown, f"{sheet.path} has a column {unknown!r}, and {lead.path.name} has none", MarketError)
    return _wide(sheet, wanted).reindex(lead.days) if sparse else _wide(sheet, wanted)


def _rows_of_one(sheet: PriceSheet, wanted: _Wanted) -> pd.DataFrame:
    """Rows of a file that is named after its asset."""
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
    lacks = (
        f"{sheet.path} has no column Close ({', '.join(labels[:6]) or 'no columns but the date'}); each file of a "
        "folder is one asset, with Date, Close and perhaps Open, High, Low and Volume"
    )
    return _rows(sheet, labels, name, wanted, lacks)


def _rows(
    sheet: PriceSheet, labels: Sequence[str], assets: str | NDArray[np.object_], wanted: _Wanted, lacks_close: str
) -> pd.DataFrame:
    """Rows of one asset on one date each: columns "day" and "asset", and a column a field."""
    fields: dict[str, int] = {}
    for position, label in enumerate(labels):
        field = wanted.field(label)
        if field in fields:
            raise MarketError(f"{sheet.path}: columns {labels[fields[field]]!r} and {label!r} are the same field")
        if field is not None:
            fields[field] = position
    refuse(not any(close in fields for close in _CLOSES), lacks_close, MarketError)
    numbers: dict[str, Any] = {field: sheet.numbers(position) for field, position in fields.items()}
    return pd.DataFrame({"day": sheet.days.astype("datetime64[s]"), "asset": assets, **numbers})


def _stacked(
    sheets: Sequence[PriceSheet], parts: Sequence[pd.DataFrame], names: Sequence[str], wanted: _Wanted
) -> PriceTables:
    """Tables of the assets wanted among `names`, from rows in any order; dates ascend."""
    kept = [name for name in names if name in wanted]
    if not parts:
        return {"close": pd.DataFrame(index=pd.DatetimeIndex([]), columns=kept, dtype=np.float64)}
    rows = pd.concat(parts, keys=range(len(parts)))
    rows = rows[rows["asset"].isin(kept)]
    repeated = rows.duplicated(["day", "asset"])
    if repeated.any():
        second = int(repeated.argmax())
        day, asset = rows[["day", "asset"]].iloc[second]
        first = int(((rows["day"] == day) & (rows["asset"] == asset)).argmax())
        places = [f"{sheets[part].path}, {sheets[part].place(row)}" for part, row in rows.index[[second, first]]]
        raise MarketError(f"{places[0]}: {asset!r} has a second row of {day.date()} (first: {places[1]})")
    table = rows.set_index(["day", "asset"]).rename_axis([None, None])
    return {field: table[field].unstack().reindex(columns=kept) for field in table.columns}
