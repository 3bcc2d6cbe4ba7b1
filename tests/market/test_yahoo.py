"""Yahoo's answers through the installed yfinance itself: its own frames, threads and errors, without a network.

Only the HTTP requests are answered here, with charts as Yahoo's server writes them; everything from there to the panel
is the real code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yfinance
from yfinance.exceptions import YFRateLimitError

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel

DAYS = pd.bdate_range("2020-01-01", periods=40)
ZONES = {"TKY": "Asia/Tokyo", "LON": "Europe/London"}


class Reply:
    """What the HTTP library gives back."""

    def __init__(self, content: dict[str, Any], status: int = 200) -> None:
        self.text = json.dumps(content)
        self.status_code = status
        self.url = "https://query2.finance.yahoo.com/"

    def json(self) -> Any:
        return json.loads(self.text)


def prices(seed: int, bars: int = len(DAYS)) -> dict[str, list[Any]]:
    close = 50.0 + seed + np.arange(bars) / 8.0
    return {
        "open": list(close - 0.25),
        "high": list(close + 0.5),
        "low": list(close - 0.5),
        "close": list(close),
        "volume": [1000 * seed + bar for bar in range(bars)],
    }


def chart(
    ticker: str, days: pd.DatetimeIndex, quote: dict[str, list[Any]], ratio: float = 0.5, kind: str = "EQUITY"
) -> Reply:
    """A chart as Yahoo's server writes it: times of opening in seconds, quotes, adjusted closes."""
    zone = ZONES.get(ticker, "America/New_York")
    opened = (days + pd.Timedelta(hours=9, minutes=30)).tz_localize(zone)
    meta = {
        "currency": "USD",
        "symbol": ticker,
        "exchangeTimezoneName": zone,
        "instrumentType": kind,
        "priceHint": 2,
        "regularMarketTime": int(opened[-1].timestamp()) if len(opened) else 0,
        "gmtoffset": 0,
        "validRanges": ["1d", "max"],
        "dataGranularity": "1d",
    }
    adjusted = [None if close is None else close * ratio for close in quote["close"]]
    result = {
        "meta": meta,
        "timestamp": [int(stamp.timestamp()) for stamp in opened],
        "indicators": {"quote": [quote], "adjclose": [{"adjclose": adjusted}]},
        "events": {"dividends": {str(int(opened[5].timestamp())): {"amount": 0.5, "date": int(opened[5].timestamp())}}},
    }
    return Reply({"chart": {"result": [result], "error": None}})


def refusal(description: str) -> Reply:
    return Reply({"chart": {"result": None, "error": {"code": "Not Found", "description": description}}}, 404)


Answers = dict[str, Callable[[], Reply]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., MarketPanel]:
    """Load a panel from yfinance while the requests for each ticker are answered as told."""

    class Memory:
        def lookup(self, ticker: str) -> None:
            return None

        def store(self, ticker: str, zone: str | None) -> None:
            pass

    def loaded(answers: Answers, **settings: Any) -> MarketPanel:
        def get(self: Any, url: str, params: Any = None, timeout: Any = 30) -> Reply:
            return answers[url.rpartition("/")[2]]()

        monkeypatch.setattr("yfinance.data.YfData.get", get)
        monkeypatch.setattr("yfinance.data.YfData.cache_get", get)
        values = {"source": "yfinance", "tickers": list(answers), "cache_dir": tmp_path / "store", **settings}
        return load_panel(MarketConfig.model_validate(values))

    monkeypatch.setattr("yfinance.cache.get_tz_cache", Memory)
    monkeypatch.setattr("yfinance.base._tz_info_fetch_ctr", 2)
    monkeypatch.setattr("finflow.market.sources.yahoo._wait", lambda seconds: None)
    return loaded


def whole(ticker: str, seed: int) -> Callable[[], Reply]:
    return lambda: chart(ticker, DAYS, prices(seed))


def test_many_tickers_are_adjusted_in_every_price_and_not_in_volume(load: Callable[..., MarketPanel]) -> None:
    panel = load({"BBB": whole("BBB", 2), "AAA": whole("AAA", 1)})
    assert panel.assets == ("BBB", "AAA")
    assert panel.dates.tolist() == DAYS.to_numpy("datetime64[D]").tolist()
    for field in ("open", "high", "low", "close"):
        expected = np.stack([np.array(prices(2)[field]), np.array(prices(1)[field])], axis=1) * 0.5
        np.testing.assert_allclose(getattr(panel, field), expected, rtol=1e-12)
    assert panel.volume is not None
    assert panel.volume[:, 0].tolist() == prices(2)["volume"]
    assert "auto_adjust" in panel.provenance["adjusted"]


def test_without_adjustment_the_closes_are_yahoos_own(load: Callable[..., MarketPanel]) -> None:
    panel = load({"AAA": whole("AAA", 1), "BBB": whole("BBB", 2)}, auto_adjust=False)
    assert panel.close[:, 1].tolist() == prices(2)["close"]
    assert panel.open is not None
    assert panel.open[:, 0].tolist() == prices(1)["open"]


