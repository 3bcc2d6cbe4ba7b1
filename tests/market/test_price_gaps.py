"""Short gaps are held at the last price, from the past alone, and jumps that look like splits are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.config import load_config
from finflow.errors import MarketError
from finflow.market.panel import MarketPanel
from finflow.market.price_adjustments import hold_over_gaps
from finflow.market.price_notes import describe_halts, describe_splits, price_notes
from finflow.market.sources.panel_loader import load_panel
from tests.short_trainings import market_prices

FloatArray = NDArray[np.float64]
NAN = np.nan


def column(*prices: float) -> dict[str, FloatArray]:
    return {"close": np.array([prices]).T}


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
    fields, mask = hold_over_gaps(column(*prices), 2)
    np.testing.assert_array_equal(fields["close"][:, 0], filled)
    assert mask[:, 0].astype(int).tolist() == halted


def test_a_filled_bar_has_no_range_and_no_volume() -> None:
    table = {name: np.array([[10.0], [NAN], [12.0]]) for name in ("close", "open", "high", "low", "volume")}
    table["close"][0] = 9.0
    fields, _ = hold_over_gaps(table, 1)
    assert {name: float(values[1, 0]) for name, values in fields.items()} == {
        **{"close": 9.0, "open": 9.0, "high": 9.0, "low": 9.0},
        "volume": 0.0,
    }


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
    with pytest.raises(MarketError, match=r"'B' has no price on 2009-10-19.*market\.max_gap"):
        panel_from(holed)
    with pytest.raises(MarketError, match="'B' has no price on 2009-10-19"):
        panel_from(holed, max_gap=2)
    panel = panel_from(holed, max_gap=3)
    assert panel.halted is not None
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


def split_market(split: float, bar: int = 250) -> pd.DataFrame:
    prices = market_prices(bars=400)
    prices.iloc[bar:, 2] /= split
    return prices


@pytest.mark.parametrize(("split", "words"), [(2.0, "2 for 1"), (1.5, "3 for 2"), (7.0, "7 for 1"), (0.1, "1 for 10")])
def test_a_split_that_prices_are_not_adjusted_for_is_named_with_its_ratio(
    tmp_path: Path, split: float, words: str
) -> None:
    split_market(split).to_csv(tmp_path / "prices.csv")
    panel = panel_from(tmp_path / "prices.csv")
    (note,) = price_notes(panel)
    assert note.count("as after a split of") == 1
    assert f"C on {panel.dates[250]}" in note
    assert f"as after a split of {words}" in note
    assert f"divide the prices of C before {panel.dates[250]} by {split:g} (or give an Adj Close)" in note
    close = panel.close.copy()
    close[:250, 2] /= split
    assert describe_splits(MarketPanel(panel.dates, panel.assets, close)) == ""


def test_crashes_of_the_whole_market_and_wild_assets_are_no_splits() -> None:
    rng = np.random.default_rng(0)
    crash = market_prices(bars=400)
    crash.iloc[250:] /= 2.0
    wild = market_prices(bars=400)
    wild["A"] = 100.0 * np.exp(np.cumsum(rng.normal(0.0, 0.15, 400)))
    for prices in (crash, wild, market_prices(bars=400)):
        panel = MarketPanel(prices.index.to_numpy("M8[D]"), tuple(prices), prices.to_numpy())
        assert describe_splits(panel) == ""
