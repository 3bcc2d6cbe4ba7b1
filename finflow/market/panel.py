"""The market as one immutable, validated table of prices, and its training, validation and test windows."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.arrays import BoolArray, DateArray, FloatArray, IntArray
from finflow.config import MarketConfig
from finflow.errors import MarketError, refuse
from finflow.market.bar_frequency import bars_per_year, spacing_in_words
from finflow.market.panel_checks import PriceTable, check_dates, check_names, checked_benchmark, checked_cash

_FIELDS = ("open", "high", "low", "volume")
_DIVIDENDS = ("dividends", "quoted")


@dataclass(frozen=True, eq=False)
class MarketPanel:
    """Aligned prices, daily, weekly or monthly, of a fixed list of assets.

    Everything is checked on construction: dates ascend without repeats, prices are positive and finite, and a price may
    be missing (NaN) only before an asset lists and after it ends. The arrays are copies and read-only. Those of prices
    are (bars, assets), NaN exactly where `close` is. Where dividends are paid in cash (`price_adjustments.reinvest`),
    `dividends` and `quoted` are there, and the other prices have dividends reinvested.
    """

    dates: DateArray  # datetime64[D] (bars,)
    assets: tuple[str, ...]  # risky ones, two or more
    close: FloatArray
    cash_returns: FloatArray = field(default_factory=lambda: np.zeros(0))  # simple, over the bar that ends at t
    open: FloatArray | None = None
    high: FloatArray | None = None
    low: FloatArray | None = None
    volume: FloatArray | None = None  # in shares, zero or more
    dividends: FloatArray | None = None  # yield at the ex-date, over the close of that day, else 0
    quoted: FloatArray | None = None  # the closes that shares trade at
    halted: BoolArray | None = None  # marked at the last price, not traded (`finflow.market.price_adjustments`)
    benchmark: FloatArray | None = None  # (bars,), the index that the assets are compared with, complete on every bar
    benchmark_name: str | None = None
    bars_per_year: int = 0  # by the dates where it is 0; parts of a panel have that of the whole
    provenance: dict[str, Any] = field(default_factory=dict)  # origin of the prices, JSON-able

    def __post_init__(self) -> None:
        dates = np.array(self.dates, dtype="datetime64[D]")
        assets = tuple(str(name) for name in self.assets)
        cash = np.array(self.cash_returns, dtype=np.float64)
        check_names(assets)
        check_dates(dates)
        table = PriceTable(dates, assets, np.array(self.close, dtype=np.float64, order="C"))
        table.check_close()
        self._fix("dates", dates)
        self._fix("close", table.close)
        self._fix("cash_returns", checked_cash(cash if cash.size else np.zeros(len(dates)), len(dates)))
        object.__setattr__(self, "assets", assets)
        for name in (*_FIELDS, *_DIVIDENDS):
            if getattr(self, name) is not None:
                array = np.array(getattr(self, name), dtype=np.float64, order="C")
                table.check_field(name, array)
                self._fix(name, array)
        if self.high is not None and self.low is not None:
            table.check_range(self.high, self.low)
        if self.halted is not None:
            object.__setattr__(self, "halted", table.checked_halts(np.array(self.halted, dtype=np.bool_)))
        if self.benchmark is not None:
            label = self.benchmark_name or "benchmark"
            object.__setattr__(self, "benchmark_name", label)
            self._fix("benchmark", checked_benchmark(label, np.array(self.benchmark, dtype=np.float64), dates))
        object.__setattr__(self, "bars_per_year", self.bars_per_year or bars_per_year(dates))
        object.__setattr__(self, "provenance", dict(self.provenance))

    def _fix(self, name: str, array: NDArray[Any]) -> None:
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    @property
    def n_bars(self) -> int:
        return len(self.dates)

    @property
    def n_assets(self) -> int:
        return len(self.assets)

    @cached_property
    def listed(self) -> BoolArray:
        """Mask of assets that have a price at a bar, shape (bars, assets)."""
        listed = np.isfinite(self.close)
        listed.setflags(write=False)
        return listed

    @property
    def share_closes(self) -> FloatArray:
        """Closing prices at which shares trade, (bars, assets): `quoted` where dividends are paid in cash."""
        return self.close if self.quoted is None else self.quoted

    @cached_property
    def sha256(self) -> str:
        """Hash of everything that affects results: dates, names, prices, cash; provenance is left out."""
        digest = hashlib.sha256()
        benchmark = self.benchmark_name if self.benchmark is not None else None
        digest.update(json.dumps({"assets": self.assets, "benchmark": benchmark}, sort_keys=True).encode())
        digest.update(self.dates.astype("<i8").tobytes())
        paid = [name for name in _DIVIDENDS if getattr(self, name) is not None]
        for name in ("close", "cash_returns", *_FIELDS, "benchmark", *paid):
            array = getattr(self, name)
            digest.update(name.encode())
            if array is not None:
                # One NaN stands for all NaNs, so that the bits of a missing price decide nothing.
                digest.update(np.where(np.isnan(array), np.nan, array).astype("<f8").tobytes())
        if self.bars_per_year != bars_per_year(self.dates):
            digest.update(f"bars a year {self.bars_per_year}".encode())
        if self.halted is not None:
            digest.update(b"halted" + np.packbits(self.halted).tobytes())
        return digest.hexdigest()

    def until(self, end: int | str | dt.date | np.datetime64) -> MarketPanel:
        """Cut the panel to a number of bars, or after a date."""
        stop = int(end) if isinstance(end, (int, np.integer)) else self.bars_until(end)
        refuse(not 0 < stop <= self.n_bars, f"cannot cut a panel of {self.n_bars} bars at {end}", MarketError)
        return _rows(self, slice(0, stop))

    def of(self, assets: Sequence[str]) -> MarketPanel:
        """Take some of the assets, in this order."""
        columns = [self.assets.index(name) for name in assets]
        tables = {name: getattr(self, name) for name in ("close", *_FIELDS, *_DIVIDENDS, "halted")}
        taken = {name: table[:, columns] for name, table in tables.items() if table is not None}
        return replace(self, assets=tuple(assets), **taken)

    def between(self, start: int, stop: int) -> MarketPanel:
        """Take the bars from `start` up to `stop` (exclusive); the first bar's cash return becomes 0."""
        if not 0 <= start < stop <= self.n_bars:
            raise MarketError(f"a panel of {self.n_bars} bars has none from {start} to {stop}")
        return _rows(self, slice(start, stop))

    def spliced(self, pieces: Sequence[range]) -> MarketPanel:
        """Join segments of bars, ascending, disjoint, none empty, to one panel, without the bars between them.

        From each join on, an asset's prices are scaled so that it did not move over the join (its volume inversely, so
        that the money traded is unchanged): no return of a bar that was left out can be derived from the prices that
        are kept. Cash earns nothing over a join.
        """
        ends = [0, *(edge for piece in pieces for edge in (piece.start, piece.stop)), self.n_bars]
        if not pieces or any(not len(piece) for piece in pieces) or ends != sorted(ends):
            segments = ", ".join(f"{piece.start} to {piece.stop}" for piece in pieces)
            raise MarketError(f"a panel of {self.n_bars} bars cannot be joined from the bars {segments or 'none'}")
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
        return _rows(self, rows, joins, {"volume": 1.0 / scale, "benchmark": level, "dividends": np.ones(1)}, scale)

    def bars_until(self, date: str | dt.date | np.datetime64) -> int:
        """Number of bars up to and including a date."""
        return int(np.searchsorted(self.dates, np.datetime64(str(date)[:10], "D"), side="right"))

    def describe(self) -> Mapping[str, Any]:
        """Return facts for a manifest: provenance, size, span and hash."""
        return {
            **self.provenance,
            "assets": list(self.assets),
            "benchmark": self.benchmark_name if self.benchmark is not None else None,
            "bars": self.n_bars,
            "bars_per_year": f"{self.bars_per_year}: {spacing_in_words(self.dates, self.bars_per_year)}",
            "first_date": str(self.dates[0]),
            "last_date": str(self.dates[-1]),
            "panel_sha256": self.sha256,
        }


