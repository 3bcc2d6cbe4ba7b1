"""Prices from Yahoo Finance through yfinance."""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any, cast

import numpy as np
import pandas as pd

from finflow.config import MarketConfig
from finflow.errors import MarketError, first_few
from finflow.market.price_adjustments import PriceTables

Download = Callable[..., "pd.DataFrame | None"]
"""A function with the signature of `yfinance.download`."""

logger = logging.getLogger(__name__)

_FIELDS = {"Open": "open", "High": "high", "Low": "low", "Close": "close", "Volume": "volume"}
_ATTEMPTS = 3
_WAITS = (1.0, 2.0)
_LONG_WAITS = (5.0, 20.0)
"""Seconds between attempts: usually, and where Yahoo limits the rate of requests."""
_PATIENCE = 6.0
"""Seconds after which no request is repeated if no price has arrived."""
_TIMEOUT = 8.0
"""Seconds that yfinance waits for one answer."""
_LIVE_BARS = 5
"""An asset whose last price is within so many bars of the end counts as still listed."""
_LONGEST_HOLE = 10
"""Consecutive dates that an asset may lack because its exchange was closed."""
_PERMANENT = re.compile(r"delisted|not found|404|invalid|doesn't exist", re.IGNORECASE)
_LIMITED = re.compile(r"too many requests|rate ?limit|429", re.IGNORECASE)


def tables_from_frame(frame: pd.DataFrame | None) -> PriceTables:
    """Split a frame of yfinance's, with columns (Price, Ticker), into one frame a field, dates by tickers.

    Of a date that Yahoo returns twice the last row counts. Rows and columns without a value are left out.
    """
    if frame is None or frame.empty or "Close" not in frame:
        return {}
    frame = frame.set_axis(pd.DatetimeIndex(frame.index).tz_localize(None).normalize())
    frame = frame[~frame.index.duplicated(keep="last")].sort_index()
    tables = {name: cast("pd.DataFrame", frame[field]) for field, name in _FIELDS.items() if field in frame}
    close = tables["close"].dropna(axis=0, how="all").dropna(axis=1, how="all")
    return {
        name: table.reindex(close.index, columns=close.columns).apply(pd.to_numeric, errors="coerce").astype(np.float64)
        for name, table in tables.items()
    }


def yfinance_download() -> Download:
    """Return `yfinance.download` with its option `hide_exceptions` off.

    With it on, yfinance reports a ticker as "possibly delisted" when the network failed for it, and returns unadjusted
    prices when adjusting them failed.
    """
    try:
        import yfinance
    except ImportError:
        raise MarketError("market.source=yfinance needs the package yfinance: pip install yfinance") from None

    def download(tickers: list[str], **options: Any) -> pd.DataFrame | None:
        debug = yfinance.config.debug
        hidden = debug.hide_exceptions
        debug.hide_exceptions = False
        try:
            return cast("pd.DataFrame | None", yfinance.download(tickers, **options))
        finally:
            debug.hide_exceptions = hidden

    return download


def request_end(config: MarketConfig) -> dt.date:
    """First date that is not asked for: the day after `market.test_end`, or the first that may not be over yet.

    A date is over once it has ended in every time zone: bars before it are complete at every exchange.
    """
    incomplete = _now().astimezone(dt.timezone(dt.timedelta(hours=-12))).date()
    return incomplete if config.test_end is None else min(incomplete, config.test_end + dt.timedelta(days=1))


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def fetch_prices(
    config: MarketConfig, tickers: list[str], assets: Sequence[str], download: Download
) -> tuple[PriceTables, dict[str, Any]]:
    found = request_prices(config, tickers, download)
    fields = [field for field in _FIELDS.values() if all(field in found[name] for name in tickers)]
    joined = {field: pd.concat([found[name][field] for name in tickers], axis=1).sort_index() for field in fields}
    tables, notes = checked_tables(joined, assets)
    return tables, {
        "source": "yfinance",
        "yfinance": metadata.version("yfinance"),
        "adjusted": "prices adjusted for dividends and splits (auto_adjust)"
        if config.auto_adjust
        else "prices adjusted for splits only: Yahoo's Close, not its Adj Close; dividends are left out",
        "downloaded": str(_now().date()),
        "survivorship": "tickers picked today: names that failed or were bought before today are missing",
        **notes,
    }


def request_prices(config: MarketConfig, tickers: list[str], download: Download) -> dict[str, PriceTables]:
    """Request prices from `market.start` on, and those still missing again while that may help.

    `MarketError` has the tickers that have no prices, yfinance's reason and advice.
    """
    options = {
        **{"start": str(config.start or dt.date(1900, 1, 1)), "end": str(request_end(config))},
        **{"auto_adjust": config.auto_adjust, "interval": "1d", "actions": False, "ignore_tz": True},
        **{"group_by": "column", "multi_level_index": True, "progress": False, "threads": True, "timeout": _TIMEOUT},
    }
    found: dict[str, PriceTables] = {}
    missing = list(tickers)
    began = time.monotonic()
    for attempt in range(_ATTEMPTS):
        with _captured_log() as reasons:
            try:
                frame = download(missing, **options)
            except Exception as error:
                # yfinance lets anything through: its own errors, the HTTP library's, KeyError on odd answers.
                frame = None
                reasons.append(f"{type(error).__name__}: {error}")
        tables = tables_from_frame(frame)
        for name in missing:
            if tables and name in tables["close"].columns:
                found[name] = {field: table[[name]] for field, table in tables.items()}
        missing = [name for name in tickers if name not in found]
        if not missing:
            return found
        permanent = bool(reasons) and all(_PERMANENT.search(line) for line in reasons) and bool(found)
        limited = any(_LIMITED.search(line) for line in reasons)
        too_slow = not found and not limited and time.monotonic() - began > _PATIENCE
        if permanent or too_slow or attempt == _ATTEMPTS - 1:
            break
        seconds = (_LONG_WAITS if limited else _WAITS)[attempt]
        logger.warning("no prices yet for %s; asking again in %g s", ", ".join(missing[:10]), seconds)
        _wait(seconds)
    raise MarketError(_describe_failure(missing, len(found), reasons))


