"""Bars in a year of daily, weekly and monthly prices, and their names."""

from __future__ import annotations

import numpy as np

from finflow.arrays import DateArray

BARS_PER_YEAR = 252
"""Trading days in a year, by which daily figures are annualised."""
WEEKLY, MONTHLY = 52, 12

_LONGEST_DAILY, _LONGEST_WEEKLY = 4.0, 16.0
"""Calendar days of the median step between dates, up to which bars count as daily and as weekly."""
_RHYTHMS = {BARS_PER_YEAR: "daily", WEEKLY: "weekly", MONTHLY: "monthly"}
_NAMES = {BARS_PER_YEAR: "day", WEEKLY: "week", MONTHLY: "month"}


def bars_per_year(dates: DateArray) -> int:
    """Bars that make a year: 252 for daily dates (bars,), 52 for weekly, 12 for monthly ones.

    The median step of the ascending dates decides, so that holidays and gaps do not matter; fewer than two are daily.
    """
    if len(dates) < 2:
        return BARS_PER_YEAR
    step = float(np.median(np.diff(dates.astype("datetime64[D]")).astype(np.int64)))
    return BARS_PER_YEAR if step <= _LONGEST_DAILY else WEEKLY if step <= _LONGEST_WEEKLY else MONTHLY


def bars_per_month(per_year: int) -> int:
    """Bars that make a month, by how many make a year: 21, 4 or 1."""
    return max(per_year // 12, 1)


def bar_name(per_year: int) -> str:
    """Name of a bar by how many of them make a year: day, week or month."""
    return _NAMES[per_year]


def bar_rhythm(per_year: int) -> str:
    """Adjective of bars by how many make a year: daily, weekly or monthly."""
    return _RHYTHMS[per_year]