def _rows(
    panel: MarketPanel,
    rows: slice | IntArray,
    joins: Sequence[int] = (),
    factors: Mapping[str, FloatArray] | None = None,
    scale: FloatArray | None = None,
) -> MarketPanel:
    """Take rows, times the factor of a field or else `scale`; nothing is earned at joins, by cash nor on row 0."""

    def taken(name: str) -> FloatArray | None:
        array: FloatArray | None = getattr(panel, name)
        factor = (factors or {}).get(name, scale)
        return array if array is None else array[rows] if factor is None else array[rows] * factor

    cash = panel.cash_returns[rows].copy()
    cash[[0, *joins][: len(cash)]] = 0.0
    fields: dict[str, Any] = {name: taken(name) for name in ("close", *_FIELDS, *_DIVIDENDS, "benchmark")}
    if joins and fields["dividends"] is not None:
        fields["dividends"][list(joins)] *= 0.0
    halted = None if panel.halted is None else panel.halted[rows]
    return replace(panel, dates=panel.dates[rows], cash_returns=cash, halted=halted, **fields)


@dataclass(frozen=True)
class Split:
    """Ends of the three windows as bar counts; a window starts where the one before it ends.

    The market of a fold has no test window: there `test_end` is `validation_end`.
    """

    train_end: int
    validation_end: int
    test_end: int

    def __post_init__(self) -> None:
        if not 0 < self.train_end < self.validation_end <= self.test_end:
            raise MarketError(
                "the windows to learn and to choose by must follow one another and hold a bar each, not end at bars "
                f"{self.train_end}, {self.validation_end} and {self.test_end}"
            )

    @property
    def train(self) -> range:
        return range(0, self.train_end)

    @property
    def validation(self) -> range:
        """Bars for the choice of checkpoints and settings."""
        return range(self.train_end, self.validation_end)

    @property
    def test(self) -> range:
        """Bars for the final evaluation only."""
        return range(self.validation_end, self.test_end)


_SLACK = dt.timedelta(days=31)
"""Largest distance of `market.test_end` after the last bar: a weekend, a month's end or holidays."""
_TO = "set it to that day or before, or leave it out for the last bar"


def split_panel(panel: MarketPanel, config: MarketConfig) -> Split:
    """Convert the configured dates to bar counts.

    A window ends with the last bar on or before its date, which may lie a month after the last of all. Without
    `market.test_end` the test window ends with the panel. `MarketError` names the key and the span of the data.
    """
    first, last = panel.dates[0], panel.dates[-1]
    span = f"the data runs from {first} to {last}"
    counts = [0]
    for key in ("train_end", "validation_end", "test_end"):
        date: dt.date | None = getattr(config, key)
        count = panel.n_bars if date is None else panel.bars_until(date)
        if count <= counts[-1]:
            window = key.removesuffix("_end")
            shown = "the last bar" if date is None else date
            raise MarketError(f"the {window} window is empty: market.{key} is {shown} and {span}; move the dates")
        counts.append(count)
    if config.test_end is not None and config.test_end > last.astype(dt.date) + _SLACK:
        raise MarketError(f"the test window leaves the data: market.test_end is {config.test_end} and {span}; {_TO}")
    return Split(*counts[1:])
