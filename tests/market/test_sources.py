"""Prices from files: what is sound comes in as it is, what is not is named with its line."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import skfolio.datasets

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.sources.panel_loader import load_panel
from finflow.market.sources.shipped_prices import shipped_table

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
    assert panel.benchmark is not None
    assert panel.benchmark[0] == 359.69
    assert panel.listed.all()
    assert "hindsight" in panel.provenance["survivorship"]
    assert json.dumps(panel.describe())


def test_embedded_prices_can_be_narrowed_and_started_later() -> None:
    panel = load_panel(MarketConfig(tickers=("MSFT", "AAPL"), start=dt.date(2000, 1, 1)))
    assert panel.assets == ("MSFT", "AAPL")
    assert str(panel.dates[0]) == "2000-01-03"
    assert panel.cash_returns[0] == 0.0


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
    with pytest.raises(MarketError) as caught:
        load_panel(MarketConfig.model_validate(settings))
    for word in words:
        assert word in str(caught.value)


def test_a_csv_comes_in_as_it_is(tmp_path: Path) -> None:
    panel = load_panel(csv(tmp_path, GOOD, benchmark="IDX", cash_rate=0.02))
    assert panel.assets == ("A", "B")
    assert panel.close.tolist() == [[10, 20.5], [11, 19.5], [12, 18.5]]
    assert panel.benchmark is not None
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
        GOOD.replace("2020-01-02", "2020-01-02 16:00:00").encode(),
        GOOD.replace("2020-01-02", "2020-01-02T00:00:00+01:00").encode(),
    ],
)
def test_ways_to_write_the_same_csv_are_read_the_same(tmp_path: Path, text: bytes) -> None:
    assert load_panel(csv(tmp_path, text)).sha256 == load_panel(csv(tmp_path, GOOD)).sha256


def test_a_csv_may_list_an_asset_late(tmp_path: Path) -> None:
    panel = load_panel(csv(tmp_path, GOOD.replace(",20.5,", ",,")))
    assert panel.listed[:, 1].tolist() == [False, True, True]


BAD_CSV = {
    "missing price": (GOOD.replace("19.5", ""), ["'B'", "no price on 2020-01-02"]),
    "text": (GOOD.replace("19.5", "abc"), ["'B'", "line 3", "'abc'", "2020-01-02", "not a number"]),
    "thousands": (GOOD.replace("19.5", '"1,900.5"'), ["'B'", "line 3", "'1,900.5'"]),
    "text after a blank line": (GOOD.replace("2020-01-03,12", "\n2020-01-03,x"), ["'A'", "line 5", "'x'"]),
    "true and false": (GOOD.replace("10,", "True,").replace("11,", "True,").replace("12,", "False,"), ["'A'", "bool"]),
    "one asset": ("Date,A\n2020-01-01,1\n2020-01-02,2\n", ["at least two assets", "'A'"]),
    "no assets": ("Date\n2020-01-01\n", ["one column only"]),
    "semicolons": (GOOD.replace(",", ";"), ["one column only", "commas"]),
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
    with pytest.raises(MarketError) as caught:
        load_panel(csv(tmp_path, text))
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_what_lies_before_the_start_need_not_be_sound(tmp_path: Path) -> None:
    text = GOOD.replace("10,", "-1,") + "2020-01-04,13,17.5,103\n"
    assert load_panel(csv(tmp_path, text, start="2020-01-02")).n_bars == 3


def test_a_start_after_the_data_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MarketError, match="the data ends on 2020-01-03"):
        load_panel(csv(tmp_path, GOOD, start="2021-01-01"))


def test_a_benchmark_that_starts_late_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MarketError, match=r"'IDX' has no price on 2020-01-01.*market\.start"):
        load_panel(csv(tmp_path, GOOD.replace(",100", ","), benchmark="IDX"))


@pytest.mark.parametrize("source", ["csv", "parquet"])
def test_a_path_that_is_no_file_is_named(tmp_path: Path, source: str) -> None:
    for path, words in ((tmp_path / "none.csv", "does not exist"), (tmp_path, f"is a folder without a .{source} file")):
        with pytest.raises(MarketError, match=words):
            load_panel(MarketConfig.model_validate({"source": source, "path": path}))


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
    with pytest.raises(MarketError) as caught:
        load_panel(parquet(tmp_path, table))
    for word in words:
        assert word in str(caught.value)


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prices.parquet"
    path.write_text("no")
    with pytest.raises(MarketError, match="cannot be read as Parquet"):
        load_panel(MarketConfig(source="parquet", path=path))
