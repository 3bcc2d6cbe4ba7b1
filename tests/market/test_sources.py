"""Prices from files, and what cash earns: what is sound comes in as it is, what is not is named with its line."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import skfolio.datasets

from finflow.config import MarketConfig, load_config
from finflow.errors import ConfigError, MarketError
from finflow.market.panel import MarketPanel
from finflow.market.sources.cash import treasury_bills
from finflow.market.sources.panel_loader import load_panel
from finflow.market.sources.shipped_prices import french_portfolios, shipped_table
from finflow.training.judging.held_out import cash_rate
from tests.market.conftest import assert_refused

GOOD = """Date,A,B,IDX
2020-01-01,10,20.5,100
2020-01-02,11,19.5,101
2020-01-03,12,18.5,102
"""


LATER = {"train_end": "2030-01-01", "validation_end": "2031-01-01"}
"""Ends of windows that leave `market.start` free; loading does not split."""


def csv(tmp_path: Path, text: str | bytes, **settings: object) -> MarketConfig:
    path = tmp_path / "prices.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return MarketConfig.model_validate({"source": "csv", "path": path, **LATER, **settings})


def parquet(tmp_path: Path, frame: pd.DataFrame, **settings: object) -> MarketConfig:
    path = tmp_path / "prices.parquet"
    frame.to_parquet(path)
    return MarketConfig.model_validate({"source": "parquet", "path": path, **settings})


def frame() -> pd.DataFrame:
    dates = pd.DatetimeIndex(["2020-01-01", "2020-01-02", "2020-01-03"], name="Date")
    return pd.DataFrame({"A": [10, 11, 12], "B": [20.5, 19.5, 18.5], "IDX": [100.0, 101.0, 102.0]}, index=dates)


@pytest.mark.parametrize("name", ["sp500_dataset", "sp500_index", "factors_dataset"])
def test_a_shipped_table_is_what_skfolio_loads(name: str) -> None:
    expected = getattr(skfolio.datasets, f"load_{name}")()
    pd.testing.assert_frame_equal(shipped_table(name), expected, check_exact=True)


def test_embedded_prices_are_those_of_skfolio_and_say_what_they_cannot_show() -> None:
    panel = load_panel(MarketConfig())
    assert (panel.n_bars, panel.n_assets, panel.benchmark_name) == (8313, 20, "SP500")
    assert (str(panel.dates[0]), str(panel.dates[-1])) == ("1990-01-02", "2022-12-28")
    assert panel.assets[:3] == ("AAPL", "AMD", "BAC")
    assert panel.benchmark[0] == 359.69
    assert panel.listed.all()
    assert "hindsight" in panel.provenance["survivorship"]
    assert json.dumps(panel.describe())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tickers": ("AAPL", "MFST")}, ["'MFST'", "'MSFT'", "yfinance"]),
        ({"tickers": ("AAPL",)}, ["at least two assets"]),
        ({"benchmark": "DAX"}, ["market.benchmark", "'DAX'"]),
        ({"start": dt.date(2010, 1, 1), "tickers": ("AAPL", "aapl")}, ["'aapl'", "did you mean 'AAPL'"]),
    ],
)
def test_a_name_the_data_lacks_is_answered_with_the_nearest(settings: dict[str, object], words: list[str]) -> None:
    assert_refused(words, lambda: load_panel(MarketConfig.model_validate(settings)))


def test_a_csv_comes_in_as_it_is(tmp_path: Path) -> None:
    panel = load_panel(csv(tmp_path, GOOD, benchmark="IDX", cash_rate=0.02))
    assert panel.assets == ("A", "B")
    assert panel.close.tolist() == [[10, 20.5], [11, 19.5], [12, 18.5]]
    assert panel.benchmark.tolist() == [100, 101, 102]
    assert panel.provenance["file"] == "prices.csv"
    assert len(panel.provenance["file_sha256"]) == 64
    assert str(tmp_path) not in json.dumps(panel.describe())
    plain = load_panel(csv(tmp_path, GOOD))
    assert (plain.assets, plain.benchmark) == (("A", "B", "IDX"), None)


@pytest.mark.parametrize(
    "text",
    [
        GOOD.encode("utf-8-sig"),
        GOOD.replace("\n", "\r\n").encode(),
        (GOOD + "\n\n").encode(),
        GOOD.replace(",", ", ").encode(),
        GOOD.replace(",", ";").replace(".", ",").encode(),
        GOOD.replace(",", "\t").encode(),
        GOOD.replace("2020-01-02", "2020-01-02 16:00:00").encode(),
        GOOD.replace("2020-01-02", "2020-01-02T00:00:00+01:00").encode(),
    ],
)
def test_ways_to_write_the_same_csv_are_read_the_same(tmp_path: Path, text: bytes) -> None:
    assert load_panel(csv(tmp_path, text)).sha256 == load_panel(csv(tmp_path, GOOD)).sha256


BAD_CSV = {
    "missing price": (GOOD.replace("19.5", ""), ["'B'", "no price on 2020-01-02"]),
    "text": (GOOD.replace("19.5", "abc"), ["'B'", "line 3", "'abc'", "2020-01-02", "not a number"]),
    "text after a blank line": (GOOD.replace("2020-01-03,12", "\n2020-01-03,x"), ["'A'", "line 5", "'x'"]),
    "true and false": (GOOD.replace("10,", "True,").replace("11,", "True,").replace("12,", "False,"), ["'A'", "bool"]),
    "one asset": ("Date,A\n2020-01-01,1\n2020-01-02,2\n", ["at least two assets", "'A'"]),
    "no assets": ("Date\n2020-01-01\n", ["one column only"]),
    "empty": ("", ["is empty"]),
    "no common dates": ("Date,A,B\n2020-01-01,1,\n2020-01-02,2,\n2020-01-03,,3\n2020-01-04,,4\n", ["no common dates"]),
    "no price at all": ("Date,A,B,C\n2020-01-01,1,2,\n2020-01-02,2,3,\n", ["'C'", "no price"]),
    "repeated column": (GOOD.replace("IDX", "A"), ["'A'", "more than once"]),
    "nameless column": (GOOD.replace("IDX", ""), ["column 4", "no name"]),
    "no date column": ("A,B\n1,2\n3,4\n", ["line 2", "'1'", "YYYY-MM-DD"]),
    "other date form": (GOOD.replace("2020-01-02", "02/01/2020"), ["line 3", "'02/01/2020'", "YYYY-MM-DD"]),
    "no such day": (GOOD.replace("2020-01-02", "2020-02-31"), ["line 3", "2020-02-31"]),
    "missing date": (GOOD.replace("2020-01-02", ""), ["line 3", "missing"]),
    "cells beyond the header": (GOOD.replace("101", "101,7"), ["more cells than the header"]),
    "cells beyond the header everywhere": ("Date,A,B\n2020-01-01,1,2,3\n2020-01-02,1,2,3\n", ["more cells"]),
    "too few cells": (GOOD.replace(",19.5,101", ""), ["'B'", "no price on 2020-01-02"]),
    "not text": (b"\x89PNG\r\n\x1a\n\x00\xff\xfe", ["prices.csv", "UTF-8"]),
    "not text further on": (GOOD.encode() + b"2020-01-04,\xff,1,1\n", ["UTF-8"]),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_a_bad_csv_is_one_clear_line(tmp_path: Path, case: str) -> None:
    text, words = BAD_CSV[case]
    assert_refused(words, lambda: load_panel(csv(tmp_path, text)))


def test_what_lies_before_the_start_need_not_be_sound(tmp_path: Path) -> None:
    text = GOOD.replace("10,", "-1,") + "2020-01-04,13,17.5,103\n"
    assert load_panel(csv(tmp_path, text, start="2020-01-02")).n_bars == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"start": "2021-01-01"}, "the data ends on 2020-01-03"),
        ({"benchmark": "IDX"}, r"'IDX' has no price on 2020-01-01.*market\.start"),
    ],
)
def test_a_start_or_a_benchmark_that_does_not_fit_says_what_to_do(
    tmp_path: Path, settings: dict[str, object], words: str
) -> None:
    with pytest.raises(MarketError, match=words):
        load_panel(csv(tmp_path, GOOD.replace(",100", ","), **settings))


@pytest.mark.parametrize("source", ["csv", "parquet"])
def test_a_path_that_is_no_file_is_named(tmp_path: Path, source: str) -> None:
    for path, words in ((tmp_path / "none.csv", "does not exist"), (tmp_path, f"is a folder without a .{source} file")):
        with pytest.raises(MarketError, match=words):
            load_panel(MarketConfig.model_validate({"source": source, "path": path}))
    (tmp_path / "prices.parquet").write_text("no")
    with pytest.raises(MarketError, match="cannot be read as Parquet"):
        load_panel(MarketConfig(source="parquet", path=tmp_path / "prices.parquet"))


def test_parquet_and_csv_of_the_same_prices_are_the_same_panel(tmp_path: Path) -> None:
    from_csv = load_panel(csv(tmp_path, GOOD, benchmark="IDX"))
    for table in (
        frame(),
        frame().reset_index(),
        frame().reset_index().astype({"Date": str}),
        frame().tz_localize("America/New_York"),
        frame().set_axis([dt.date(2020, 1, day) for day in (1, 2, 3)], axis=0),
    ):
        assert load_panel(parquet(tmp_path, table, benchmark="IDX")).sha256 == from_csv.sha256


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (frame().astype({"B": object}).replace(19.5, "x").astype({"B": str}), ["'B'", "row 2", "'x'", "2020-01-02"]),
        (frame().replace(19.5, np.nan), ["'B'", "no price on 2020-01-02"]),
        (frame().reset_index(drop=True), ["row 1", "YYYY-MM-DD"]),
        (frame().iloc[:, :0], ["at least two assets"]),
        (frame().iloc[[0, 2, 1]], ["ascending"]),
    ],
)
def test_a_bad_parquet_file_is_one_clear_line(tmp_path: Path, table: pd.DataFrame, words: list[str]) -> None:
    assert_refused(words, lambda: load_panel(parquet(tmp_path, table)))


DAYS = pd.DatetimeIndex(pd.bdate_range("2020-01-01", periods=8), name="Date")
RATES = "Date,rate\n2019-12-15,0.05\n2020-01-03,0.02\n2020-01-04,\n2020-01-05,-0.01\n2020-01-09,0.1\n"


def daily(rate: float) -> float:
    return float((1.0 + rate) ** (1.0 / 252.0) - 1.0)


def load(folder: Path, rates: str | Path | float, days: pd.DatetimeIndex = DAYS, **settings: Any) -> MarketPanel:
    prices = pd.DataFrame(np.arange(2.0 * len(days)).reshape(-1, 2) + 5.0, index=days, columns=["A", "B"])
    prices.to_csv(folder / "prices.csv")
    if isinstance(rates, str) and rates != "treasury-bills":
        (folder / "rates.csv").write_text(rates)
        rates = folder / "rates.csv"
    values = {"source": "csv", "path": folder / "prices.csv", "cash_rate": rates, **settings}
    return load_panel(MarketConfig.model_validate(values))


def test_a_bar_earns_the_rate_in_force_at_the_bar_before(tmp_path: Path) -> None:
    """Bars: 1 January 2020 (Wednesday), 2, 3, 6, 7, 8, 9, 10. The rate of the 3rd is earned from the 3rd to the 6th."""
    panel = load(tmp_path, RATES)
    expected = [0.0, daily(0.05), daily(0.05), daily(0.02), daily(-0.01), daily(-0.01), daily(-0.01), daily(0.1)]
    assert panel.cash_returns.tolist() == expected
    assert panel.provenance["cash_rate"] == "series of rates.csv, in force from each date on, the last one 2020-01-09"
    assert len(panel.provenance["cash_sha256"]) == 64
    pd.read_csv(tmp_path / "rates.csv", parse_dates=["Date"]).to_parquet(tmp_path / "rates.parquet")
    assert load(tmp_path, tmp_path / "rates.parquet").cash_returns.tolist() == expected


@pytest.mark.parametrize("bars", [2, 4, 7])
def test_later_rates_and_later_bars_change_nothing_before(tmp_path: Path, bars: int) -> None:
    """What was earned up to a bar is the same if the rates from its date on, and the bars after it, are others."""
    whole = load(tmp_path, RATES).cash_returns
    lines = RATES.splitlines()
    kept = [lines[0], *(line for line in lines[1:] if line[:10] < str(DAYS[bars - 1].date()))]
    cut = load(tmp_path, "\n".join([*kept, f"{DAYS[bars - 1].date()},0.2"]), DAYS[:bars]).cash_returns
    assert cut.tolist() == whole[:bars].tolist()


BAD = {
    "too late": (
        RATES.replace("2019-12-15", "2020-01-02"),
        ["rates.csv", "begin on 2020-01-02", "2020-01-01", "start"],
    ),
    "percent": (
        RATES.replace("0.05", "5.25"),
        ["rates.csv, line 2: the rate 5.25", "market.cash_unit=percent for 5.25 %"],
    ),
    "percent by name": (RATES.replace("rate", "Rate (%)"), ["'Rate (%)' is a percent", "market.cash_unit=percent"]),
    "text": (RATES.replace("0.05", "five"), ["rates.csv, line 2", "'rate'", "'five'"]),
    "unsorted": (RATES.replace("2019-12-15", "2020-01-08"), ["line 3", "follows 2020-01-08", "sort"]),
    "twice": (RATES.replace("2020-01-05", "2020-01-04"), ["line 5", "2020-01-04 appears twice"]),
    "no rates": ("Date,rate\n2020-01-01,\n", ["has no rates"]),
    "many columns": ("Date,a,b\n2020-01-01,0.1,0.1\n", ["two columns", "a, b"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_series_is_one_clear_line(tmp_path: Path, case: str) -> None:
    text, words = BAD[case]
    assert_refused(words, lambda: load(tmp_path, text))


def test_a_rate_is_a_number_or_a_path_and_nothing_between() -> None:
    assert load_config(overrides={"market.cash_rate": "0.03"}, environ={}).market.cash_rate == 0.03
    for wrong in ("200", '"0.03"', "true", "[1]"):
        with pytest.raises(ConfigError, match=r"a number above -100 and at most 100 or a path"):
            load_config(overrides={"market.cash_rate": wrong}, environ={})


@pytest.mark.parametrize(
    ("rate", "unit", "fraction"),
    [
        (0.1, None, 0.1),
        (0.1, "percent", 0.001),
        (5.25, "percent", 0.0525),
        (0.45, "fraction", 0.45),
        (0.45, None, "0.45 needs a unit.* for 0.45 % a year, or market.cash_unit=fraction for 45 %"),
        (50.0, None, "set market.cash_unit=percent for 50 % a year \\(overrides\\)"),
        (2.0, "fraction", "2 is 200 % a year: rates are above -100 % and at most 100 %"),
        (-100.0, "percent", "above -100"),
    ],
)
def test_a_rate_has_a_unit_or_is_small(rate: float, unit: str | None, fraction: float | str, tmp_path: Path) -> None:
    given = {"market.cash_rate": rate, "market.cash_unit": unit}
    if isinstance(fraction, str):
        with pytest.raises(ConfigError, match=fraction):
            load_config(overrides=given, environ={})
        return
    market = load_config(overrides=given, environ={}).market
    assert load_panel(market).cash_returns[1] == daily(fraction)
    (tmp_path / "rates.csv").write_text(f"Date,rate\n1989-12-29,{rate}\n")
    of_file = market.model_copy(update={"cash_rate": tmp_path / "rates.csv"})
    assert load_panel(of_file).cash_returns[1] == daily(fraction)


def test_the_report_says_what_cash_earned(tmp_path: Path) -> None:
    assert cash_rate(load(tmp_path, 0.03)) == "3.00% a year"
    assert cash_rate(load(tmp_path, 0.0)) == "0.00% a year"
    assert cash_rate(load(tmp_path, RATES)).startswith("-1.00% to 10.00% a year, ")


def test_the_bars_before_the_start_do_not_ask_for_rates(tmp_path: Path) -> None:
    panel = load(tmp_path, RATES.replace("2019-12-15", "2020-01-02"), start="2020-01-02", **LATER)
    assert panel.cash_returns[1] == daily(0.05)


def test_treasury_bills_by_name_earn_what_their_month_returned(tmp_path: Path) -> None:
    """Monthly bars: the return of each month is that of the data library, known when the month begins."""
    days = pd.DatetimeIndex(pd.date_range("2007-12-31", periods=6, freq="ME"), name="Date")
    settings = {"train_end": "2008-02-29", "validation_end": "2008-03-31"}
    panel = load(tmp_path, "treasury-bills", days, **settings)
    np.testing.assert_allclose(panel.cash_returns[1:], [0.0021, 0.0013, 0.0017, 0.0018, 0.0018], atol=1e-12)
    assert panel.provenance["cash_rate"].startswith("series of treasury-bills, in force")
    assert len(panel.provenance["cash_sha256"]) == 64


def test_prices_beyond_the_bills_are_refused_unless_they_are_unused(tmp_path: Path) -> None:
    days = pd.DatetimeIndex(pd.bdate_range("2018-06-01", periods=250), name="Date")
    with pytest.raises(MarketError, match="ends on 2018-11-30, and the prices that are used on 2019-05-16"):
        load(tmp_path, "treasury-bills", days)
    windows = {"train_end": "2018-08-31", "validation_end": "2018-10-31", "test_end": "2018-11-30"}
    assert load(tmp_path, "treasury-bills", days, **windows).n_bars == 250
    early = pd.DatetimeIndex(pd.bdate_range("1926-01-04", periods=20), name="Date")
    with pytest.raises(MarketError, match="begin on 1926-06-30, after the first bar"):
        load(tmp_path, "treasury-bills", early)


def test_treasury_bills_agree_with_the_other_package_that_ships_them() -> None:
    pytest.importorskip("linearmodels")
    other, bills = french_portfolios(), treasury_bills()
    months = other.tables["close"].index[1:]
    ends = pd.DatetimeIndex(bills.dates) + pd.offsets.MonthEnd(1)
    own = pd.Series((1.0 + bills.rates) ** (1.0 / 12.0) - 1.0, ends)[months]
    np.testing.assert_allclose(own, other.cash[1:], atol=2e-4)  # either has been corrected since, by .01 % a month
