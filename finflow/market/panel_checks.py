"""Checks of a panel's dates, names and prices: each mistake is one line that names the asset and the date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.arrays import BoolArray, DateArray, FloatArray
from finflow.config.market_sections import LONGEST_GAP
from finflow.config.section_types import first_repeated
from finflow.errors import MarketError, refuse

_RETURNS = 0.2  # share of negative values from which a column holds returns
_EARLIEST, _LATEST = np.datetime64("1700-01-01"), np.datetime64("2200-12-31")


def check_names(assets: tuple[str, ...]) -> None:
    """Refuse fewer than two assets, and names that are empty or repeated."""
    if len(assets) < 2:
        found = f"only one, {assets[0]!r}" if assets else "none"
        raise MarketError(f"a portfolio needs at least two assets, the data has {found}")
    if (repeated := first_repeated(assets)) is not None:
        raise MarketError(f"asset {repeated!r} appears more than once")
    refuse(any(not name.strip() for name in assets), "an asset has an empty name", MarketError)


def check_dates(dates: DateArray) -> None:
    """Refuse dates that are too few, missing, out of any calendar or not in ascending order."""
    refuse(dates.ndim != 1, f"dates must be one column, not an array of shape {dates.shape}", MarketError)
    refuse_rows(np.isnat(dates), lambda row: f"the date of row {row + 1} is missing")
    if len(dates) < 2:
        found = f"only one row, {dates[0]}" if len(dates) else "no rows"
        raise MarketError(f"prices need at least two dates, the data has {found}")
    for row in (0, len(dates) - 1):
        if not _EARLIEST <= dates[row] <= _LATEST:
            raise MarketError(f"date {dates[row]} (row {row + 1}) is not between {_EARLIEST} and {_LATEST}; correct it")

    def misplaced(row: int) -> str:
        date, before = dates[row], dates[row - 1]
        if date == before:
            return f"date {date} appears twice (row {row + 1}); each date may appear once"
        return f"dates are not in ascending order: {date} (row {row + 1}) follows {before}; sort the rows"

    refuse_rows(not_after(dates), misplaced)


def not_after(dates: DateArray) -> BoolArray:
    """Mask of the dates (rows,) that do not follow that of the row before."""
    return np.diff(dates, prepend=dates[:1] - np.timedelta64(1, "D")) <= np.timedelta64(0, "D")


def refuse_rows(wrong: BoolArray, words: Callable[[int], str]) -> None:
    """Raise `MarketError` with what is to be said of the first of the wrong rows, (rows,), where there are any."""
    if wrong.any():
        raise MarketError(words(int(wrong.argmax())))


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    refuse(array.shape != shape, f"{name} has shape {array.shape}, expected {shape} (dates by assets)", MarketError)


def _holding_advice(listed: BoolArray, column: int) -> str:
    """The `market.max_gap` that holds an asset over its longest gap, in bars, and the one that every asset needs."""
    gaps = [int(np.diff(np.flatnonzero(own)).max(initial=1)) - 1 for own in listed.T]
    own, most = gaps[column], max(gaps)
    if own > LONGEST_GAP:
        return f"leave the asset out: its longest gap has {own} bars, more than market.max_gap may be ({LONGEST_GAP})"
    every = f", or {most} for every asset" if own < most <= LONGEST_GAP else ""
    return f"hold it at its last price over its longest gap with market.max_gap={own} (bars){every}"


class PriceTable(NamedTuple):
    """Closing prices with their labels, and the checks of fields against them."""

    dates: DateArray
    assets: tuple[str, ...]
    close: FloatArray

    def check_close(self) -> None:
        """Refuse prices that are not positive and finite, and gaps between an asset's first and last price."""
        _check_shape("close", self.close, (len(self.dates), len(self.assets)))
        self._refuse(
            (self.close < 0.0) & ((self.close < 0.0).mean(axis=0) > _RETURNS),
            lambda row, column: (
                f"looks like returns, no prices: many values are negative ({self.close[row, column]:g} on "
                f"{self.dates[row]}); write prices, as (1 + table).cumprod() makes them with pandas"
            ),
        )
        self._check_prices("close", self.close, self.close <= 0.0)
        listed = np.isfinite(self.close)
        began = np.logical_or.accumulate(listed, axis=0)
        goes_on = np.logical_or.accumulate(listed[::-1], axis=0)[::-1]
        self._refuse(
            began & goes_on & ~listed,
            lambda row, column: (
                f"has no price on {self.dates[row]}, between its first and last price; fill the gap or drop the date "
                "or the asset, keep the dates on which all have a price with market.align=intersection, or "
                f"{_holding_advice(listed, column)}"
            ),
        )

    def check_listings(self) -> None:
        """Refuse assets without a single price, and assets that never trade on the same dates."""
        listed = np.isfinite(self.close)
        span = f"between {self.dates[0]} and {self.dates[-1]}"
        self._refuse(np.atleast_2d(~listed.any(axis=0)), lambda *_: f"has no price {span}; leave it out")
        if int(np.count_nonzero(listed.sum(axis=1) >= 2)) < 2:
            raise MarketError(
                f"the assets have no common dates: there are no two dates {span} on which two of them have a price"
            )

    def check_field(self, name: str, array: FloatArray) -> None:
        """Refuse a field with impossible values, or with values where the closes have none."""
        _check_shape(name, array, self.close.shape)
        self._check_prices(name, array, (array < 0.0) if name in ("volume", "dividends") else (array <= 0.0))

        def lacking(row: int, column: int) -> str:
            has, lacks = ("close", name) if np.isfinite(self.close[row, column]) else (name, "close")
            return f"has a value of {has} but none of {lacks} on {self.dates[row]}; complete it, or leave {name} out"

        self._refuse(np.isfinite(array) != np.isfinite(self.close), lacking)

    def check_range(self, high: FloatArray, low: FloatArray) -> None:
        self._refuse(
            high < low,
            lambda row, column: (
                f"has a high ({high[row, column]:g}) under its low ({low[row, column]:g}) on {self.dates[row]}; "
                "correct it, or leave high and low out"
            ),
        )

    def check_dividends(self, paid: FloatArray) -> None:
        """Refuse dividends in money that are impossible, or have no price to be paid at."""
        listed = np.isfinite(self.close)
        lost: BoolArray = (paid > 0.0) & ~listed & np.logical_or.accumulate(listed, axis=0)

        def named(row: int, column: int) -> str:
            return f"has a dividend of {paid[row, column]:g} on {self.dates[row]}"

        self._refuse(np.isinf(paid) | (paid < 0.0), lambda *place: f"{named(*place)}; correct it")
        self._refuse(
            lost,
            lambda *place: (
                f"{named(*place)} and no price on that day or after it; enter it on the last day with a price"
            ),
        )

    def checked_halts(self, halted: BoolArray) -> BoolArray | None:
        """Read-only mask of halts among the listed bars; None where there are none."""
        _check_shape("halted", halted, self.close.shape)
        halted &= np.isfinite(self.close)
        halted.setflags(write=False)
        return halted if halted.any() else None

    def _check_prices(self, name: str, array: FloatArray, wrong: BoolArray) -> None:
        what, do = ("price", "") if name == "close" else (f"value of {name}", f"; correct it, or leave {name} out")

        def impossible(row: int, column: int) -> str:
            value = array[row, column]
            kind = "not finite" if np.isinf(value) else "zero" if value == 0.0 else "negative"
            return f"has a {kind} {what} ({value:g}) on {self.dates[row]}{do}"

        self._refuse(np.isinf(array) | wrong, impossible)

    def _refuse(self, wrong: BoolArray, words: Callable[[int, int], str]) -> None:
        """Name the asset of the first wrong cell, and say what is wrong with it."""
        if wrong.any():
            row, column = (int(place) for place in np.argwhere(wrong)[0])
            raise MarketError(f"asset {self.assets[column]!r} {words(row, column)}")


def checked_cash(cash: FloatArray, bars: int) -> FloatArray:
    """Return the returns of cash, (bars,), once they are finite, over -1, and 0 on the first bar."""
    _check_shape("cash_returns", cash, (bars,))
    if not bool(np.all(np.isfinite(cash) & (cash > -1.0))) or cash[0] != 0.0:
        raise MarketError("cash returns must be finite, over -1, and 0 on the first bar")
    return cash


def checked_benchmark(label: str, index: FloatArray, dates: DateArray) -> FloatArray:
    """Return the prices of the benchmark, (bars,), once there is one on every date."""
    _check_shape("benchmark", index, (len(dates),))

    def lacking(row: int) -> str:
        problem = "no price" if np.isnan(index[row]) else f"an impossible price ({index[row]:g})"
        return (
            f"the benchmark {label!r} has {problem} on {dates[row]}; it needs one on every date "
            "(set market.start later, or leave market.benchmark out)"
        )

    refuse_rows(~(np.isfinite(index) & (index > 0.0)), lacking)
    return index
