"""Panels from the configured source of prices."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.files import read_text_input
from finflow.market.cash import CashRates, cash_returns, check_covered, read_rates, treasury_bills
from finflow.market.dividends import reinvest
from finflow.market.panel import MarketPanel
from finflow.market.price_gaps import hold_over_gaps
from finflow.market.sources.french_portfolios import french_portfolios
from finflow.market.sources.price_files import PriceTables, read_prices
from finflow.market.sources.shipped_tables import shipped_table
from finflow.market.sources.yahoo_cache import download_prices
from finflow.market.synthetic.synthetic_market import synthetic_tables

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]

_INDEX = "SP500"


def load_panel(config: MarketConfig) -> MarketPanel:
    """Load the configured market from `market.start` on; `split_panel` applies the other dates.

    `MarketError` is one line that names the asset, column or date at fault.
    """
    names = _asset_names(config)
    _rate(config)  # errors of the rate are reported before those of the prices
    if config.source in ("embedded", "synthetic"):
        embedded = config.source == "embedded"
        tables, facts = (_embedded(), _embedded_facts()) if embedded else synthetic_tables(config.synthetic)
        return assemble(tables, facts, config)
    if config.source == "french":
        portfolios = french_portfolios()
        return assemble({"close": portfolios.close}, portfolios.facts, config, portfolios.cash)
    if config.source == "yfinance":
        tables, facts = download_prices(config, names or ())
        return assemble(tables, facts, config)
    if config.path is None:
        raise MarketError(f"market.source {config.source} needs market.path, the file with the prices")
    benchmark = () if config.benchmark is None else (config.benchmark,)
    wanted = None if names is None else {*names, *benchmark}
    tables, facts = read_prices(config.path, config.source, wanted, config.auto_adjust, config.dividends == "cash")
    try:
        return assemble(tables, facts, config)
    except MarketError as error:
        raise MarketError(f"{config.path}: {error}") from None


def named_assets(config: MarketConfig) -> tuple[str, ...] | None:
    """Names of `market.tickers` or of `market.tickers_file`; None where neither is set."""
    if config.tickers_file is None:
        names, key = config.tickers, "market.tickers"
    else:
        names, key = read_tickers(config.tickers_file), f"{config.tickers_file} (market.tickers_file)"
    if names is not None and len(names) == 1:
        raise MarketError(f"a portfolio needs at least two assets and {key} names {names[0]} only")
    return names


def read_tickers(path: Path) -> tuple[str, ...]:
    """Read names separated by commas, blanks or lines; text after # on a line is a comment.

    `MarketError` is one line that names the file, and the line where there is one.
    """
    text = read_text_input(path, "market.tickers_file", MarketError)
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for name in re.split(r"[,\s]+", line.partition("#")[0].strip()):
            if not name:
                continue
            if not name.isprintable() or re.search(r"[\"';|]", name):
                raise MarketError(f"{path}, line {number}: {name[:40]!r} is not a ticker; write names without quotes")
            if name in lines:
                raise MarketError(f"{path}, line {number}: {name!r} is there already, on line {lines[name]}")
            lines[name] = number
    if not lines:
        raise MarketError(f"market.tickers_file {path} names no asset")
    return tuple(lines)


@lru_cache(maxsize=1)
def _embedded() -> PriceTables:
    close, index = shipped_table("sp500_dataset"), shipped_table("sp500_index")
    return {"close": close.join(index[[_INDEX]])}


def _embedded_facts() -> dict[str, Any]:
    return {
        "source": "embedded",
        "data": "20 S&P 500 stocks and the index, daily, 1990 to 2022, shipped with skfolio",
        "skfolio": metadata.version("skfolio"),
        "adjusted": "closing prices adjusted for dividends and splits",
        "benchmark_note": "the index is a price index: its dividends are left out, those of the stocks are in",
        "survivorship": (
            "the 20 names were chosen with hindsight: all of them were still listed in 2022, so any long-only "
            "portfolio of them looks better than one of names chosen in 1990 would have"
        ),
        "default_benchmark": _INDEX,
    }


def _asset_names(config: MarketConfig) -> tuple[str, ...] | None:
    names = named_assets(config)
    return names if names is None or config.source != "yfinance" else tuple(name.strip().upper() for name in names)


def _rate(config: MarketConfig) -> float | CashRates:
    if isinstance(config.cash_rate, Path):
        return read_rates(config.cash_rate)
    return treasury_bills() if isinstance(config.cash_rate, str) else config.cash_rate


def assemble(
    tables: PriceTables, facts: Mapping[str, Any], config: MarketConfig, cash: FloatArray | None = None
) -> MarketPanel:
    """Choose columns, cut to `market.start`, and hand everything to the panel's own checks.

    ``cash`` is what cash earned by the source itself; it counts unless `market.cash_rate` is set.
    """
    close, rate = tables["close"], _rate(config)
    provenance = dict(facts)
    columns = [str(name) for name in provenance.pop("names", close.columns)]
    benchmark = config.benchmark or provenance.get("default_benchmark")
    provenance.pop("default_benchmark", None)
    if benchmark is not None and config.source == "yfinance":
        benchmark = benchmark.strip().upper()
    if benchmark is not None and benchmark not in columns:
        raise MarketError(_unknown("the benchmark (market.benchmark)", benchmark, columns, config.source))
    names = list(_asset_names(config) or [name for name in columns if name != benchmark])
    for name in names:
        if name not in columns:
            raise MarketError(_unknown("the asset (market.tickers)", name, columns, config.source))
    dates = close.index.to_numpy(dtype="datetime64[D]")
    kept = np.ones(len(dates), dtype=np.bool_)
    if config.start is not None:
        kept = dates >= np.datetime64(config.start, "D")
        if len(dates) and not kept.any():
            raise MarketError(f"market.start is {config.start}, but the data ends on {dates.max()}")
    fields = {key: frame.reindex(columns=names).to_numpy(dtype=np.float64)[kept] for key, frame in tables.items()}
    if kept.any():
        last = dates[kept].max()
        check_covered(rate, last if config.test_end is None else min(last, np.datetime64(config.test_end, "D")))
    cash_returns_used, cash_facts = _cash(dates[kept], rate, None if cash is None else cash[kept])
    dividends = fields.pop("dividends", None)
    provenance |= _drop_missing_fields(fields, names, provenance.get("fields_left_out"))
    fields, halted = hold_over_gaps(fields, config.max_gap)
    if dividends is not None:
        fields = reinvest(fields, dividends, dates[kept], names)
        provenance["adjusted"] = (
            "the file's Close and Dividends: dividends are paid in cash at their ex-dates (market.dividends=cash); "
            "features read prices with dividends reinvested"
        )
    panel = MarketPanel(
        dates=dates[kept],
        assets=tuple(names),
        cash_returns=cash_returns_used,
        halted=halted,
        benchmark=None if benchmark is None else close[benchmark].to_numpy(dtype=np.float64)[kept],
        benchmark_name=benchmark,
        provenance={**provenance, **cash_facts},
        **fields,
    )
    _check_listings(panel)
    return panel


def _cash(
    dates: NDArray[np.datetime64], rate: float | CashRates, of_source: FloatArray | None
) -> tuple[FloatArray, dict[str, Any]]:
    """Returns of cash, and where they are from: the source's own where it has them and no rate is configured."""
    if of_source is not None and isinstance(rate, float | int) and rate == 0.0:
        return np.concatenate([[0.0], of_source[1:]]), {"cash_rate": "the source's own: one-month Treasury bills"}
    facts = rate.facts() if isinstance(rate, CashRates) else {"cash_rate": rate}
    return cash_returns(dates, rate), facts


