"""The market as one immutable, validated table of prices."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.config.section_types import first_repeated
from finflow.errors import MarketError
from finflow.market.bar_frequency import BARS_PER_YEAR, bars_per_year

__all__ = ["BARS_PER_YEAR", "MarketPanel"]

FloatArray = NDArray[np.float64]
DateArray = NDArray[np.datetime64]

_FIELDS = ("open", "high", "low", "volume")
_EARLIEST, _LATEST = np.datetime64("1700-01-01"), np.datetime64("2200-12-31")


def _no_cash() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class MarketPanel:
    """Aligned prices, daily, weekly or monthly, of a fixed list of assets.

    Everything is checked on construction: dates ascend without repeats, prices are positive and finite, and a price may
    be missing (NaN) only before an asset lists and after it ends. Nothing is filled, interpolated or winsorised. The
    arrays are copies and read-only.

    Attributes
    ----------
    dates : datetime64[D] of shape (bars,)
        Trading days, strictly ascending.
    assets : tuple of str
        Names of the risky assets, two or more. Cash is not among them.
    close : float64 of shape (bars, assets)
        Closing prices in units of currency; NaN where the asset is not listed.
    cash_returns : float64 of shape (bars,)
        Simple return of cash over the bar that ends at t; row 0 is 0. Left out, cash earns nothing.
    open, high, low, volume : float64 of shape (bars, assets), or None
        Where the source has them. NaN exactly where `close` is; volume in shares, zero or more.
    benchmark : float64 of shape (bars,), or None
        Prices of the index that the assets are compared with, complete on every bar.
    benchmark_name : str or None
        Its name.
    provenance : dict
        Origin of the prices, JSON-able: source, adjustment, survivorship and so on.
    """

    dates: DateArray
    assets: tuple[str, ...]
    close: FloatArray
    cash_returns: FloatArray = field(default_factory=_no_cash)
    open: FloatArray | None = None
    high: FloatArray | None = None
    low: FloatArray | None = None
    volume: FloatArray | None = None
    benchmark: FloatArray | None = None
    benchmark_name: str | None = None
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dates = np.array(self.dates, dtype="datetime64[D]")
        assets = tuple(str(name) for name in self.assets)
        cash = np.array(self.cash_returns, dtype=np.float64)
        _check_names(assets)
        _check_dates(dates)
        table = _Table(dates, assets, np.array(self.close, dtype=np.float64, order="C"))
        table.check_close()
        self._fix("dates", dates)
        self._fix("close", table.close)
        self._fix("cash_returns", _checked_cash(cash if cash.size else np.zeros(len(dates)), len(dates)))
        object.__setattr__(self, "assets", assets)
        for name in _FIELDS:
            if getattr(self, name) is not None:
                array = np.array(getattr(self, name), dtype=np.float64, order="C")
                table.check_field(name, array)
                self._fix(name, array)
        if self.high is not None and self.low is not None:
            table.check_range(self.high, self.low)
        if self.benchmark is not None:
            label = self.benchmark_name or "benchmark"
            object.__setattr__(self, "benchmark_name", label)
            self._fix("benchmark", _checked_benchmark(label, np.array(self.benchmark, dtype=np.float64), dates))
        object.__setattr__(self, "provenance", dict(self.provenance))

    def _fix(self, name: str, array: NDArray[Any]) -> None:
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    @property
    def n_bars(self) -> int:
        """Number of trading days."""
        return len(self.dates)

    @property
    def n_assets(self) -> int:
        """Number of risky assets, cash not counted."""
        return len(self.assets)

    @cached_property
    def bars_per_year(self) -> int:
        """Bars that make a year, by the dates: 252 (daily), 52 (weekly) or 12 (monthly)."""
        return bars_per_year(self.dates)

    @cached_property
    def listed(self) -> NDArray[np.bool_]:
        """Mask of assets that have a price at a bar, shape (bars, assets)."""
        listed = np.isfinite(self.close)
        listed.setflags(write=False)
        return listed

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that affects results: dates, names, prices, cash; provenance is left out."""
        digest = hashlib.sha256()
        header = {"assets": self.assets, "benchmark": self.benchmark_name if self.benchmark is not None else None}
        digest.update(json.dumps(header, sort_keys=True).encode())
        digest.update(self.dates.astype("<i8").tobytes())
        for name in ("close", "cash_returns", *_FIELDS, "benchmark"):
            array = getattr(self, name)
            digest.update(name.encode())
            if array is not None:
                # One NaN stands for all NaNs, so that the bits of a missing price decide nothing.
                digest.update(np.where(np.isnan(array), np.nan, array).astype("<f8").tobytes())
        return digest.hexdigest()

    def until(self, end: int | str | dt.date | np.datetime64) -> MarketPanel:
        """Cut the panel at a bar or a date.

        Parameters
        ----------
        end : int or date
            A number of bars to keep, or the last date to keep (inclusive).
        """
        stop = int(end) if isinstance(end, (int, np.integer)) else self.bars_until(end)
        if not 0 < stop <= self.n_bars:
            raise MarketError(f"cannot cut a panel of {self.n_bars} bars at {end}")
        return self._rows(slice(0, stop))

    def since(self, start: str | dt.date | np.datetime64) -> MarketPanel:
        """Take the bars from a date on (inclusive); the first bar's cash return becomes 0."""
        first = int(np.searchsorted(self.dates, _day(start), side="left"))
        return self._rows(slice(first, self.n_bars))

    def between(self, start: int, stop: int) -> MarketPanel:
        """Take the bars from `start` up to `stop` (exclusive); the first bar's cash return becomes 0."""
        if not 0 <= start < stop <= self.n_bars:
            raise MarketError(f"a panel of {self.n_bars} bars has none from {start} to {stop}")
        return self._rows(slice(start, stop))

    def spliced(self, pieces: Sequence[range]) -> MarketPanel:
        """Join segments of bars to one panel, without the bars between them.

        From each join on, an asset's prices are scaled so that it did not move over the join (its volume inversely, so
        that the money traded is unchanged): no return of a bar that was left out can be derived from the prices that
        are kept. Cash earns nothing over a join.

        Parameters
        ----------
        pieces : sequence of range
            Ascending, disjoint, none empty.

        Raises
        ------
        MarketError
            If they overlap, or the panel does not have them.
        """
        ends = [0, *(edge for piece in pieces for edge in (piece.start, piece.stop)), self.n_bars]
        if not pieces or any(not len(piece) for piece in pieces) or ends != sorted(ends):
            said = ", ".join(f"{piece.start} to {piece.stop}" for piece in pieces)
            raise MarketError(f"a panel of {self.n_bars} bars cannot be joined from the bars {said or 'none'}")
        rows = np.concatenate([np.arange(piece.start, piece.stop) for piece in pieces])
        joins = [int(join) for join in np.cumsum([len(piece) for piece in pieces])[:-1]]
        scale = np.ones((len(rows), self.n_assets))
        level = np.ones(len(rows))
        for join in joins:
            before, after = rows[join - 1], rows[join]
            ratio = scale[join - 1] * self.close[before] / self.close[after]
            scale[join:] = np.where(np.isfinite(ratio), ratio, 1.0)
            if self.benchmark is not None:
                level[join:] = level[join - 1] * self.benchmark[before] / self.benchmark[after]
        return self._rows(rows, joins, {"volume": 1.0 / scale, "benchmark": level}, scale)

    def bars_until(self, date: str | dt.date | np.datetime64) -> int:
        """Number of bars up to and including a date."""
        return int(np.searchsorted(self.dates, _day(date), side="right"))

    def _rows(
        self,
        rows: slice | NDArray[np.int64],
        joins: Sequence[int] = (),
        factors: Mapping[str, FloatArray] | None = None,
        scale: FloatArray | None = None,
    ) -> MarketPanel:
        """Take rows, times the factor of a field or else `scale`; cash earns nothing on the first row and at joins."""

        def taken(name: str) -> FloatArray | None:
            array: FloatArray | None = getattr(self, name)
            factor = (factors or {}).get(name, scale)
            return array if array is None else array[rows] if factor is None else array[rows] * factor

        cash = self.cash_returns[rows].copy()
        cash[[0, *joins][: len(cash)]] = 0.0
        fields: dict[str, Any] = {name: taken(name) for name in ("close", *_FIELDS, "benchmark")}
        return replace(self, dates=self.dates[rows], cash_returns=cash, **fields)

    def describe(self) -> Mapping[str, Any]:
        """Return facts for a manifest: size, span and hash beside the provenance."""
        return {
            **self.provenance,
            "assets": list(self.assets),
            "benchmark": self.benchmark_name if self.benchmark is not None else None,
            "bars": self.n_bars,
            "first_date": str(self.dates[0]),
            "last_date": str(self.dates[-1]),
            "panel_sha256": self.sha256,
        }


