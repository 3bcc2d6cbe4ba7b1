"""Sessions of an exchange: of the one that is named, else of the one that past prices fit."""

from __future__ import annotations

import datetime as dt
import warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.errors import ConfigError
from finflow.market.bar_frequency import BARS_PER_YEAR, WEEKLY, bars_per_year

_EXCHANGES = ("XNYS", "XLON", "XPAR", "XETR", "XSWX", "XTSE", "XTKS", "XHKG", "XASX")
"""Exchanges whose sessions prices are compared with, in this order."""
_MATCH = 0.995  # of all days that are a session or have a bar, on which prices must agree with an exchange
_CLOSED = (0.01, 0.09)  # share of the weekdays without a bar, within which prices are compared with exchanges at all
_YEARS = 5  # latest years in each of which a day without a bar is a holiday
_COMMON = 0.5  # of the usual number of bars, that a weekday must have to count as a day of trading
_DAY = dt.timedelta(days=1)


class WeekdayCalendar:
    """Weekdays of past prices (bars,), less the days of the year that had no bar in any of the latest five years."""

    def __init__(self, dates: NDArray[np.datetime64]) -> None:
        days = [day.astype(dt.date) for day in dates]
        self._first, self._last, self._known = days[0], days[-1], frozenset(days)
        counts = np.bincount([day.weekday() for day in days], minlength=7)
        self._weekdays = frozenset(int(day) for day in np.flatnonzero(counts > _COMMON * np.sort(counts)[-3]))
        self.name = "every day" if len(self._weekdays) == 7 else "the weekdays of the prices, less their holidays"

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        days = (after + number * _DAY for number in range(1, (until - after).days + 1))
        return [day for day in days if day.weekday() in self._weekdays and not self._is_holiday(day)]

    def _is_holiday(self, day: dt.date) -> bool:
        """True where the same day had no bar in the latest five years before that prices cover."""
        if (day.month, day.day) == (2, 29):
            return False
        latest = min(day.year - 1, self._last.year)
        if day.replace(year=latest) > self._last:
            latest -= 1
        same = [day.replace(year=latest - number) for number in range(_YEARS)]
        return same[-1] >= self._first and self._known.isdisjoint(same)


class ExchangeCalendar:
    """Sessions of an exchange by exchange_calendars: from a day on, if it is as old, to a year from today.

    Raises ConfigError if the package does not know the exchange.
    """

    def __init__(self, name: str, first: dt.date) -> None:
        from exchange_calendars import get_calendar  # an import of 1.5 s
        from exchange_calendars.errors import CalendarError

        self.name = name
        try:
            with warnings.catch_warnings(action="ignore"):  # of its own use of pandas
                try:
                    self._calendar = get_calendar(name, start=pd.Timestamp(first))
                except ValueError:  # it has no sessions so far back
                    self._calendar = get_calendar(name)
        except CalendarError as error:
            raise ConfigError(f"trading.calendar {name!r} is not an exchange that exchange_calendars knows") from error

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        known = self._calendar.sessions
        return [session.date() for session in known[(known > pd.Timestamp(after)) & (known <= pd.Timestamp(until))]]


class PeriodCalendar:
    """Ends of the weeks, which end on Sunday, or of the months that weekly and monthly bars stand for.

    The bar of a period may be dated on any day of it: on its last session, its last day or its first. With an
    exchange a period ends with its last session, and one without any has no bar.
    """

    def __init__(self, per_year: int, exchange: ExchangeCalendar | None = None) -> None:
        self._frequency = "W-SUN" if per_year == WEEKLY else "M"
        self.name = "the weeks" if per_year == WEEKLY else "the months"
        if exchange is not None:
            self.name += f" of {exchange.name}"
        self._exchange = exchange

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        """Ends of the periods after that of one day, up to and including another day."""
        periods = pd.period_range(self.period(after) + 1, self.period(until), freq=self._frequency)
        ends = [self._end(period) for period in periods]
        return [end for end in ends if end is not None and end <= until]

    def period(self, day: dt.date) -> pd.Period:
        return pd.Period(day, freq=self._frequency)

    def _end(self, period: pd.Period) -> dt.date | None:
        last: dt.date = period.end_time.date()
        if self._exchange is None:
            return last
        sessions = self._exchange.sessions(period.start_time.date() - _DAY, last)
        return sessions[-1] if sessions else None


TradingCalendar = WeekdayCalendar | ExchangeCalendar | PeriodCalendar


def calendar_of(name: str | None, dates: NDArray[np.datetime64]) -> TradingCalendar:
    """The calendar of a configuration (`trading.calendar`); without a name, of the exchange that the dates fit.

    Weekly and monthly bars have that of their periods: a bar is not old because the exchange has opened again.
    """
    named = None if name is None else ExchangeCalendar(name, dates[0].astype(dt.date))
    per_year = bars_per_year(dates)
    if per_year != BARS_PER_YEAR:
        return PeriodCalendar(per_year, named)
    return named or _fitting_exchange(dates) or WeekdayCalendar(dates)


def _fitting_exchange(dates: NDArray[np.datetime64]) -> ExchangeCalendar | None:
    """The first exchange whose sessions are the dates of the prices, but for one day in 200."""
    days = {day.astype(dt.date) for day in dates}
    first, last = min(days), max(days)
    weekdays = np.busday_count(first, last + _DAY)  # half a second an exchange is saved for prices that fit none
    if not _CLOSED[0] <= 1.0 - len(days) / max(int(weekdays), 1) <= _CLOSED[1]:
        return None
    for name in _EXCHANGES:
        exchange = ExchangeCalendar(name, first)
        sessions = exchange.sessions(first - _DAY, last)
        if len(days.intersection(sessions)) >= _MATCH * len(days.union(sessions)):
            return exchange
    return None