def _drop_missing_fields(fields: dict[str, FloatArray], names: Sequence[str], before: str | None) -> dict[str, str]:
    """Leave out fields of which some asset has no value at all, and return a note of them; the panel refuses gaps."""
    notes = [] if before is None else [before]
    has_close = np.isfinite(fields["close"]).any(axis=0)
    for field in [name for name in fields if name != "close"]:
        lacking = np.flatnonzero(has_close & np.isnan(fields[field]).all(axis=0))
        if lacking.size:
            del fields[field]
            notes.append(f"{field}: {names[int(lacking[0])]} has none")
            logger.warning("%s left out, because %s has none", field, names[int(lacking[0])])
    return {"fields_left_out": "; ".join(notes)} if notes else {}


def _check_listings(panel: MarketPanel) -> None:
    """Refuse assets without a single price, and assets that never trade on the same dates."""
    listed = panel.listed
    empty = np.flatnonzero(~listed.any(axis=0))
    span = f"between {panel.dates[0]} and {panel.dates[-1]}"
    if empty.size:
        raise MarketError(f"asset {panel.assets[int(empty[0])]!r} has no price {span}; leave it out")
    if int(np.count_nonzero(listed.sum(axis=1) >= 2)) < 2:
        raise MarketError(
            f"the assets have no common dates: there are no two dates {span} on which two of them have a price"
        )


def _unknown(what: str, name: str, columns: list[str], source: str) -> str:
    folded = {column.casefold(): column for column in columns}
    near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.5)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else f"; it has {', '.join(columns[:25])}"
    other = " (for other tickers set market.source=yfinance)" if source == "embedded" else ""
    return f"{what} {name!r} is not in the {source} data{hint}{other}"
