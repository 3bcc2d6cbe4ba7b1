"""Audited sources: the panel, written down and loaded again through the configured source."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.price_adjustments import as_traded
from finflow.market.sources import panel_loader
from finflow.market.sources.price_files import FILE_A_FIELD, FILE_AN_ASSET, TWO_LEVELS, WIDE
from finflow.market.sources.yahoo import Download
from finflow.market.sources.yahoo_cache import download_prices
from finflow.training.audit.look_ahead import Answer, Rows

_FIELDS = ("close", "open", "high", "low", "volume")
_DIVIDENDS = ("dividends", "quoted")
_HIGHEST_RATE = 1.0
_NEAR = 250
"""Bars before and after a probe, of the pieces that have listings or a gap put into them."""
_FEW = 6
"""Bars, one more than the last ones on which the Yahoo source takes an absent asset to be still listed."""


def loaded(panel: MarketPanel, market: MarketConfig) -> Answer:
    """The market as the configured source would have given it, written down and loaded through the source."""
    found = through_the_source(panel, market)
    bars = np.searchsorted(panel.dates, found.dates)
    places = [panel.assets.index(name) for name in found.assets]
    answer = {"dates": Rows(found.dates, bars), "cash": Rows(found.cash_returns, bars)}
    for field in (*_fields(found), *(name for name in _DIVIDENDS if getattr(found, name) is not None)):
        table = np.full((found.n_bars, panel.n_assets), np.nan)
        table[:, places] = getattr(found, field)
        answer[field] = Rows(table, bars)
    return answer if found.benchmark is None else {**answer, "benchmark": Rows(found.benchmark, bars)}


def loaded_with_newcomers(panel: MarketPanel, last: int, market: MarketConfig) -> Answer:
    """The source with an asset that lists after the bar `last`, and one that has ended before it."""
    piece, first = _around(panel, last)
    close = piece.close.copy()
    close[: last - first + 2, 0] = np.nan
    close[max(last - first - 20, 2) :, 1] = np.nan
    piece = replace(piece, close=close, open=None, high=None, low=None, volume=None, dividends=None, quoted=None)
    found = loaded(piece, market.model_copy(update={"dividends": "reinvested"}))
    return {name: rows._replace(bars=rows.bars + first) for name, rows in found.items()}


def loaded_with_gap(panel: MarketPanel, last: int, market: MarketConfig) -> Answer:
    """A file in which an asset has no price around the bar `last`: refused, or repaired from the past alone."""
    piece, first = _around(panel, last)
    at = last - first
    table = pd.DataFrame(piece.close, index=pd.DatetimeIndex(piece.dates, name="Date"), columns=list(piece.assets))
    table.iloc[at - 1 : at + 2, int(np.argmax(piece.listed[at - 2 : at + 4].sum(axis=0)))] = np.nan
    with tempfile.TemporaryDirectory() as folder:
        path = _save(table.loc[:, table.notna().any()], Path(folder) / "prices", "csv")
        update = {"source": "csv", "path": path, "tickers": None}
        update |= {"benchmark": None, "start": None, "cash_rate": 0.0, "dividends": "reinvested"}
        try:
            found = panel_loader.load_panel(market.model_copy(update=update))
        except MarketError:
            return {"refused": Rows(np.array([True]), np.array([last]))}
    return {"close": Rows(found.close, np.searchsorted(panel.dates, found.dates))}


def _around(panel: MarketPanel, last: int) -> tuple[MarketPanel, int]:
    first = max(last - _NEAR, 0)
    return panel.between(first, min(last + _NEAR, panel.n_bars)), first


def through_the_source(panel: MarketPanel, market: MarketConfig) -> MarketPanel:
    """Write a panel down as the configured source has its prices, and load it from there.

    CSV and Parquet are written in the layout that was read, with every field of the panel. Yahoo is replaced by a
    download that answers from the panel, and the store keeps it in a folder of its own. Sources that cannot be changed
    (embedded, synthetic) are stood in for by a CSV file. A series of cash rates is written as the rates that explain
    the panel's returns of cash.
    """
    names = tuple(panel.assets[column] for column in np.flatnonzero(panel.listed.any(axis=0)))
    update: dict[str, Any] = {"tickers": names, "benchmark": None, "start": None}
    if panel.benchmark is not None:
        update["benchmark"] = panel.benchmark_name
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if isinstance(market.cash_rate, Path):
            # what a bar earns was in force at the bar before
            annual = np.minimum((1.0 + panel.cash_returns[1:]) ** panel.bars_per_year - 1.0, _HIGHEST_RATE)
            rates = pd.DataFrame({"Date": panel.dates[:-1], "rate": annual})
            update["cash_rate"] = _save(rates, folder / "rates", "csv", index=False)
        if market.source == "yfinance":
            update |= {"cache_dir": folder / "store", "use_cache": True, "test_end": None}
            asked = market.model_copy(update=update)
            prices = download_prices(asked, _answers(panel, market.auto_adjust))
            return panel_loader.assemble(prices, asked).until(panel.dates[-1])
        kind = "parquet" if market.source == "parquet" else "csv"
        layout = str(panel.provenance.get("layout", FILE_A_FIELD if _fields(panel) != ("close",) else WIDE))
        update |= {"source": kind, "path": _write(layout, _tables(panel), folder / "prices", kind)}
        return panel_loader.load_panel(market.model_copy(update=update))


def _fields(panel: MarketPanel) -> tuple[str, ...]:
    return tuple(field for field in _FIELDS if getattr(panel, field) is not None)


def _tables(panel: MarketPanel) -> dict[str, pd.DataFrame]:
    index = pd.DatetimeIndex(panel.dates, name="Date")
    tables = {field: pd.DataFrame(table, index, list(panel.assets)) for field, table in as_traded(panel).items()}
    if panel.benchmark is not None:
        tables["close"][str(panel.benchmark_name)] = panel.benchmark
    kept = tables["close"].columns[tables["close"].notna().any()]
    return {field: table[[name for name in kept if name in table]] for field, table in tables.items()}


def _save(table: pd.DataFrame, path: Path, kind: str, index: bool = True) -> Path:
    path = path.with_name(f"{path.name}.{kind}")
    path.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=index) if kind == "csv" else table.to_parquet(path, index=index)
    return path


def _write(layout: str, tables: dict[str, pd.DataFrame], path: Path, kind: str) -> Path:
    """Write tables in a layout of `price_files`; returns the file or folder."""
    if layout == WIDE:
        return _save(tables["close"], path, kind)
    if layout == FILE_A_FIELD:
        for field, table in tables.items():
            _save(table, path / field, kind)
        return path
    if layout == FILE_AN_ASSET:
        for name in tables["close"].columns:
            own = {field.capitalize(): table[name] for field, table in tables.items() if name in table}
            _save(pd.DataFrame(own).dropna(how="all"), path / name, kind)
        return path
    whole = pd.concat({field.capitalize(): table for field, table in tables.items()}, axis=1)
    whole = whole.rename_axis(columns=["Price", "Ticker"])
    if layout == TWO_LEVELS:
        return _save(whole, path, kind)
    rows = whole.stack(level="Ticker", future_stack=True).dropna(how="all").reset_index()
    return _save(rows.rename_axis(columns=None), path, kind, index=False)


def _answers(panel: MarketPanel, auto_adjust: bool) -> Download:
    """A download with the panel's prices, in frames of yfinance's shape.

    Adjusted closes that know the last price stand beside the closes where those are asked for. Where an asset ended
    within the last bars, the Yahoo source leaves those bars out until it is known that it has: a few more follow then,
    on which whatever is still listed stays as it was.
    """
    tables = _tables(panel)
    close = tables["close"]
    full = {field.capitalize(): tables.get(field, close * np.nan).reindex(columns=close.columns) for field in _FIELDS}
    if not auto_adjust:
        full["Adj Close"] = close * close.ffill().iloc[-1]
    if bool((panel.listed[-_FEW:].any(axis=0) & ~panel.listed[-1]).any()):
        after = pd.bdate_range(panel.dates[-1], periods=_FEW + 1)[1:]
        more = pd.DatetimeIndex([*close.index, *after], name="Date")
        lasting = close.columns[close.iloc[-1].notna()]
        for field, table in full.items():
            full[field] = table.reindex(more)
            full[field].loc[after, lasting] = table[lasting].iloc[-1].to_numpy()

    def download(tickers: list[str], **_: Any) -> pd.DataFrame:
        asked = {field: table.reindex(columns=tickers) for field, table in full.items()}
        return pd.concat(asked, axis=1).rename_axis(columns=["Price", "Ticker"]).sort_index(axis=1)

    return download
