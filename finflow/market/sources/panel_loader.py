"""Panels from the configured source of prices."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from finflow.arrays import BoolArray, FloatArray
from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.panel_checks import PriceTable
from finflow.market.plausibility.price_levels import with_plausible_levels
from finflow.market.price_adjustments import SourcePrices, hold_over_gaps, reinvest
from finflow.market.sources.cash import CashRates, cash_returns, read_rates, treasury_bills
from finflow.market.sources.price_files import read_prices
from finflow.market.sources.shipped_prices import embedded_prices, french_portfolios
from finflow.market.sources.synthetic_market import synthetic_prices
from finflow.market.sources.yahoo_cache import download_prices

logger = logging.getLogger(__name__)

_LATELY = 7  # last rows, of which an asset that has a price has not ended


def load_panel(config: MarketConfig) -> MarketPanel:
    """Load the configured market from `market.start` on; `split_panel` applies the other dates.

    `MarketError` is one line that names the asset, column or date at fault.
    """
    if config.tickers is not None and len(config.tickers) == 1:
        raise MarketError(f"a portfolio needs at least two assets and market.tickers names {config.tickers[0]} only")
    _rate(config)  # errors of the rate are reported before those of the prices
    made: dict[str, Callable[[], SourcePrices]] = {
        "embedded": embedded_prices,
        "french": french_portfolios,
        "synthetic": lambda: synthetic_prices(config.synthetic),
    }
    if config.source in made:
        return with_plausible_levels(assemble(made[config.source](), config))
    if config.source == "yfinance":
        upper = {"tickers": tuple(name.strip().upper() for name in config.tickers or ())}
        benchmark = config.benchmark.strip().upper() if config.benchmark else None
        config = config.model_copy(update={**upper, "benchmark": benchmark})
        return with_plausible_levels(assemble(download_prices(config), config))
    if config.path is None:
        raise MarketError(f"market.source {config.source} needs market.path, the file with the prices")
    others = [name for name in (config.benchmark, config.align) if name is not None]
    wanted = None if config.tickers is None else {*config.tickers, *others}
    prices = read_prices(config.path, config.source, wanted, config.auto_adjust, config.dividends == "cash")
    try:
        return with_plausible_levels(assemble(prices, config))
    except MarketError as error:
        raise MarketError(f"{config.path}: {error}") from None


def _rate(config: MarketConfig) -> float | CashRates:
    if isinstance(config.cash_rate, Path):
        return read_rates(config.cash_rate, config.cash_unit)
    return treasury_bills() if config.cash_fraction is None else config.cash_fraction


def assemble(prices: SourcePrices, config: MarketConfig) -> MarketPanel:
    """Choose columns, cut to `market.start`, and hand everything to the panel's own checks."""
    close = prices.tables["close"]
    columns = [str(name) for name in prices.names or close.columns]
    benchmark, rate = config.benchmark or prices.benchmark, _rate(config)
    if benchmark is not None and benchmark not in columns:
        raise MarketError(_unknown("the benchmark (market.benchmark)", benchmark, columns, config.source))
    names = config.tickers or tuple(name for name in columns if name != benchmark)
    if config.align not in ("union", "intersection", *columns):
        raise MarketError(
            _unknown("market.align, union, intersection or a ticker,", config.align, columns, config.source)
        )
    for name in names:
        if name not in columns:
            raise MarketError(_unknown("the asset (market.tickers)", name, columns, config.source))
    dates = close.index.to_numpy(dtype="datetime64[D]")
    kept = np.ones(len(dates), dtype=np.bool_)
    if config.start is not None:
        kept = dates >= np.datetime64(config.start, "D")
        if len(dates) and not kept.any():
            raise MarketError(f"market.start is {config.start}, but the data ends on {dates.max()}")
    besides = benchmark if config.align == "intersection" else config.align if config.align in columns else None
    priced = close.reindex(columns=[*names, *([besides] if besides else [])]).notna().to_numpy()
    counted = kept & _counted(priced, config)
    fields = {key: table.reindex(columns=names).to_numpy(np.float64) for key, table in prices.tables.items()}
    if "dividends" in fields:
        fields["dividends"] = _paid_later(fields["dividends"], kept, counted)
    fields, kept = {key: table[counted] for key, table in fields.items()}, counted
    dates, year = dates[kept], config.bars_per_year or 0
    last = dates.max() if len(dates) else None
    if last is not None and config.test_end is not None:
        last = min(last, np.datetime64(config.test_end, "D"))
    facts = {**prices.facts, "cash_rate": rate} if isinstance(rate, float | int) else {**prices.facts, **rate.facts()}
    if prices.cash is not None and rate == 0.0:
        facts["cash_rate"] = "the source's own: one-month Treasury bills"
        cash = np.concatenate([[0.0], prices.cash[kept][1:]])
    else:
        cash = cash_returns(dates, rate, last, year)
    if empty := [str(day) for day in close.index.to_numpy("datetime64[D]")[_empty_end(priced) :]]:
        facts["empty_rows"] = empty
    dividends = fields.pop("dividends", None)
    _drop_missing_fields(fields, names, facts)
    fields, halted = hold_over_gaps(fields, config.max_gap)
    if dividends is not None:
        fields = reinvest(fields, dividends, dates, names)
        facts["adjusted"] = (
            "the file's Close and Dividends: dividends are paid in cash at their ex-dates (market.dividends=cash); "
            "features read prices with dividends reinvested"
        )
    panel = MarketPanel(
        dates=dates,
        assets=names,
        cash_returns=cash,
        halted=halted,
        benchmark=None if benchmark is None else close[benchmark].to_numpy(dtype=np.float64)[kept],
        benchmark_name=benchmark,
        bars_per_year=year,
        provenance=facts,
        **fields,
    )
    PriceTable(panel.dates, panel.assets, panel.close).check_listings()
    return panel