def test_exchanges_in_other_time_zones_share_their_dates(load: Callable[..., MarketPanel]) -> None:
    panel = load({name: whole(name, seed) for seed, name in enumerate(("AAA", "TKY", "LON"))})
    assert panel.listed.all()
    assert panel.dates.tolist() == DAYS.to_numpy("datetime64[D]").tolist()


def test_a_delisted_name_with_prices_is_a_listing_that_ends(load: Callable[..., MarketPanel]) -> None:
    short = chart("OLD", DAYS[:25], prices(3, 25))
    late = chart("NEW", DAYS[10:], prices(4, 30))
    panel = load({"AAA": whole("AAA", 1), "OLD": lambda: short, "NEW": lambda: late})
    assert panel.listed.sum(axis=0).tolist() == [40, 25, 30]
    assert panel.listed[:25, 1].all()
    assert panel.listed[10:, 2].all()
    assert panel.volume is not None


@pytest.mark.parametrize(
    "said",
    [
        "No data found, symbol may be delisted",
        "Data doesn't exist for startDate = 1, endDate = 2",
        "",  # an unknown ticker: Yahoo names no time zone, and yfinance says "possibly delisted"
    ],
)
def test_a_delisted_name_without_prices_is_named_with_what_to_do(load: Callable[..., MarketPanel], said: str) -> None:
    with pytest.raises(MarketError) as caught:
        load({"AAA": whole("AAA", 1), "BBB": whole("BBB", 2), "GONE": lambda: refusal(said)})
    message = str(caught.value)
    assert "no prices for GONE, though 2 other tickers were found" in message
    assert "leave it out of market.tickers" in message
    assert "\n" not in message


def test_rate_limiting_is_named_as_such(load: Callable[..., MarketPanel]) -> None:
    asked = []

    def limited() -> Reply:
        asked.append(1)
        raise YFRateLimitError

    with pytest.raises(MarketError, match="Yahoo limits the rate of requests and gave no prices for BBB; wait"):
        load({"AAA": whole("AAA", 1), "BBB": limited})
    assert len(asked) == 3


class Known:
    """A cache that knows the time zones, as on a machine that asked before."""

    def lookup(self, ticker: str) -> str:
        return "America/New_York"


def test_a_network_that_fails_for_one_ticker_is_tried_again(
    load: Callable[..., MarketPanel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """yfinance, left to itself, calls such a ticker delisted and says nothing of the network."""
    monkeypatch.setattr("yfinance.cache.get_tz_cache", Known)
    asked = []

    def flaky() -> Reply:
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionError("Connection reset by peer")
        return whole("BBB", 2)()

    assert load({"AAA": whole("AAA", 1), "BBB": flaky}).listed.all()


def test_a_network_that_is_down_is_not_called_delisting(load: Callable[..., MarketPanel]) -> None:
    def down() -> Reply:
        raise ConnectionError("Could not resolve host: query2.finance.yahoo.com")

    with pytest.raises(MarketError) as caught:
        load({"AAA": down, "BBB": down})
    for word in ("AAA, BBB", "check the network", "market.source=embedded", "Could not resolve host"):
        assert word in str(caught.value)
    assert "delisted" not in str(caught.value)


def test_days_without_a_close_cost_no_field(load: Callable[..., MarketPanel]) -> None:
    """A day that Yahoo leaves empty in all columns is dropped by yfinance; one with a volume alone comes through."""
    quote = prices(2)
    for field in ("open", "high", "low", "close"):
        quote[field][20] = None
    quote["volume"][30] = 0
    quote["volume"][31] = None
    panel = load({"AAA": whole("AAA", 1), "BBB": lambda: chart("BBB", DAYS, quote)})
    assert panel.n_bars == 39
    assert DAYS[20].to_datetime64() not in panel.dates
    assert panel.provenance["dates_dropped"] == 1
    assert panel.volume is not None
    assert panel.volume[29:31, 1].tolist() == [0.0, 0.0]  # row 20 is gone
    assert panel.open is not None


@pytest.mark.parametrize(("field", "value"), [("open", 0.0), ("high", None), ("low", 0.0)])
def test_a_price_field_with_holes_is_left_out_and_said(
    load: Callable[..., MarketPanel], field: str, value: float | None
) -> None:
    quote = prices(2)
    quote[field][3] = value
    panel = load({"AAA": whole("AAA", 1), "BBB": lambda: chart("BBB", DAYS, quote)})
    assert getattr(panel, field) is None
    assert panel.volume is not None
    assert panel.provenance["fields_left_out"].startswith(field)


def test_an_impossible_adjusted_close_says_whose_it_is(load: Callable[..., MarketPanel]) -> None:
    with pytest.raises(MarketError, match=r"Yahoo's close of BBB is -28\.4.* set market\.start after 2020-02-25"):
        load({"AAA": whole("AAA", 1), "BBB": lambda: chart("BBB", DAYS, prices(2), ratio=-0.5)})


def test_yfinance_gets_its_options_back(load: Callable[..., MarketPanel]) -> None:
    load({"AAA": whole("AAA", 1), "BBB": whole("BBB", 2)})
    assert yfinance.config.debug.hide_exceptions is True
