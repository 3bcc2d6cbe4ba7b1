"""Downloaded prices of Yahoo on disk: kept by request and hash, and extended by the bars that have come since.

An extension asks for the last `OVERLAP` stored bars again, with those after them, and fetches the whole history of a
ticker whose prices Yahoo has restated: docs/reference/market.md, Yahoo.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finflow.config import MarketConfig
from finflow.config.section_types import first_repeated
from finflow.errors import MarketError, OutputError
from finflow.files import write_atomically
from finflow.market.price_adjustments import PriceTables, SourcePrices
from finflow.market.sources.yahoo import (
    Download,
    checked_tables,
    fetch_prices,
    request_end,
    request_prices,
    yfinance_download,
)

logger = logging.getLogger(__name__)

OVERLAP = 21
"""Stored bars that an extension asks for again."""
RESTATED = 1e-5
"""Relative change of a stored close that counts as one; Yahoo writes single precision."""


class StoredPrices(NamedTuple):
    """A frame equal to the one stored, the facts stored with it, and the hash of the file."""

    frame: pd.DataFrame
    facts: dict[str, Any]
    sha256: str


class PriceStore:
    """A folder with a file a request: a line with the SHA-256 of the rest, a line of JSON with the facts, then Parquet.

    A file appears by an atomic rename, and one whose hash has changed is never returned. With ``read`` off the store
    only writes (`--no-cache`).
    """

    def __init__(self, folder: Path, read: bool = True) -> None:
        self.folder = folder
        self.read = read

    def has(self, request: Mapping[str, Any]) -> bool:
        """True where something is stored for a request, be it damaged."""
        return self.read and self._path(request).exists()

    def get(self, request: Mapping[str, Any]) -> StoredPrices | None:
        """Return the prices stored for a request, or None if there are none, or damaged ones (with a warning)."""
        path = self._path(request)
        if not self.has(request):
            return None
        try:
            digest, _, rest = path.read_bytes().partition(b"\n")
            if hashlib.sha256(rest).hexdigest().encode() != digest:
                raise ValueError(f"the SHA-256 of {path.name} has changed")
            line, _, table = rest.partition(b"\n")
            manifest = json.loads(line)
            if manifest["request"] != request:
                raise ValueError(f"{path.name} answers another request")
            return StoredPrices(pd.read_parquet(io.BytesIO(table)), manifest["facts"], digest.decode())
        except (OSError, ValueError, KeyError) as error:
            logger.warning("stored prices in %s are damaged (%s); fetching them again", self.folder, error)
            return None

    def put(self, request: Mapping[str, Any], frame: pd.DataFrame, facts: Mapping[str, Any]) -> StoredPrices:
        table = io.BytesIO()
        frame.to_parquet(table)
        rest = _canonical({"request": dict(request), "facts": dict(facts)}) + b"\n" + table.getvalue()
        digest = hashlib.sha256(rest).hexdigest()
        try:
            write_atomically(self._path(request), digest.encode() + b"\n" + rest)
        except OutputError as error:
            raise OutputError(f"downloaded prices cannot be stored (market.cache_dir): {error}") from None
        return StoredPrices(frame, dict(facts), digest)

    def _path(self, request: Mapping[str, Any]) -> Path:
        return self.folder / f"{hashlib.sha256(_canonical(request)).hexdigest()[:32]}.prices"


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(content), sort_keys=True, separators=(",", ":")).encode()


def download_prices(config: MarketConfig, download: Download | None = None) -> SourcePrices:
    """Get the prices of the configured tickers and benchmark, in upper case, from the store, or else from Yahoo.

    With `market.extend_cache`, stored prices are extended by the bars that have come since, and stored again. The
    request is of the tickers, the benchmark, start, test_end and auto_adjust; ``download`` stands in for
    `yfinance.download`. `MarketError` has the tickers that could not be downloaded, and advice.
    """
    assets, benchmark = config.tickers or (), config.benchmark
    if (repeated := first_repeated(assets)) is not None:
        raise MarketError(f"market.tickers names {repeated} more than once (Yahoo's tickers are in upper case)")
    tickers = list(dict.fromkeys([*assets, *([benchmark] if benchmark else [])]))
    request = {
        "source": "yfinance",
        "tickers": tickers,
        "start": str(config.start) if config.start else None,
        "test_end": str(config.test_end) if config.test_end else None,
        "auto_adjust": config.auto_adjust,
    }
    store = PriceStore(config.cache_dir, config.use_cache)
    stored = store.get(request)
    if stored is None:
        try:
            tables, facts = fetch_prices(config, tickers, assets, download or yfinance_download())
        except MarketError as error:
            if store.has(request):
                raise MarketError(f"the stored prices in {store.folder} are damaged, and {error}") from None
            raise
        stored = store.put(request, pd.concat(tables, axis=1), facts)
    elif config.extend_cache:
        longer = _extend(config, assets, stored, download or yfinance_download())
        stored = stored if longer is None else store.put(request, pd.concat(longer[0], axis=1), longer[1])
    return SourcePrices(_tables(stored.frame), {**stored.facts, "file_sha256": stored.sha256})


def _extend(
    config: MarketConfig, assets: Sequence[str], stored: StoredPrices, download: Download
) -> tuple[PriceTables, dict[str, Any]] | None:
    """Stored prices with the bars that have come since, and their facts; None where there are none."""
    tables = _tables(stored.frame)
    close = tables["close"]
    last = close.index[-1]
    if last.date() + dt.timedelta(days=1) >= request_end(config):
        return None
    again = close.iloc[-OVERLAP:]
    live = [str(name) for name in close.columns if bool(again[name].notna().any())]
    found = request_prices(config.model_copy(update={"start": again.index[0].date()}), live, download)
    factors = _restated(close, found)
    if factors:
        found |= request_prices(config, list(factors), download)
    joined = {
        field: pd.concat([_column(table, name, field, found, factors) for name in close.columns], axis=1).sort_index()
        for field, table in tables.items()
        if all(field in found[name] for name in live)
    }
    longer, notes = checked_tables(joined, assets)
    new = int((longer["close"].index > last).sum())
    if not factors and not new:
        return None
    dropped = int((joined["close"].index > last).sum()) - new
    facts = {**stored.facts, "dates_dropped": stored.facts["dates_dropped"] + dropped}
    facts["extended"] = f"{new} bars after {last.date()}"
    day = longer["close"].index[-1].date()
    if factors:
        notes["restated"] = ", ".join(f"{name} by {factor:.6g}" for name, factor in factors.items()) + f" ({day})"
    for key in ("fields_left_out", "restated"):
        if key in notes:
            facts[key] = "; ".join(dict.fromkeys([*([facts[key]] if key in facts else []), notes[key]]))
    return longer, facts


def _restated(close: pd.DataFrame, found: Mapping[str, PriceTables]) -> dict[str, float]:
    """Tickers whose stored closes are others now, and the median of now over then; NaN without a common date."""
    factors = {}
    for name, tables in found.items():
        ratio = (tables["close"][name] / close[name]).dropna()
        if ratio.empty or float((ratio - 1.0).abs().max()) > RESTATED:
            factors[name] = float(ratio.median()) if len(ratio) else np.nan
    return factors


def _column(
    table: pd.DataFrame, name: str, field: str, found: Mapping[str, PriceTables], restated: Mapping[str, float]
) -> pd.Series[float]:
    """One field of one ticker: as it was stored, then as it was fetched; fetched alone where it was restated."""
    if name not in found:
        return table[name]
    fetched = found[name][field][name]
    return fetched if name in restated else table[name].combine_first(fetched)


def _tables(frame: pd.DataFrame) -> PriceTables:
    """Table of each field of a frame whose columns are (field, ticker)."""
    return {str(field): pd.DataFrame(frame[field]) for field in frame.columns.unique(0)}
