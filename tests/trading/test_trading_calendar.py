"""Sessions from the dates of prices: the holidays of the New York exchange, found in the embedded data."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.config import MarketConfig
from finflow.errors import ConfigError
from finflow.market.sources.panel_loader import load_panel
from finflow.trading.trading_calendar import DerivedCalendar, calendar_of


@pytest.fixture(scope="module")
def calendar() -> DerivedCalendar:
    """By the embedded prices, which end on 2022-12-28."""
    return DerivedCalendar(load_panel(MarketConfig()).dates)


def bars(first: str, last: str, freq: str) -> NDArray[np.datetime64]:
    return pd.date_range(first, last, freq=freq).to_numpy(dtype="datetime64[D]")


@pytest.mark.parametrize(
    "holiday",
    [
        *("2023-01-02", "2023-01-16", "2023-02-20", "2023-04-07", "2023-05-29", "2023-07-04", "2023-09-04"),
        *("2023-11-23", "2023-12-25", "2024-03-29", "2026-07-03"),
    ],
)
def test_holidays_to_come_are_known(calendar: DerivedCalendar, holiday: str) -> None:
    assert not calendar.is_session(dt.date.fromisoformat(holiday))


def test_a_year_to_come_has_its_sessions(calendar: DerivedCalendar) -> None:
    """In 2023 the exchange had 250; Juneteenth is too young a holiday to be seen in these prices."""
    assert len(calendar.sessions(dt.date(2022, 12, 31), dt.date(2023, 12, 31))) == 251


def test_sessions_of_the_past_were_sessions(calendar: DerivedCalendar) -> None:
    dates = load_panel(MarketConfig()).dates
    inside = dates[(dates >= np.datetime64("2015-01-01")) & (dates < np.datetime64("2018-01-01"))]
    found = calendar.sessions(dt.date(2014, 12, 31), dt.date(2017, 12, 31))
    assert set(found) >= {day.astype(dt.date) for day in inside}
    assert len(found) - len(inside) <= 1


def test_a_market_that_never_closes_has_a_session_every_day() -> None:
    calendar = DerivedCalendar(pd.date_range("2020-01-01", "2022-12-31").to_numpy(dtype="datetime64[D]"))
    assert len(calendar.sessions(dt.date(2022, 12, 31), dt.date(2023, 1, 31))) == 31


def test_weekly_bars_are_old_after_a_week() -> None:
    calendar = calendar_of(None, bars("2020-01-03", "2022-12-30", "W-FRI"))
    assert calendar.sessions(dt.date(2022, 12, 30), dt.date(2023, 1, 6)) == []
    assert len(calendar.sessions(dt.date(2022, 12, 30), dt.date(2023, 1, 20))) == 2


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


class WeekdaysOnly:
    """Stands in for exchange_calendars: an exchange that is closed on weekends and on Good Friday of 2023."""

    def get_calendar(self, name: str) -> WeekdaysOnly:
        return self

    def sessions_in_range(self, first: str, last: str) -> list[pd.Timestamp]:
        return [day for day in pd.bdate_range(first, last) if str(day.date()) != "2023-04-07"]


def test_weekly_bars_end_with_the_last_session_of_a_named_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daily sessions between two bars do not make the newest one old."""
    monkeypatch.setattr("importlib.import_module", lambda name: WeekdaysOnly())
    calendar = calendar_of("XNYS", bars("2022-01-07", "2023-03-31", "W-FRI"))
    friday = dt.date(2023, 3, 31)
    assert calendar.sessions(friday, dt.date(2023, 4, 5)) == []
    assert calendar.sessions(friday, dt.date(2023, 4, 14)) == [dt.date(2023, 4, 6), dt.date(2023, 4, 14)]


def test_a_named_exchange_needs_its_package() -> None:
    with pytest.raises(ConfigError, match="exchange_calendars"):
        calendar_of("XNIX", np.array(["2020-01-01"], dtype="datetime64[D]"))
