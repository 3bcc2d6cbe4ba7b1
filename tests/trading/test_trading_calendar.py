"""Sessions from the dates of prices: the holidays of the New York exchange, found in the embedded data."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest

from finflow.config import MarketConfig
from finflow.errors import ConfigError
from finflow.market.sources.panel_loader import load_panel
from finflow.trading.trading_calendar import DerivedCalendar, calendar_of


@pytest.fixture(scope="module")
def calendar() -> DerivedCalendar:
    """By the embedded prices, which end on 2022-12-28."""
    return DerivedCalendar(load_panel(MarketConfig()).dates)


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
    calendar = DerivedCalendar(pd.date_range("2020-01-03", "2022-12-30", freq="W-FRI").to_numpy(dtype="datetime64[D]"))
    assert calendar.sessions(dt.date(2022, 12, 30), dt.date(2023, 1, 6)) == []
    assert len(calendar.sessions(dt.date(2022, 12, 30), dt.date(2023, 1, 20))) == 2


def test_a_named_exchange_needs_its_package() -> None:
    with pytest.raises(ConfigError, match="exchange_calendars"):
        calendar_of("XNIX", np.array(["2020-01-01"], dtype="datetime64[D]"))
