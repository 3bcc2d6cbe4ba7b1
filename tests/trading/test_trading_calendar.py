"""Sessions of the exchange that the dates of prices fit, and decisions that ask Yahoo for the newest prices."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.config import Config, MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.trading import decide_mode, live_market
from finflow.trading.decide_mode import Request
from finflow.trading.price_checks import WeekdayCalendar, calendar_of


def bars(first: str, last: str, freq: str) -> NDArray[np.datetime64]:
    return pd.date_range(first, last, freq=freq).to_numpy(dtype="datetime64[D]")


def embedded() -> NDArray[np.datetime64]:
    """Dates of the New York exchange; they end on 2022-12-28."""
    return load_panel(MarketConfig()).dates


def test_prices_of_new_york_have_its_sessions_to_come() -> None:
    """In 2023 the exchange had 250, and it was closed on Juneteenth, which these prices saw once."""
    calendar = calendar_of(None, embedded())
    assert calendar.name == "XNYS"
    sessions = calendar.sessions(dt.date(2022, 12, 31), dt.date(2023, 12, 31))
    assert len(sessions) == 250
    assert not {dt.date(2023, 4, 7), dt.date(2023, 6, 19), dt.date(2023, 11, 23)}.intersection(sessions)
    dates = embedded()
    inside = dates[(dates >= np.datetime64("2001-01-01")) & (dates < np.datetime64("2018-01-01"))]
    found = calendar.sessions(dt.date(2000, 12, 31), dt.date(2017, 12, 31))  # closures after an attack or a storm, too
    assert found == [day.astype(dt.date) for day in inside]


def test_an_exchange_that_agrees_on_fewer_days_is_not_taken() -> None:
    dates = embedded()[-2500:]
    kept = np.delete(dates, np.arange(0, len(dates), 150))  # 17 days are missing, of 2,500
    assert isinstance(calendar_of(None, kept), WeekdayCalendar)
    assert calendar_of(None, np.delete(dates, np.arange(0, len(dates), 300))).name == "XNYS"


def test_without_an_exchange_days_without_a_bar_in_five_years_are_holidays() -> None:
    days = bars("2015-01-01", "2022-12-30", "B")
    closed = [
        day for day in days if str(day)[5:] == "08-11" or (str(day)[5:] == "03-15" and day < np.datetime64("2019"))
    ]
    calendar = calendar_of(None, np.setdiff1d(days, closed))
    assert calendar.name == "the weekdays of the prices, less their holidays"
    sessions = calendar.sessions(dt.date(2022, 12, 31), dt.date(2024, 12, 31))
    assert len(sessions) == len(pd.bdate_range("2023-01-01", "2024-12-31")) - 1  # the other is on a Sunday in 2024
    assert dt.date(2023, 8, 11) not in sessions
    assert {dt.date(2023, 3, 15), dt.date(2024, 2, 29)} <= set(sessions)


def test_a_young_market_has_no_holidays_yet_and_one_that_never_closes_none_at_all() -> None:
    calendar = calendar_of(None, np.setdiff1d(bars("2020-01-01", "2022-12-30", "B"), np.array(["2021-08-11"], "M8[D]")))
    assert dt.date(2023, 8, 11) in calendar.sessions(dt.date(2022, 12, 31), dt.date(2023, 12, 31))
    calendar = calendar_of(None, bars("2020-01-01", "2022-12-31", "D"))
    assert calendar.name == "every day"
    assert len(calendar.sessions(dt.date(2022, 12, 31), dt.date(2023, 1, 31))) == 31


@pytest.mark.parametrize(
    ("freq", "newest", "due"),
    [
        ("W-FRI", "2022-12-30", "2023-01-08"),
        ("W-MON", "2023-01-02", "2023-01-15"),
        ("W-SUN", "2023-01-01", "2023-01-08"),
        ("ME", "2022-12-31", "2023-01-31"),
        ("BME", "2022-12-30", "2023-01-31"),
        ("MS", "2022-12-01", "2023-01-31"),
    ],
)
def test_the_next_bar_is_due_at_the_end_of_its_week_or_month(freq: str, newest: str, due: str) -> None:
    """On whichever day of their period the bars are dated: a bar that is due a period late would not be missed."""
    calendar = calendar_of(None, bars("2020-01-01", newest, freq))
    last, end = dt.date.fromisoformat(newest), dt.date.fromisoformat(due)
    assert calendar.sessions(last, end - dt.timedelta(days=1)) == []
    assert calendar.sessions(last, end) == [end]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request was for newer prices than the stored ones; Yahoo answers unless it is ``down``."""
    found: list[bool] = []

    def load(market: MarketConfig) -> MarketPanel:
        found.append(market.extend_cache)
        if market.extend_cache and market.benchmark == "DOWN":
            raise MarketError("no prices could be downloaded; check the network")
        days = np.arange("2024-05-01", "2024-06-14" if market.extend_cache else "2024-06-13", dtype="datetime64[D]")
        days = days[np.is_busday(days)]
        return MarketPanel(days, ("A", "B"), np.full((len(days), 2), 10.0), np.zeros(len(days)))

    monkeypatch.setattr(live_market, "load_panel", load)
    return found


def newest(down: bool, day: str, date: str | None = None) -> str:
    market = Config().market.model_copy(update={"source": "yfinance", "benchmark": "DOWN" if down else None})
    config = Config().model_copy(update={"market": market})
    request = Request((Path("run"),), date=None if date is None else dt.date.fromisoformat(date))
    panel, _, _ = decide_mode._aged_prices(config, request, dt.date.fromisoformat(day))
    return str(panel.dates[-1])


@pytest.mark.parametrize(
    ("given", "found", "requests"),
    [
        ((False, "2024-06-13"), "2024-06-13", [True]),
        ((True, "2024-06-13"), "2024-06-12", [True, False]),  # stored prices serve while they are new enough
        ((True, "2024-05-20", "2024-05-20"), "2024-05-20", [False]),  # a past day, from the store
    ],
)
def test_the_newest_bar_is_asked_for_and_the_stored_ones_serve_without_an_answer(
    asked: list[bool], given: tuple[Any, ...], found: str, requests: list[bool]
) -> None:
    assert newest(*given) == found
    assert asked == requests
    with pytest.raises(MarketError, match="check the network"):
        newest(True, "2024-06-20")
