"""Yahoo's server as the installed yfinance meets it; from its HTTP requests to the panel all is the real code."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.config import MarketConfig
from finflow.errors import FinflowError, MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel

DAYS = pd.bdate_range("2020-01-01", periods=80)
FIELDS = ("open", "high", "low", "close", "volume")


def assert_refused(words: Sequence[str], load: Callable[[], object], error: type[FinflowError] = MarketError) -> None:
    """An error in one line, with all of these words."""
    with pytest.raises(error) as caught:
        load()
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


class Reply:
    """What the HTTP library gives back."""

    url = "https://query2.finance.yahoo.com/"

    def __init__(self, content: dict[str, Any], status: int = 200) -> None:
        self.text = json.dumps(content)
        self.status_code = status

    def json(self) -> Any:
        return json.loads(self.text)


class Server:
    """Charts by ticker, of which a request gets the days that it names, or a failure.

    Attributes
    ----------
    today : Timestamp
        The bars before it are over everywhere.
    asked : list of (str, str)
        Ticker and first day of every request.
    said : str
        Answer to a request for a ticker without a chart.
    """

    def __init__(self) -> None:
        self.charts: dict[str, pd.DataFrame] = {}
        self.zones: dict[str, str] = {}
        self.today = DAYS[60]
        self.asked: list[tuple[str, str]] = []
        self.said = ""
        self.failures: dict[str, Iterator[Exception]] = {}

    def put(self, ticker: str, seed: int, days: pd.DatetimeIndex = DAYS) -> None:
        close = 50.0 + seed + np.cumsum(np.random.default_rng(seed).normal(0.0, 0.3, len(days)))
        table = pd.DataFrame({"open": close - 0.25, "high": close + 0.5, "low": close - 0.5, "close": close}, days)
        table["volume"] = 1000.0 * (seed + 1) + np.arange(len(days))
        table["adjusted"] = table["close"]
        self.charts[ticker] = table

    def fail(self, error: Exception, *tickers: str, times: int | None = None) -> None:
        """Fail so many requests for each of these tickers, of all by default; without a number, from now on."""
        for ticker in tickers or self.charts:
            self.failures[ticker] = itertools.repeat(error) if times is None else itertools.repeat(error, times)

    def answer(self, ticker: str, params: dict[str, Any]) -> Reply:
        if ticker not in self.charts:
            return Reply({"chart": {"result": None, "error": {"code": "Not Found", "description": self.said}}}, 404)
        first, end = (pd.Timestamp(params[name], unit="s", tz="UTC") for name in ("period1", "period2"))
        self.asked.append((ticker, str(first.date())))
        for error in self.failures.get(ticker, ()):
            raise error
        table, zone = self.charts[ticker], self.zones.get(ticker, "America/New_York")
        opened = (table.index + pd.Timedelta(hours=9, minutes=30)).tz_localize(zone)
        chosen = (opened >= first) & (opened < end)
        stamps = [int(stamp.timestamp()) for stamp in opened[chosen]]
        values = {name: [None if np.isnan(one) else one for one in table.loc[chosen, name]] for name in table}
        meta = {"currency": "USD", "symbol": ticker, "exchangeTimezoneName": zone, "gmtoffset": 0}
        meta |= {"instrumentType": "EQUITY", "priceHint": 2, "validRanges": ["1d", "max"], "dataGranularity": "1d"}
        meta["regularMarketTime"] = stamps[-1] if stamps else 0
        adjusted = [{"adjclose": values.pop("adjusted")}]
        result = {"meta": meta, "timestamp": stamps, "indicators": {"quote": [values], "adjclose": adjusted}}
        return Reply({"chart": {"result": [result], "error": None}})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server with AAA, BBB and CCC."""
    made = Server()
    for seed, ticker in enumerate(("AAA", "BBB", "CCC")):
        made.put(ticker, seed)

    class Zones:
        """Time zones, as on a machine that asked before."""

        def lookup(self, ticker: str) -> str | None:
            return made.zones.get(ticker, "America/New_York") if ticker in made.charts else None

        def store(self, ticker: str, zone: str | None) -> None:
            pass

    def get(self: Any, url: str, params: Any = None, timeout: Any = 30) -> Reply:
        return made.answer(url.rpartition("/")[2], params)

    monkeypatch.setattr("yfinance.data.YfData.get", get)
    monkeypatch.setattr("yfinance.data.YfData.cache_get", get)
    monkeypatch.setattr("yfinance.cache.get_tz_cache", Zones)
    monkeypatch.setattr("yfinance.base._tz_info_fetch_ctr", 2)
    monkeypatch.setattr("finflow.market.sources.yahoo._wait", lambda seconds: None)
    monkeypatch.setattr(
        "finflow.market.sources.yahoo._now", lambda: made.today.to_pydatetime().replace(hour=12, tzinfo=dt.UTC)
    )
    return made


Load = Callable[..., MarketPanel]


@pytest.fixture
def load(server: Server, tmp_path: Path) -> Load:
    """Loads a panel of the server's tickers."""

    def loaded(folder: str = "store", **settings: Any) -> MarketPanel:
        values = {"source": "yfinance", "tickers": list(server.charts), "cache_dir": tmp_path / folder}
        return load_panel(MarketConfig.model_validate({**values, **settings}))

    return loaded
