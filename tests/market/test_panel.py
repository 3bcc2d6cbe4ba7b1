"""A panel can be relied on: what is wrong is named at the door, what is in it never changes."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import numpy as np
import pytest

from finflow.config import MarketConfig
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.splits import Split, split_panel

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
    with pytest.raises(MarketError) as caught:
        panel(**changes)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


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
        assert cut.open is not None
        assert cut.benchmark is not None
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


def test_facts_for_a_manifest_are_json_and_complete() -> None:
    import json

    facts = json.loads(json.dumps(panel(provenance={"source": "test"}).describe()))
    assert facts["source"] == "test"
    assert facts["panel_sha256"] == panel().sha256
    assert (facts["first_date"], facts["last_date"], facts["bars"]) == ("2020-01-01", "2020-01-05", 5)


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
    with pytest.raises(MarketError) as caught:
        split_panel(daily(), config(*dates))
    assert key in str(caught.value)
    assert "2010-01-01 to 2012-09-26" in str(caught.value)


def test_a_split_out_of_order_cannot_be_made() -> None:
    with pytest.raises(MarketError):
        Split(train_end=10, validation_end=10, test_end=20)
