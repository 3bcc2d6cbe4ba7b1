"""Tables of prices from a user's files, in any of the layouts that can be recognised without guessing."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.errors import MarketError
from finflow.market.sources.price_sheet import KINDS, Sheet, plain_name, read_sheet

__all__ = ["FIELDS", "FILE_AN_ASSET", "FILE_A_FIELD", "LONG", "TWO_LEVELS", "WIDE", "PriceTables", "read_prices"]

PriceTables = dict[str, pd.DataFrame]
"""Field name ("close" always, "open", "high", "low", "volume" perhaps) -> frame of dates by assets."""

FIELDS = ("open", "high", "low", "close", "volume")
ADJUSTED = "adj_close"

WIDE, LONG, TWO_LEVELS = "one column an asset", "one row a date and asset", "one column a field and asset"
FILE_A_FIELD, FILE_AN_ASSET = "one file a field", "one file an asset"

_KNOWN = {**{name: name for name in FIELDS}, "adjclose": ADJUSTED, "adjustedclose": ADJUSTED}
_CLOSES = ("close", ADJUSTED)


def read_prices(
    path: Path, kind: str, wanted: Collection[str] | None, auto_adjust: bool
) -> tuple[PriceTables, dict[str, Any]]:
    """Read a file of prices, or a folder of such files.

    =========================  ==================================================================================
    file, one column an asset  Date and one column of closes an asset
    file, two lines of names   fields by assets, as yfinance's own frames are written (Price and Ticker)
    file, one row an asset     Date, a column Ticker, Symbol or Asset, Close and perhaps Open, High, Low, Volume
    folder, one file a field   close.csv, and perhaps open.csv, ..., each with one column an asset
    folder, one file an asset  AAPL.csv, ..., each with Date, Close and perhaps Open, High, Low, Volume
    folder of rows             files of one row a date and asset, together
    =========================  ==================================================================================

    The case of field names does not matter, and other columns of files with fields are ignored. Where
    a file has an Adj Close, it becomes the close if ``auto_adjust`` is set, and open, high and low are multiplied by
    Adj Close / Close, as yfinance does; volume stays. If it is not set, Adj Close is not used. Rows of the layouts
    with one asset a row or a file may come in any order; in the others dates must ascend.

    Parameters
    ----------
    path : Path
    kind : str
        "csv" or "parquet": of a folder, the files that end so.
    wanted : collection of str, or None
        Assets (and the benchmark) to read; all of them when None.
    auto_adjust : bool

    Returns
    -------
    tables, facts : PriceTables and dict
        A frame a field of the wanted assets that exist; origin, adjustment, and under "names" every asset there is.

    Raises
    ------
    MarketError
        With one line that names the file, and line and column where there is one.
    """
    if path.is_dir():
        tables, layout, sheets, names = _folder(path, kind, wanted)
        listed = "".join(f"{sheet.path.name}\0{sheet.sha256}\n" for sheet in sheets)
        digest = hashlib.sha256(listed.encode()).hexdigest()
    else:
        sheet = read_sheet(path, kind)
        tables, layout, names = _file(sheet, wanted)
        sheets, digest = [sheet], sheet.sha256
    tables, adjusted = _adjusted(path, tables, auto_adjust)
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


def _file(sheet: Sheet, wanted: Collection[str] | None) -> tuple[PriceTables, str, tuple[str, ...]]:
    if sheet.assets is not None:
        tables, names = _stacked([sheet], wanted)
        return tables, LONG, names
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


def _folder(
    path: Path, kind: str, wanted: Collection[str] | None
) -> tuple[PriceTables, str, list[Sheet], tuple[str, ...]]:
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
    chosen = [file for file in files if wanted is None or file.stem in wanted]
    first = read_sheet((chosen or files)[0], kind)
    of_many = first.assets is not None
    sheets_read = [first if file == first.path else read_sheet(file, kind) for file in (files if of_many else chosen)]
    for sheet in sheets_read:
        if (sheet.assets is not None) != of_many:
            having, lacking = (first, sheet) if of_many else (sheet, first)
            raise MarketError(
                f"{having.path} has a column that names the asset of a row and {lacking.path.name} has none; a folder "
                "holds files of one kind"
            )
    if of_many:
        tables, names = _stacked(sheets_read, wanted)
        return tables, LONG, sheets_read, names
    return _stacked(sheets_read, wanted)[0], FILE_AN_ASSET, sheets_read, names


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


def _wide(sheet: Sheet, wanted: Collection[str] | None) -> pd.DataFrame:
    names = [name for _, name in sheet.columns]
    columns = {name: sheet.numbers(i) for i, name in enumerate(names) if wanted is None or name in wanted}
    return pd.DataFrame(columns, index=sheet.days)


def _two_levels(sheet: Sheet, wanted: Collection[str] | None) -> tuple[PriceTables, tuple[str, ...]]:
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
    kept = [name for name in names if wanted is None or name in wanted]
    return {
        field: pd.DataFrame({name: sheet.numbers(at[name]) for name in kept if name in at}, index=sheet.days)
        for field, at in found.items()
    }, names


def _by_field(sheets: dict[str, Sheet], wanted: Collection[str] | None) -> tuple[PriceTables, tuple[str, ...]]:
    """Tables of a folder with a file a field; dates and assets are those of the closes."""
    lead = sheets.get("close") or sheets[ADJUSTED]
    names = tuple(name for _, name in lead.columns)
    for sheet in sheets.values():
        if sheet.assets is not None or any(field for field, _ in sheet.columns):
            raise MarketError(f"{sheet.path} must have Date and one column an asset, as the file of one field")
        unmatched = lead.days.symmetric_difference(sheet.days)
        if len(unmatched):
            lacks, has = (sheet, lead) if unmatched[0] in lead.days else (lead, sheet)
            raise MarketError(f"{lacks.path} has no row of {unmatched[0].date()}, and {has.path.name} has one")
        if not sheet.days.equals(lead.days):
            raise MarketError(f"{sheet.path} has its dates in another order than {lead.path.name}, or repeats one")
        unknown = [name for _, name in sheet.columns if name not in names]
        if unknown:
            raise MarketError(f"{sheet.path} has a column {unknown[0]!r}, and {lead.path.name} has none")
    return {field: _wide(sheet, wanted) for field, sheet in sheets.items()}, names


def _rows(sheet: Sheet) -> pd.DataFrame:
    """Frame of a sheet whose rows are one asset on one date each: day, asset, and the fields it has.

    The asset is that of the sheet's own column, or else the name of the file.
    """
    name = sheet.path.stem
    labels = [field or asset for field, asset in sheet.columns]
    assets: Any = name
    if sheet.assets is not None:
        labels = [asset for _, asset in sheet.columns]
        assets = sheet.assets
    other = next((asset for field, asset in sheet.columns if field and asset.casefold() != name.casefold()), None)
    if sheet.assets is None and other is not None:
        raise MarketError(f"{sheet.path} holds prices of {other!r}; a file is named after the asset in it")
    fields: dict[str, int] = {}
    for position, label in enumerate(labels):
        field = _KNOWN.get(plain_name(label))
        if field in fields:
            raise MarketError(f"{sheet.path}: columns {labels[fields[field]]!r} and {label!r} are the same field")
        if field is not None:
            fields[field] = position
    if fields.keys().isdisjoint(_CLOSES):
        if sheet.assets is not None:
            raise MarketError(
                f"{sheet.path} has a column that names the asset of a row (Ticker, Symbol or Asset) and no column "
                "Close; add one, or rename the first if it is an asset"
            )
        raise MarketError(
            f"{sheet.path} has no column Close ({', '.join(labels[:6]) or 'no columns but the date'}); each file "
            "of a folder is one asset, with Date, Close and perhaps Open, High, Low and Volume"
        )
    values = {field: sheet.numbers(position) for field, position in fields.items()}
    return pd.DataFrame({"day": sheet.days, "asset": assets, **values})


def _stacked(sheets: Sequence[Sheet], wanted: Collection[str] | None) -> tuple[PriceTables, tuple[str, ...]]:
    """Tables from sheets of rows; dates are those of the assets wanted, in ascending order."""
    if not sheets:
        return {"close": pd.DataFrame(dtype=np.float64)}, ()
    rows = pd.concat([_rows(sheet) for sheet in sheets], keys=range(len(sheets)))
    names = tuple(str(name) for name in rows["asset"].unique())
    kept = [name for name in names if wanted is None or name in wanted]
    rows = rows[rows["asset"].isin(kept)]
    repeated = rows.duplicated(["day", "asset"])
    if repeated.any():
        day, asset = rows.loc[repeated, ["day", "asset"]].iloc[0]
        first, second = rows.index[(rows["day"] == day) & (rows["asset"] == asset)][:2]
        places = [f"{sheets[part].path}, {sheets[part].place(row)}" for part, row in (first, second)]
        raise MarketError(f"{places[1]}: {asset!r} has a second row of {day.date()} (first: {places[0]})")
    cells = rows.set_index(["day", "asset"])
    fields = [field for field in (*FIELDS, ADJUSTED) if field in cells]
    return {
        field: cells[field].unstack("asset").reindex(columns=kept).rename_axis(index=None, columns=None)
        for field in fields
    }, names


def _adjusted(path: Path, tables: PriceTables, auto_adjust: bool) -> tuple[PriceTables, dict[str, Any]]:
    """Return tables with the configured close, and a note of its adjustment."""
    if ADJUSTED not in tables:
        words = "as in the file; dividends and splits count only if its prices are adjusted for them"
        return tables, {"adjusted": words}
    rest = {field: table for field, table in tables.items() if field != ADJUSTED}
    if not auto_adjust:
        if "close" not in rest:
            raise MarketError(f"{path} has Adj Close and no Close; set market.auto_adjust=true")
        words = "the file's Close, not its Adj Close (market.auto_adjust=false): dividends are left out"
        return rest, {"adjusted": words}
    adjusted = tables[ADJUSTED]
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