def _wait(seconds: float) -> None:
    time.sleep(seconds)


@contextlib.contextmanager
def _captured_log() -> Iterator[list[str]]:
    """Capture yfinance's log lines, the only place where it gives the reason of a failed ticker."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage().strip()
            if text and not re.fullmatch(r"\d+ Failed downloads?:", text):
                lines.append(text)

    source = logging.getLogger("yfinance")
    handlers, propagate, level = source.handlers[:], source.propagate, source.level
    source.handlers, source.propagate = [Keep(logging.ERROR)], False
    source.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield lines
    finally:
        source.handlers, source.propagate = handlers, propagate
        source.setLevel(level)


def _describe_failure(missing: list[str], n_found: int, reasons: list[str]) -> str:
    reason = " ".join(" ".join(reasons).split())
    names = first_few(missing, 10)
    shown = f" (yfinance: {reason[:160]})" if reason else ""
    if _LIMITED.search(reason):
        return (
            f"Yahoo limits the rate of requests and gave no prices for {names}; wait some minutes and try again{shown}"
        )
    if n_found:
        return (
            f"no prices for {names}, though {n_found} other tickers were found; check the spelling or leave "
            f"{'it' if len(missing) == 1 else 'them'} out of market.tickers{shown}"
        )
    return (
        f"no prices could be downloaded for {names}; check the network and the tickers, or work offline with "
        f"market.source=embedded, csv or parquet{shown}"
    )


def checked_tables(tables: PriceTables, assets: Sequence[str]) -> tuple[PriceTables, dict[str, Any]]:
    """Refuse closes that no price can be, and leave out dates that not every listed asset has, and incomplete fields.

    Adjusting old prices for dividends larger than they are makes closes that are not positive. Nothing is filled.
    """
    values = tables["close"].to_numpy()
    wrong = np.argwhere(np.isinf(values) | (values <= 0.0))
    if len(wrong):
        row, column = (int(place) for place in wrong[-1])
        name, day = tables["close"].columns[column], tables["close"].index[row].date()
        raise MarketError(
            f"Yahoo's close of {name} is {values[row, column]:g} on {day}, which no price can be; leave it out, set "
            f"market.start after {day}, or market.auto_adjust=false"
        )
    tables = same_calendar(tables)
    dropped = len(values) - len(tables["close"])
    tables, left_out = _complete_fields(tables, list(assets))
    return tables, {"dates_dropped": dropped, **({"fields_left_out": "; ".join(left_out)} if left_out else {})}


def same_calendar(tables: PriceTables) -> PriceTables:
    """Leave out the dates on which some listed asset has no price.

    `MarketError` if an asset lacks more than ten dates in a row between its first and last price.
    """
    close = tables["close"]
    present = close.notna().to_numpy()
    rows = np.arange(len(close))[:, None]
    last = len(close) - 1 - present[::-1].argmax(axis=0)
    last = np.where(last >= len(close) - 1 - _LIVE_BARS, len(close) - 1, last)
    holes = (rows >= present.argmax(axis=0)) & (rows <= last) & ~present
    for column, name in enumerate(close.columns):
        missing = np.flatnonzero(holes[:, column])
        longest = max(np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1), key=len)
        if len(longest) > _LONGEST_HOLE:
            raise MarketError(
                f"{name} has no prices on {len(longest)} dates in a row from {close.index[longest[0]].date()}, between "
                "its first and last price; leave it out or set market.start after the gap"
            )
    dropped = holes.any(axis=1)
    if dropped.any():
        logger.warning("%d dates left out because not every listed asset traded on them", int(dropped.sum()))
    return {field: table.loc[~dropped] for field, table in tables.items()}


def _complete_fields(tables: PriceTables, assets: list[str]) -> tuple[PriceTables, list[str]]:
    """Leave out fields that lack values where there are closes, and high and low where a high is below its low.

    Only the columns of assets count, not the benchmark's. The second result says what was left out.
    """
    closes = tables["close"][assets].notna().to_numpy()
    kept: PriceTables = {}
    for field, table in tables.items():
        values = table[assets].to_numpy()
        sound = np.isfinite(values) & ((values >= 0.0) if field == "volume" else (values > 0.0))
        if field == "close" or bool(sound[closes].all()):
            kept[field] = table.where(tables["close"].notna())
    left_out = [field for field in tables if field not in kept]
    notes = [f"{', '.join(left_out)}: missing or zero where there is a closing price"] if left_out else []
    if "high" in kept and "low" in kept and bool((kept["high"][assets] < kept["low"][assets]).any(axis=None)):
        del kept["high"], kept["low"]
        notes.append("high, low: a high is under its low")
    return kept, notes