def _day(date: str | dt.date | np.datetime64) -> np.datetime64:
    return np.datetime64(str(date)[:10], "D")


def _check_names(assets: tuple[str, ...]) -> None:
    if len(assets) < 2:
        found = f"only one, {assets[0]!r}" if assets else "none"
        raise MarketError(f"a portfolio needs at least two assets, the data has {found}")
    if (repeated := first_repeated(assets)) is not None:
        raise MarketError(f"asset {repeated!r} appears more than once")
    if any(not name.strip() for name in assets):
        raise MarketError("an asset has an empty name")


def _check_dates(dates: DateArray) -> None:
    if dates.ndim != 1:
        raise MarketError(f"dates must be one column, not an array of shape {dates.shape}")
    missing = np.flatnonzero(np.isnat(dates))
    if missing.size:
        raise MarketError(f"the date of row {int(missing[0]) + 1} is missing")
    if len(dates) < 2:
        found = f"only one row, {dates[0]}" if len(dates) else "no rows"
        raise MarketError(f"prices need at least two dates, the data has {found}")
    for row in (0, len(dates) - 1):
        if not _EARLIEST <= dates[row] <= _LATEST:
            raise MarketError(f"date {dates[row]} (row {row + 1}) is not between {_EARLIEST} and {_LATEST}; correct it")
    steps = np.diff(dates).astype(np.int64)
    wrong = np.flatnonzero(steps <= 0)
    if wrong.size:
        row = int(wrong[0]) + 1
        if steps[row - 1] == 0:
            raise MarketError(f"date {dates[row]} appears twice (row {row + 1}); each date may appear once")
        raise MarketError(
            f"dates are not in ascending order: {dates[row]} (row {row + 1}) follows {dates[row - 1]}; sort the rows"
        )