def _empty_end(priced: BoolArray) -> int:
    """Row from which on no asset has a price; mask (bars, assets)."""
    return int(np.flatnonzero(priced.any(axis=1)).max(initial=-1)) + 1


def _counted(priced: BoolArray, config: MarketConfig) -> BoolArray:
    """Mask (bars,) of the rows that are bars by `market.align`, without those at the end on which nothing has a price.

    ``priced``: (bars, assets), and the ticker whose dates count, if there is one, in the last column.
    """
    rows = np.arange(len(priced)) < (_empty_end(priced) or len(priced))
    if config.align == "intersection":
        goes_on = np.logical_or.accumulate(priced[::-1], axis=0)[::-1] | priced[-_LATELY:].any(axis=0)
        listed = np.logical_or.accumulate(priced, axis=0) & goes_on
        return np.asarray(rows & (priced | ~listed).all(axis=1))
    return rows if config.align == "union" else rows & priced[:, -1]


def _paid_later(dividends: FloatArray, kept: BoolArray, counted: BoolArray) -> FloatArray:
    """Dividends (bars, assets) of rows that do not count, paid at the next that does."""
    bars, moved = np.flatnonzero(counted), np.zeros_like(dividends)
    rows = np.flatnonzero(kept)[np.searchsorted(bars, np.flatnonzero(kept)) < len(bars)]
    np.add.at(moved, bars[np.searchsorted(bars, rows)], np.nan_to_num(dividends[rows]))
    return moved if (kept & ~counted).any() else dividends


def _drop_missing_fields(fields: dict[str, FloatArray], names: tuple[str, ...], facts: dict[str, object]) -> None:
    """Leave out fields of which some asset has no value at all, and note them among the facts; panels refuse gaps."""
    notes = [facts["fields_left_out"]] if "fields_left_out" in facts else []
    has_close = np.isfinite(fields["close"]).any(axis=0)
    for field in [name for name in fields if name != "close"]:
        lacking = np.flatnonzero(has_close & np.isnan(fields[field]).all(axis=0))
        if lacking.size:
            del fields[field]
            notes.append(f"{field}: {names[int(lacking[0])]} has none")
            logger.warning("%s left out, because %s has none", field, names[int(lacking[0])])
    if notes:
        facts["fields_left_out"] = "; ".join(map(str, notes))


def _unknown(what: str, name: str, columns: list[str], source: str) -> str:
    folded = {column.casefold(): column for column in columns}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else f"; it has {', '.join(columns[:25])}"
    other = " (for other tickers set market.source=yfinance)" if source == "embedded" else ""
    return f"{what} {name!r} is not in the {source} data{hint}{other}"
