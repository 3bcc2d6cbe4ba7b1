"""A panel can be relied on: mistakes are named, short gaps held from the past alone, windows end on their dates."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import read_csv

from finflow.config import MarketConfig, load_config
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel, split_panel
from finflow.market.plausibility.price_notes import describe_halts, price_notes
from finflow.market.price_adjustments import hold_over_gaps
from finflow.market.sources.panel_loader import load_panel
from tests.market.conftest import assert_refused
from tests.short_trainings import market_prices

NAN = np.nan


@pytest.mark.parametrize(
    ("prices", "filled", "halted"),
    [
        ([1.0, NAN, 3.0], [1.0, 1.0, 3.0], [0, 1, 0]),
        ([NAN, 2.0, NAN, NAN, 5.0], [NAN, 2.0, 2.0, 2.0, 5.0], [0, 0, 1, 1, 0]),
        ([1.0, NAN, NAN, NAN, 5.0], [1.0, NAN, NAN, NAN, 5.0], [0, 0, 0, 0, 0]),  # too long: left, to be refused
        ([1.0, 2.0, NAN, NAN, NAN], [1.0, 2.0, 2.0, 2.0, NAN], [0, 0, 1, 1, 0]),  # ended: known after two bars
        ([NAN, NAN, 1.0, 2.0, 3.0], [NAN, NAN, 1.0, 2.0, 3.0], [0, 0, 0, 0, 0]),  # nothing is filled backward
    ],
)
def test_a_price_is_carried_forward_over_two_bars_and_no_more(
    prices: list[float], filled: list[float], halted: list[int]
) -> None:
    fields, mask = hold_over_gaps({"close": np.array([prices]).T}, 2)
    np.testing.assert_array_equal(fields["close"][:, 0], filled)
    assert mask[:, 0].astype(int).tolist() == halted


def test_a_filled_bar_has_no_range_and_no_volume() -> None:
    table = {name: np.array([[10.0], [NAN], [12.0]]) for name in ("close", "open", "high", "low", "volume")}
    table["close"][0] = 9.0
    fields, _ = hold_over_gaps(table, 1)
    filled = {name: float(values[1, 0]) for name, values in fields.items()}
    assert filled == {"close": 9.0, "open": 9.0, "high": 9.0, "low": 9.0, "volume": 0.0}


def test_what_is_filled_up_to_a_bar_depends_on_no_later_one() -> None:
    """The table cut at any bar is filled as the whole is, as long as the whole has no gap that is refused."""
    rng = np.random.default_rng(4)
    close = np.exp(rng.normal(size=(60, 5)))
    for start in (7, 20, 33, 48):
        close[start : start + 3, rng.integers(5)] = NAN
    close[55:, 2] = NAN
    whole, halted = hold_over_gaps({"close": close}, 3)
    assert halted.any()
    for stop in range(2, 60):
        part, mask = hold_over_gaps({"close": close[:stop]}, 3)
        np.testing.assert_array_equal(part["close"], whole["close"][:stop])
        np.testing.assert_array_equal(mask, halted[:stop])


@pytest.fixture
def holed(tmp_path: Path) -> Path:
    """Prices of four assets, B without a price on three days and D on one."""
    prices = market_prices(bars=400)
    prices.iloc[100:103, 1] = NAN
    prices.iloc[200, 3] = NAN
    prices.to_csv(tmp_path / "prices.csv")
    return tmp_path / "prices.csv"


def panel_from(path: Path, **keys: object) -> MarketPanel:
    given = {f"market.{name}": value for name, value in keys.items()}
    dates = {"market.train_end": "2010-06-30", "market.validation_end": "2010-09-30"}
    return load_panel(load_config(None, {"market.source": "csv", "market.path": str(path), **dates, **given}).market)


def test_gaps_are_refused_unless_they_are_asked_to_be_held(holed: Path) -> None:
    with pytest.raises(MarketError, match=r"'B' has no price on 2009-10-19.*market\.max_gap=3 \(bars\)$"):
        panel_from(holed)
    with pytest.raises(MarketError, match="'B' has no price on 2009-10-19"):
        panel_from(holed, max_gap=2)
    prices = read_csv(holed, index_col=0)
    prices.iloc[300:305, 3] = NAN
    prices.to_csv(holed.with_name("five.csv"))
    with pytest.raises(MarketError, match=r"max_gap=3 \(bars\), or 5 for every asset$"):
        panel_from(holed.with_name("five.csv"))
    prices.iloc[100:390, 1] = NAN
    prices.to_csv(holed.with_name("long.csv"))
    with pytest.raises(MarketError, match=r"its longest gap has 290 bars, more than market\.max_gap may be \(260\)$"):
        panel_from(holed.with_name("long.csv"))
    panel = panel_from(holed, max_gap=3)
    assert np.argwhere(panel.halted).tolist() == [[100, 1], [101, 1], [102, 1], [200, 3]]
    assert (panel.close[100:103, 1] == panel.close[99, 1]).all()


def test_a_panel_with_gaps_is_another_panel_and_keeps_them_when_it_is_cut(holed: Path) -> None:
    panel = panel_from(holed, max_gap=3)
    complete = MarketPanel(panel.dates, panel.assets, panel.close, panel.cash_returns)
    assert complete.halted is None
    assert complete.sha256 != panel.sha256
    assert panel.until(101).halted.sum() == 1
    assert panel.until(100).halted is None
    joined = panel.spliced([range(50, 101), range(190, 300)])
    assert np.argwhere(joined.halted).tolist() == [[50, 1], [61, 3]]


def test_notes_name_the_bars_and_what_was_done(holed: Path) -> None:
    panel = panel_from(holed, max_gap=5)
    (note,) = price_notes(panel)
    assert "held at the last one and not traded" in note
    assert "B from 2009-10-19 to 2009-10-21 (3 bars), D on 2010-03-08" in note
    assert describe_halts(panel, since=150).endswith("D on 2010-03-08")
    assert price_notes(panel.between(panel.bars_until("2010-05-31"), panel.n_bars)) == []


DATES = np.datetime64("2020-01-01") + np.arange(5)


def panel(**changes: Any) -> MarketPanel:
    close = np.array([[10.0, 20.0], [11.0, 19.0], [12.0, 18.0], [11.0, 21.0], [13.0, 22.0]])
    return MarketPanel(**{"dates": DATES, "assets": ("A", "B"), "close": close, **changes})


def with_price(row: int, column: int, price: float) -> np.ndarray:
    close = np.array(panel().close)
    close[row, column] = price
    return close


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"assets": (), "close": np.zeros((5, 0))}, ["at least two assets", "none"]),
        ({"assets": ("A",), "close": np.ones((5, 1))}, ["at least two assets", "'A'"]),
        ({"assets": ("A", "A")}, ["'A'", "more than once"]),
        ({"assets": ("A", " ")}, ["empty name"]),
        ({"dates": DATES[:1], "close": np.ones((1, 2))}, ["at least two dates", "2020-01-01"]),
        ({"dates": DATES[:0], "close": np.ones((0, 2))}, ["no rows"]),
        ({"dates": DATES[[0, 1, 1, 2, 3]]}, ["2020-01-02", "twice"]),
        ({"dates": DATES[[0, 2, 1, 3, 4]]}, ["2020-01-02", "ascending", "2020-01-03"]),
        ({"dates": np.array(["2020-01-01", "NaT", "2020-01-03", "2020-01-04", "2020-01-05"], "M8[D]")}, ["row 2"]),
        ({"close": with_price(2, 1, -3.0)}, ["'B'", "negative", "-3", "2020-01-03"]),
        ({"close": with_price(2, 1, 0.0)}, ["'B'", "zero", "2020-01-03"]),
        ({"close": with_price(2, 1, np.inf)}, ["'B'", "not finite", "2020-01-03"]),
        ({"close": with_price(2, 1, np.nan)}, ["'B'", "no price on 2020-01-03", "gap"]),
        ({"close": np.ones((5, 3))}, ["shape", "(5, 3)"]),
        ({"cash_returns": np.full(5, 0.1)}, ["cash", "first bar"]),
        ({"cash_returns": np.array([0.0, np.nan, 0.0, 0.0, 0.0])}, ["cash", "finite"]),
        ({"open": with_price(1, 0, 0.0)}, ["'A'", "open", "2020-01-02"]),
        ({"volume": with_price(1, 0, -1.0)}, ["'A'", "volume", "negative"]),
        (
            {"high": with_price(1, 0, 0.5), "low": with_price(1, 0, 0.6)},
            ["'A' has a high (0.5) under its low", "2020-01-02", "leave high and low out"],
        ),
        ({"high": with_price(0, 0, np.nan)}, ["'A'", "close but none of high", "2020-01-01", "leave high out"]),
        ({"benchmark": np.array([1, 2, np.nan, 4, 5.0]), "benchmark_name": "IDX"}, ["IDX", "no price", "2020-01-03"]),
        ({"benchmark": np.array([1, 2, 0.0, 4, 5.0])}, ["impossible price", "2020-01-03"]),
    ],
)
def test_what_is_wrong_is_named_with_asset_and_date(changes: dict[str, Any], words: list[str]) -> None:
    assert_refused(words, lambda: panel(**changes))


def test_an_asset_may_list_late_and_end_early() -> None:
    close = np.array(panel().close)
    close[:2, 0] = np.nan
    close[4:, 1] = np.nan
    ragged = panel(close=close)
    assert ragged.until(2).assets == ("A", "B")  # one of them lists later
    assert ragged.listed.tolist() == [[False, True], [False, True], [True, True], [True, True], [True, False]]


def test_nothing_in_a_panel_can_be_changed() -> None:
    source = np.array(panel().close)
    fixed = panel(close=source)
    source[0, 0] = 99.0
    assert fixed.close[0, 0] == 10.0
    for array in (fixed.close, fixed.dates, fixed.cash_returns, fixed.listed):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = array[1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        fixed.close = source  # type: ignore[misc]


def test_cut_by_count_and_by_date_is_the_same_and_leaves_nothing_later() -> None:
    whole = panel(open=with_price(0, 0, 9.0), benchmark=np.arange(1.0, 6.0), cash_returns=np.array([0, 1, 1, 1, 1e-4]))
    for cut in (whole.until(3), whole.until("2020-01-03"), whole.until(np.datetime64("2020-01-03"))):
        assert cut.n_bars == 3
        assert cut.dates[-1] == np.datetime64("2020-01-03")
        assert len(cut.open) == len(cut.benchmark) == len(cut.cash_returns) == 3
        assert cut.provenance == whole.provenance
    assert whole.until(5).sha256 == whole.sha256


@pytest.mark.parametrize("end", [0, 1, 6, -1, "1999-01-01"])
def test_a_cut_outside_the_data_is_an_error(end: int | str) -> None:
    with pytest.raises(MarketError):
        panel().until(end)


def test_a_later_start_earns_no_cash_on_its_first_bar() -> None:
    later = panel(cash_returns=np.array([0.0, 0.1, 0.1, 0.1, 0.1])).between(2, 5)
    assert later.n_bars == 3
    assert later.cash_returns.tolist() == [0.0, 0.1, 0.1]


def test_the_hash_follows_prices_names_and_cash_but_not_provenance() -> None:
    reference = panel().sha256
    assert panel(provenance={"source": "elsewhere"}).sha256 == reference
    changed = [
        panel(close=with_price(0, 0, np.nextafter(10.0, 11.0))),
        panel(assets=("A", "C")),
        panel(dates=DATES + 1),
        panel(cash_returns=np.array([0.0, 0.0, 0.0, 0.0, 1e-9])),
        panel(volume=np.ones((5, 2))),
        panel(benchmark=np.ones(5)),
    ]
    hashes = {reference, *(one.sha256 for one in changed)}
    assert len(hashes) == 1 + len(changed)
    assert panel(benchmark=np.ones(5), benchmark_name="X").sha256 != panel(benchmark=np.ones(5)).sha256


def test_joined_pieces_move_as_they_did_and_do_not_move_over_the_join() -> None:
    volume = np.array(panel().close) * 100.0
    whole = panel(volume=volume, benchmark=np.arange(1.0, 6.0), cash_returns=np.array([0.0, 0.1, 0.1, 0.1, 0.1]))
    joined = whole.spliced([range(0, 2), range(3, 5)])
    np.testing.assert_array_equal(joined.dates, DATES[[0, 1, 3, 4]])
    moves = joined.close[1:] / joined.close[:-1]
    np.testing.assert_allclose(moves, [whole.close[1] / whole.close[0], [1.0, 1.0], whole.close[4] / whole.close[3]])
    np.testing.assert_allclose(joined.close * joined.volume, (whole.close * volume)[[0, 1, 3, 4]])
    np.testing.assert_allclose(joined.benchmark, [1.0, 2.0, 2.0, 2.5])
    np.testing.assert_array_equal(joined.cash_returns, [0.0, 0.1, 0.0, 0.1])


def test_nothing_in_joined_pieces_tells_of_what_was_left_out() -> None:
    other = panel(close=with_price(2, 0, 99.0)).spliced([range(0, 2), range(3, 5)])
    assert other.sha256 == panel().spliced([range(0, 2), range(3, 5)]).sha256


def test_an_asset_that_ended_in_what_was_left_out_is_not_there_after_it() -> None:
    close = np.array(panel().close)
    close[2:, 0] = np.nan
    joined = panel(close=close).spliced([range(0, 2), range(3, 5)])
    np.testing.assert_array_equal(joined.listed[:, 0], [True, True, False, False])
    np.testing.assert_allclose(joined.close[:, 1], [20.0, 19.0, 19.0, 19.0 * 22.0 / 21.0])


@pytest.mark.parametrize("pieces", [[], [range(0, 3), range(2, 5)], [range(0, 6)], [range(3, 5), range(0, 2)]])
def test_pieces_that_cannot_be_joined_are_refused(pieces: list[range]) -> None:
    with pytest.raises(MarketError, match="cannot be joined"):
        panel().spliced(pieces)


def daily(first: str = "2010-01-01", bars: int = 1000) -> MarketPanel:
    dates = np.datetime64(first) + np.arange(bars)
    return MarketPanel(dates=dates, assets=("A", "B"), close=np.full((bars, 2), 10.0))


def config(train: str, validation: str, test: str | None = None) -> MarketConfig:
    day = dt.date.fromisoformat
    return MarketConfig(train_end=day(train), validation_end=day(validation), test_end=day(test) if test else None)


def test_windows_follow_one_another_and_end_on_their_dates() -> None:
    panel = daily()
    split = split_panel(panel, config("2010-12-31", "2011-06-30", "2012-01-31"))
    assert list(split.train) + list(split.validation) + list(split.test) == list(range(split.test_end))
    for window, last in ((split.train, "2010-12-31"), (split.validation, "2011-06-30"), (split.test, "2012-01-31")):
        assert panel.dates[window[-1]] == np.datetime64(last)


def test_the_test_runs_to_the_last_bar_without_an_end_or_with_one_soon_after_it() -> None:
    for end in (None, "2012-10-15"):
        assert split_panel(daily(), config("2010-12-31", "2011-12-31", end)).test[-1] == 999


def test_a_date_without_a_bar_ends_with_the_bar_before() -> None:
    panel = daily()
    gap = panel.dates != np.datetime64("2010-12-31")
    holed = MarketPanel(dates=panel.dates[gap], assets=panel.assets, close=panel.close[gap])
    split = split_panel(holed, config("2010-12-31", "2011-06-30"))
    assert holed.dates[split.train[-1]] == np.datetime64("2010-12-30")


@pytest.mark.parametrize(
    ("dates", "key"),
    [
        (("2009-01-01", "2011-01-01", None), "market.train_end"),
        (("2010-12-31", "2013-12-31", None), "test window is empty: market.test_end is the last bar"),
        (("2013-12-31", "2014-12-31", "2015-12-31"), "market.validation_end"),
        (("2010-12-31", "2011-12-31", "2013-12-31"), "test window leaves the data: market.test_end is 2013-12-31"),
    ],
)
def test_a_window_that_is_empty_or_leaves_the_data_names_its_key_and_the_span_of_the_data(
    dates: tuple[str, str, str | None], key: str
) -> None:
    assert_refused([key, "2010-01-01 to 2012-09-26"], lambda: split_panel(daily(), config(*dates)))