def _check_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise MarketError(f"{name} has shape {array.shape}, expected {shape} (dates by assets)")


def _first(wrong: NDArray[np.bool_]) -> tuple[int, int]:
    """Return row and column of the first cell that is set."""
    row, column = np.argwhere(wrong)[0]
    return int(row), int(column)


class _Table(NamedTuple):
    """Closing prices with their labels, and the checks of fields against them."""

    dates: DateArray
    assets: tuple[str, ...]
    close: FloatArray

    def check_close(self) -> None:
        _check_shape("close", self.close, (len(self.dates), len(self.assets)))
        self._check_prices("close", self.close, np.isinf(self.close) | (self.close <= 0.0))
        listed = np.isfinite(self.close)
        began = np.logical_or.accumulate(listed, axis=0)
        goes_on = np.logical_or.accumulate(listed[::-1], axis=0)[::-1]
        gaps = began & goes_on & ~listed
        if gaps.any():
            row, column = _first(gaps)
            raise MarketError(
                f"asset {self.assets[column]!r} has no price on {self.dates[row]}, between its first and last price; "
                "fill the gap or drop the date or the asset"
            )

    def check_field(self, name: str, array: FloatArray) -> None:
        _check_shape(name, array, self.close.shape)
        self._check_prices(name, array, np.isinf(array) | ((array < 0.0) if name == "volume" else (array <= 0.0)))
        differs = np.isfinite(array) != np.isfinite(self.close)
        if differs.any():
            row, column = _first(differs)
            has, lacks = ("close", name) if np.isfinite(self.close[row, column]) else (name, "close")
            raise MarketError(
                f"asset {self.assets[column]!r} has a value of {has} but none of {lacks} on {self.dates[row]}; "
                f"complete it, or leave {name} out"
            )

    def check_range(self, high: FloatArray, low: FloatArray) -> None:
        wrong = high < low
        if wrong.any():
            row, column = _first(wrong)
            raise MarketError(
                f"asset {self.assets[column]!r} has a high ({high[row, column]:g}) under its low "
                f"({low[row, column]:g}) on {self.dates[row]}; correct it, or leave high and low out"
            )

    def _check_prices(self, name: str, array: FloatArray, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            row, column = _first(wrong)
            value = array[row, column]
            kind = "not finite" if np.isinf(value) else "zero" if value == 0.0 else "negative"
            what, do = ("price", "") if name == "close" else (f"value of {name}", f"; correct it, or leave {name} out")
            raise MarketError(f"asset {self.assets[column]!r} has a {kind} {what} ({value:g}) on {self.dates[row]}{do}")


def _checked_cash(cash: FloatArray, bars: int) -> FloatArray:
    _check_shape("cash_returns", cash, (bars,))
    if not bool(np.all(np.isfinite(cash) & (cash > -1.0))) or cash[0] != 0.0:
        raise MarketError("cash returns must be finite, over -1, and 0 on the first bar")
    return cash


def _checked_benchmark(label: str, index: FloatArray, dates: DateArray) -> FloatArray:
    _check_shape("benchmark", index, (len(dates),))
    wrong = np.flatnonzero(~(np.isfinite(index) & (index > 0.0)))
    if wrong.size:
        row = int(wrong[0])
        problem = "no price" if np.isnan(index[row]) else f"an impossible price ({index[row]:g})"
        raise MarketError(
            f"the benchmark {label!r} has {problem} on {dates[row]}; it needs one on every date "
            "(set market.start later, or leave market.benchmark out)"
        )
    return index
