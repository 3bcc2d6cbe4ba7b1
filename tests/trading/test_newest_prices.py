"""A decision asks Yahoo for what has come since the stored prices, and lives with those where it does not answer."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pytest

from finflow.config import Config, MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.trading import deciding, live_market
from finflow.trading.deciding import Request

STORED, NEW = (np.arange("2024-05-01", end, dtype="datetime64[D]") for end in ("2024-06-13", "2024-06-14"))


def panel_of(days: np.ndarray) -> MarketPanel:
    days = days[np.is_busday(days)]
    return MarketPanel(days, ("A", "B"), np.full((len(days), 2), 10.0), np.zeros(len(days)))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request was for newer prices than the stored ones; Yahoo answers unless it is ``down``."""
    found: list[bool] = []

    def load(market: MarketConfig) -> MarketPanel:
        found.append(market.extend_cache)
        if market.extend_cache and market.benchmark == "DOWN":
            raise MarketError("no prices could be downloaded; check the network")
        return panel_of(NEW if market.extend_cache else STORED)

    monkeypatch.setattr(live_market, "load_panel", load)
    return found


def config_of(down: bool) -> Config:
    market = Config().market.model_copy(update={"source": "yfinance", "benchmark": "DOWN" if down else None})
    return Config().model_copy(update={"market": market})


def newest(down: bool, day: str, date: str | None = None) -> str:
    request = Request((Path("run"),), date=None if date is None else dt.date.fromisoformat(date))
    panel, _, _ = deciding._aged_prices(config_of(down), request, dt.date.fromisoformat(day))
    return str(panel.dates[-1])


def test_the_newest_bar_is_asked_for_even_where_the_stored_ones_would_do(asked: list[bool]) -> None:
    assert newest(down=False, day="2024-06-13") == "2024-06-13"
    assert asked == [True]


def test_without_an_answer_stored_prices_serve_while_they_are_new_enough(asked: list[bool]) -> None:
    assert newest(down=True, day="2024-06-13") == "2024-06-12"
    assert asked == [True, False]
    with pytest.raises(MarketError, match="check the network"):
        newest(down=True, day="2024-06-20")


def test_a_past_day_is_answered_from_the_store(asked: list[bool]) -> None:
    assert newest(down=True, day="2024-05-20", date="2024-05-20") == "2024-05-20"
    assert asked == [False]
