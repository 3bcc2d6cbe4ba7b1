"""Return of cash, from one annual rate, a file of rates, or one-month US Treasury bills."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.arrays import DateArray, FloatArray
from finflow.config.market_sections import CashUnit, as_fraction
from finflow.errors import MarketError, refuse
from finflow.market.bar_frequency import bars_per_year
from finflow.market.panel_checks import not_after, refuse_rows
from finflow.market.sources.price_sheet import read_sheet
from finflow.market.sources.shipped_prices import package_file, package_table

#: What the name of a column of rates says of their unit.
_UNITS = {"percent": re.compile("%|per ?cent|pct", re.IGNORECASE), "fraction": re.compile("fraction|decimal", re.I)}


@dataclass(frozen=True)
class CashRates:
    """Annual rates of a file or of Treasury bills, each in force from its date on until the next."""

    dates: DateArray  # (rates,), ascending without repeats
    rates: FloatArray  # (rates,), effective annual ones as fractions: 0.0525 is 5.25 %
    path: Path
    sha256: str
    name: str = ""  # ``treasury-bills``; empty for a file
    until: np.datetime64 | None = None  # last day that Treasury bills cover; None for a file

    def facts(self) -> dict[str, Any]:
        name = self.name or self.path.name
        return {
            "cash_rate": f"series of {name}, in force from each date on, the last one {self.dates[-1]}",
            "cash_sha256": self.sha256,
        }


@lru_cache(maxsize=1)
def treasury_bills() -> CashRates:
    """Read one-month US Treasury bills, once in a process.

    The series is RF of Kenneth R. French's data library, as the package arch ships it: 1,109 months, July 1926 to
    November 2018, simple returns in percent with two decimals. The return r of a month is known when the month begins,
    so the rate ``(1 + r) ** 12 - 1`` is in force from the last day of the month before.
    """
    name = "treasury-bills"
    path = package_file("arch", "data", "frenchdata", "frenchdata.csv.gz") or Path("frenchdata.csv.gz")
    table, digest = package_table(path, "gzip", f"market.cash_rate = {name}: {path} of arch")
    if not {"Date", "RF"} <= set(table):
        raise MarketError(f"market.cash_rate = {name}: {path} of arch has no columns Date and RF")
    months = pd.PeriodIndex(pd.to_datetime(table["Date"].astype(str), format="%Y%m"), freq="M")
    monthly = table["RF"].to_numpy(dtype=np.float64) / 100.0
    if not (np.diff(months.asi8) == 1).all() or not np.isfinite(monthly).all():
        raise MarketError(f"market.cash_rate = {name}: {path} of arch lacks a month")
    begins = (months - 1).to_timestamp(how="end").to_numpy().astype("datetime64[D]")
    until = months[-1:].to_timestamp(how="end").to_numpy().astype("datetime64[D]")[0]
    return CashRates(begins, (1.0 + monthly) ** 12 - 1.0, path, digest, name, until)


def read_rates(path: Path, unit: CashUnit | None = None) -> CashRates:
    """Read dates and annual rates in a unit from a CSV file, or from a Parquet file that ends in .parquet.

    `MarketError` is one line that names the file, and the row where there is one.
    """
    sheet = read_sheet(path, "parquet" if path.suffix.lower() == ".parquet" else "csv", "market.cash_rate")
    if sheet.assets is not None or len(sheet.columns) != 1:
        others = ", ".join(name for _, name in sheet.columns[:5]) or "none"
        raise MarketError(f"{path} must have two columns, Date and the annual rate; beside the date it has {others}")
    name, rates = sheet.columns[0][1], sheet.numbers(0).copy()
    said = next((one for one, words in _UNITS.items() if words.search(name)), unit or "fraction")
    if said != (unit or "fraction"):
        raise MarketError(f"{path}: its column {name!r} is a {said}: set market.cash_unit={said}, or rename the column")
    for row in np.flatnonzero(~np.isnan(rates)).tolist():
        try:
            rates[row] = as_fraction(float(rates[row]), unit, f"{path}, {sheet.place(row)}: the rate")
        except ValueError as error:
            raise MarketError(str(error)) from None
    days = sheet.days.to_numpy().astype("datetime64[D]")

    def misplaced(row: int) -> str:
        what = "appears twice" if days[row] == days[row - 1] else f"follows {days[row - 1]}; sort the rows"
        return f"{path}, {sheet.place(row)}: the date {days[row]} {what}"

    refuse_rows(not_after(days), misplaced)
    known = np.isfinite(rates)
    refuse(not known.any(), f"{path} has no rates", MarketError)
    return CashRates(days[known], rates[known], path, sheet.sha256)


def cash_returns(
    dates: DateArray, rate: float | CashRates, last: np.datetime64 | None = None, year: int = 0
) -> FloatArray:
    """Simple return of cash over each bar, (bars,): (1 + rate) ** (1 / 252) - 1 for daily bars, 0 for the first.

    The rate is an effective annual one, spread evenly over the bars of a year (by the dates where ``year`` is 0). Of a
    series, the bar that ends at t earns the rate in force at the bar before, the last one dated on or before t - 1.
    Nothing is interpolated or filled backwards: `MarketError` if the series begins after the first bar, or if Treasury
    bills end a month or more before ``last``, the last bar that is used.
    """
    if isinstance(rate, CashRates):
        if last is not None and rate.until is not None and last > rate.until + np.timedelta64(31, "D"):
            raise MarketError(
                f"market.cash_rate = {rate.name} ends on {rate.until}, and the prices that are used on {last}: set "
                "market.test_end to that day or before, or name a file of rates"
            )
        if len(dates) and rate.dates[0] > dates[0]:
            raise MarketError(
                f"the rates of {rate.path} (market.cash_rate) begin on {rate.dates[0]}, after the first bar used, "
                f"{dates[0]}; add earlier ones, or set market.start"
            )
        annual = rate.rates[np.searchsorted(rate.dates, dates[:-1], side="right") - 1]
    else:
        annual = np.full(max(len(dates) - 1, 0), rate)
    # Distinct rates one by one: a vectorised power may round differently by position.
    distinct, places = np.unique(annual, return_inverse=True)
    returns, year = np.zeros(len(dates)), year or bars_per_year(dates)
    returns[1:] = np.array([(1.0 + float(one)) ** (1.0 / year) - 1.0 for one in distinct])[places]
    return returns
