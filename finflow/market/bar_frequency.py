"""Bars in a year by the spacing of their dates, and their names."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finflow.arrays import DateArray

BARS_PER_YEAR = 252
"""Trading days in a year, by which daily figures are annualised."""
CALENDAR, WEEKLY, MONTHLY = 365, 52, 12

EVERY_DAY = 0.92
"""Share of steps of one day from which bars are those of every day: it is 0.8 with weekends, 5 / 6 with Sundays."""


class _Spacing(NamedTuple):
    """``longest``: calendar days of the median step between dates, up to which bars have this spacing."""

    longest: float
    per_year: int
    name: str
    rhythm: str


_SPACINGS = (
    _Spacing(4.0, BARS_PER_YEAR, "day", "daily"),
    _Spacing(10.0, WEEKLY, "week", "weekly"),
    _Spacing(21.0, 26, "fortnight", "fortnightly"),
    _Spacing(45.0, MONTHLY, "month", "monthly"),
    _Spacing(75.0, 6, "two months", "two-monthly"),
    _Spacing(135.0, 4, "quarter", "quarterly"),
    _Spacing(270.0, 2, "half-year", "half-yearly"),
    _Spacing(np.inf, 1, "year", "yearly"),
)
SPACINGS = {one.per_year: one for one in (_Spacing(1.0, CALENDAR, "day", "daily, seven days a week"), *_SPACINGS)}


def bars_per_year(dates: DateArray) -> int:
    """Bars that make a year, by the ascending dates (bars,): one of ``SPACINGS``, 252 for the days of an exchange.

    The median step decides, so that holidays and gaps do not matter, and 365 where nearly every step is one day; fewer
    than two dates are daily.
    """
    if len(dates) < 2:
        return BARS_PER_YEAR
    steps = np.diff(dates.astype("datetime64[D]")).astype(np.int64)
    if len(steps) > 7 and float((steps == 1).mean()) >= EVERY_DAY:
        return CALENDAR
    step = float(np.median(steps))
    return next(one.per_year for one in _SPACINGS if step <= one.longest)


def spacing_in_words(dates: DateArray, per_year: int) -> str:
    """Reason for a number of bars a year: what the dates (bars,) show, or that they say another number."""
    steps = np.diff(dates.astype("datetime64[D]")).astype(np.int64)
    share, found = (steps == 1).mean(), bars_per_year(dates)
    shown = f"the median step between dates, in days, is {np.median(steps):g}, and {share:.0%} are of one day"
    return shown if found == per_year else f"set by market.bars_per_year; {shown}, as of {found} bars a year"


def bars_per_month(per_year: int) -> int:
    """Bars that make a month, by how many make a year, and at least 1: 21, 4 or 1."""
    return max(per_year // 12, 1)


def bar_name(per_year: int) -> str:
    """Name of a bar by how many of them make a year, such as day, week or month."""
    return SPACINGS[per_year].name


def bar_rhythm(per_year: int) -> str:
    """Adjective of bars by how many make a year, such as daily, weekly or monthly."""
    return SPACINGS[per_year].rhythm
