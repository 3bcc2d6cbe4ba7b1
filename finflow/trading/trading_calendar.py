"""Sessions of an exchange: from exchange_calendars where it is named, else from the dates of past prices."""

from __future__ import annotations

import datetime as dt
import importlib
import itertools
from collections.abc import Iterator
from functools import cache
from typing import Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.errors import ConfigError
from finflow.market.bar_frequency import BARS_PER_YEAR, WEEKLY, bars_per_year

_FEWEST, _ASKED = 3, 5
"""Past occurrences that a holiday needs, and how many of the latest must all be without a bar."""
_COMMON = 0.5
"""Share of the usual number of bars that a weekday must have, to count as a day of trading."""
_DAY = dt.timedelta(days=1)


class TradingCalendar(Protocol):
    """Sessions of an exchange."""

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        """Sessions after one day, up to and including another."""
        ...


class DerivedCalendar:
    """Sessions by the dates of past prices.

    A day is a session if prices have bars on its weekday, unless it is a holiday: a fixed day of the year (or the day
    nearest to one that falls on a weekend), a weekday counted from the beginning or the end of a month, or a distance
    from Easter on which the prices had no bar in the latest five years that could have one, three at least. A closure
    that follows no such rule is not known beforehand.

    Parameters
    ----------
    dates : datetime64[D] array, (bars,)
        Ascending.
    """

    def __init__(self, dates: NDArray[np.datetime64]) -> None:
        days = [day.astype(dt.date) for day in dates]
        self._first, self._last = days[0], days[-1]
        self._known = frozenset(days)
        counts = np.bincount([day.weekday() for day in days], minlength=7)
        self._weekdays = frozenset(int(day) for day in np.flatnonzero(counts > _COMMON * np.sort(counts)[-3]))

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        """Sessions after one day, up to and including another."""
        days = (after + number * _DAY for number in range(1, (until - after).days + 1))
        return [day for day in days if self.is_session(day)]

    def is_session(self, day: dt.date) -> bool:
        """True on a day of trading."""
        return day.weekday() in self._weekdays and not self.is_holiday(day)

    def is_holiday(self, day: dt.date) -> bool:
        """True on a day on which the prices never had a bar in the latest years."""
        nominal = {4: day + _DAY, 0: day - _DAY}.get(day.weekday())  # a holiday on Saturday or Sunday is moved
        moved = nominal is not None and nominal.weekday() not in self._weekdays and self._recurs(self._fixed(nominal))
        return moved or any(self._recurs(rule) for rule in self._rules(day))

    def _recurs(self, occurrences: Iterator[dt.date]) -> bool:
        """True where the latest occurrences of a rule, as far as they could have a bar, had none."""
        covered = (day for day in occurrences if self._first <= day <= self._last and day.weekday() in self._weekdays)
        closed = [day not in self._known for day in itertools.islice(covered, _ASKED)]
        return len(closed) >= _FEWEST and all(closed)

    def _rules(self, day: dt.date) -> Iterator[Iterator[dt.date]]:
        yield self._fixed(day)
        yield self._counted(day, (day.day - 1) // 7)
        if (day + 7 * _DAY).month != day.month:
            yield self._counted(day, -1)
        yield self._from_easter(day)

    def _years(self, day: dt.date) -> Iterator[int]:
        """Years before a day's that prices cover, the latest first."""
        yield from range(min(day.year - 1, self._last.year), self._first.year - 1, -1)

    def _fixed(self, day: dt.date) -> Iterator[dt.date]:
        for year in self._years(day):
            if (day.month, day.day) != (2, 29):
                yield dt.date(year, day.month, day.day)

    def _counted(self, day: dt.date, number: int) -> Iterator[dt.date]:
        """The same weekday of the month in earlier years, counted from its beginning, or the last for -1."""
        for year in self._years(day):
            first = dt.date(year, day.month, 1)
            same = [first + n * _DAY for n in range(31) if (first + n * _DAY).weekday() == day.weekday()]
            inside = [one for one in same if one.month == day.month]
            if number < len(inside):
                yield inside[number]

    def _from_easter(self, day: dt.date) -> Iterator[dt.date]:
        distance = day - _easter(day.year)
        return (_easter(year) + distance for year in self._years(day))


class ExchangeCalendar:
    """Sessions by exchange_calendars.

    Parameters
    ----------
    name : str
        Of the exchange, such as XNYS.

    Raises
    ------
    ConfigError
        If the package is not installed, or does not know the exchange.
    """

    def __init__(self, name: str) -> None:
        try:
            package = importlib.import_module("exchange_calendars")
        except ImportError:
            raise ConfigError(
                f"trading.calendar is {name}, and exchange_calendars is not installed: pip install exchange_calendars, "
                "or leave the key out"
            ) from None
        try:
            self._calendar = package.get_calendar(name)
        except Exception as error:  # its own class of errors, whose module may not be imported above
            raise ConfigError(f"trading.calendar {name!r} is not an exchange that exchange_calendars knows") from error

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        """Sessions after one day, up to and including another."""
        if until <= after:
            return []
        return [session.date() for session in self._calendar.sessions_in_range(str(after + _DAY), str(until))]


class PeriodCalendar:
    """Ends of the weeks, which end on Sunday, or of the months that weekly and monthly bars stand for.

    The bar of a period may be dated on any day of it: on its last session, its last day or its first.

    Parameters
    ----------
    per_year : int
        52 for weeks, 12 for months.
    exchange : ExchangeCalendar, optional
        A period then ends with its last session, and one without any has no bar.
    """

    def __init__(self, per_year: int, exchange: ExchangeCalendar | None = None) -> None:
        self._frequency = "W-SUN" if per_year == WEEKLY else "M"
        self._exchange = exchange

    def sessions(self, after: dt.date, until: dt.date) -> list[dt.date]:
        """Ends of the periods after that of one day, up to and including another day."""
        periods = pd.period_range(self.period(after) + 1, self.period(until), freq=self._frequency)
        ends = [self._end(period) for period in periods]
        return [end for end in ends if end is not None and end <= until]

    def period(self, day: dt.date) -> pd.Period:
        """The week or month of a day."""
        return pd.Period(day, freq=self._frequency)

    def _end(self, period: pd.Period) -> dt.date | None:
        last: dt.date = period.end_time.date()
        if self._exchange is None:
            return last
        sessions = self._exchange.sessions(period.start_time.date() - _DAY, last)
        return sessions[-1] if sessions else None


def calendar_of(name: str | None, dates: NDArray[np.datetime64]) -> TradingCalendar:
    """The calendar of a configuration (`trading.calendar`); without a name, that of the dates of the prices.

    Weekly and monthly bars have that of their periods: a bar is not old because the exchange has opened again.
    """
    exchange = None if name is None else ExchangeCalendar(name)
    per_year = bars_per_year(dates)
    if per_year != BARS_PER_YEAR:
        return PeriodCalendar(per_year, exchange)
    return DerivedCalendar(dates) if exchange is None else exchange


@cache
def _easter(year: int) -> dt.date:
    easter: dt.date = (pd.Timestamp(year, 1, 1) + pd.offsets.Easter()).date()
    return easter
