"""Dividends of files: in every layout the same market, that no later dividend changes; passed over unless asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finflow.config.loading import load_config
from finflow.env.market_growth import liquidity_of, share_prices
from finflow.errors import ConfigError
from finflow.market.price_adjustments import as_traded
from tests.market.conftest import assert_refused
from tests.market.test_layouts import (
    as_files_of_assets,
    as_files_of_fields,
    as_rows,
    as_yfinance_frame as two_levels,
    bars as plain_bars,
    days,
    load as load_prices,
    save,
)

DAYS = days(420)
load = partial(load_prices, dividends="cash")


def bars(count: int = len(DAYS)) -> pd.DataFrame:
    """Unadjusted fields by assets as yfinance gives them, with actions; NA lists late, the index pays nothing."""
    paid = np.zeros((len(DAYS), 3))
    paid[20::63, 0], paid[300, 1] = 0.4, 9.0
    return plain_bars(len(DAYS), 40, **{"Dividends": paid, "Stock Splits": 0.0 * paid}).iloc[:count]


def file_a_field(frame: pd.DataFrame, folder: Path) -> Path:
    """With a file of the ex-dates alone, of the assets that pay."""
    path, paid = as_files_of_fields(frame, folder), frame["Dividends"][["AAA", "NA"]]
    save(paid[(paid > 0.0).any(axis=1)], path / "dividends.csv")
    return path


LAYOUTS = (two_levels, as_rows, as_files_of_assets, file_a_field)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_market(tmp_path: Path, layout: Callable[[pd.DataFrame, Path], Path]) -> None:
    frame = bars()
    panel = load(layout(frame, tmp_path))
    assert panel.sha256 == load(two_levels(frame, tmp_path / "again")).sha256
    assert panel.assets == ("AAA", "NA")
    np.testing.assert_allclose(panel.quoted, frame["Close"][["AAA", "NA"]], rtol=1e-15)
    assert np.flatnonzero(panel.dividends[:, 0]).tolist() == list(range(20, len(DAYS), 63))
    assert panel.dividends[300, 1] == pytest.approx(9.0 / frame["Close"]["NA"].iloc[300], rel=1e-15)
    assert "paid in cash" in panel.provenance["adjusted"]


def test_prices_are_total_returns_and_as_traded_gives_the_file_back(tmp_path: Path) -> None:
    frame = bars()
    panel = load(two_levels(frame, tmp_path))
    close, paid = (frame[name][["AAA", "NA"]].to_numpy() for name in ("Close", "Dividends"))
    np.testing.assert_allclose(panel.close[1:] / panel.close[:-1], (close + paid)[1:] / close[:-1], rtol=1e-13)
    for name, table in as_traded(panel).items():
        expected = frame[name.capitalize()][["AAA", "NA"]].to_numpy()
        np.testing.assert_allclose(table, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(share_prices(panel, "open"), frame["Open"][["AAA", "NA"]], rtol=1e-13)


def test_no_later_dividend_changes_what_was(tmp_path: Path) -> None:
    """Nor its hash, so that a decision finds the prices of the run; and a cut panel knows what a share cost."""
    whole = load(two_levels(bars(), tmp_path))
    before = load(two_levels(bars(290), tmp_path / "before"))
    assert whole.until(290).sha256 == before.sha256
    assert whole.until(310).sha256 != before.sha256
    np.testing.assert_array_equal(whole.until(290).share_closes[-1], bars()["Close"][["AAA", "NA"]].iloc[289])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_they_are_passed_over_unless_asked_for(tmp_path: Path, layout: Callable[[pd.DataFrame, Path], Path]) -> None:
    """Even where no number could be made of them."""
    frame = bars()
    plain = load(two_levels(frame.drop(columns="Dividends", level="Price"), tmp_path / "plain"), dividends="reinvested")
    if layout is not file_a_field:
        kept = frame.drop(columns="Dividends", level="Price")
        words = pd.concat({"Dividends": frame["Dividends"].map("{} USD".format)}, axis=1, names=["Price", "Ticker"])
        frame = pd.concat([kept, words.where(frame["Close"].notna())], axis=1)
    panel = load(layout(frame, tmp_path), dividends="reinvested")
    assert panel.sha256 == plain.sha256
    assert panel.dividends is None
    assert panel.share_closes is panel.close


def test_money_traded_is_counted_at_the_prices_of_the_time(tmp_path: Path) -> None:
    panel = load(two_levels(bars(), tmp_path))
    money = bars()["Close"]["AAA"] * bars()["Volume"]["AAA"]
    expected = money.rolling(21).mean().iloc[-1]
    assert liquidity_of(panel).volume[-1, 0] == pytest.approx(expected, rel=1e-12)


def test_a_join_pays_nothing(tmp_path: Path) -> None:
    panel = load(two_levels(bars(), tmp_path))
    joined = panel.spliced([range(0, 100), range(300, 400)])
    assert panel.dividends[300, 1] > 0.0
    assert joined.dividends[100, 1] == 0.0
    assert joined.dividends[120:, 0].sum() > 0.0


def test_mistakes_are_named_in_one_line(tmp_path: Path) -> None:
    frame = bars()
    assert_refused(["add a column Dividends"], lambda: load(save(frame["Close"], tmp_path / "wide.csv")))
    wrong = frame.copy()
    wrong.loc[DAYS[33], ("Dividends", "AAA")] = -0.1
    said = f"'AAA' has a dividend of -0.1 on {DAYS[33].date()}"
    assert_refused([said], lambda: load(two_levels(wrong, tmp_path / "negative")))
    late = frame.copy()
    late.loc[DAYS[200] :, (["Open", "High", "Low", "Close", "Volume"], "NA")] = np.nan
    said = f"'NA' has a dividend of 9 on {DAYS[300].date()} and no price"
    assert_refused([said], lambda: load(two_levels(late, tmp_path / "late")))
    folder = file_a_field(frame, tmp_path)
    save(pd.DataFrame({"AAA": [0.3]}, pd.DatetimeIndex(["2020-01-04"], name="Date")), folder / "dividends.csv")
    assert_refused(["close.csv has no row of 2020-01-04"], lambda: load(folder))
    twice = pd.DatetimeIndex([DAYS[3], DAYS[3]], name="Date")
    save(pd.DataFrame({"AAA": [0.3, 0.3]}, twice), folder / "dividends.csv")
    assert_refused(["repeats one"], lambda: load(folder))


def test_neither_a_dividend_before_the_first_price_nor_an_adjusted_close_counts(tmp_path: Path) -> None:
    frame = bars()
    frame.loc[DAYS[10], ("Dividends", "NA")] = 1.0
    frame[[("Adj Close", name) for name in ("AAA", "NA", "IDX")]] = 0.5 * frame["Close"]
    assert load(two_levels(frame, tmp_path)).sha256 == load(two_levels(bars(), tmp_path / "plain")).sha256


def test_while_an_asset_is_halted_its_dividend_is_paid(tmp_path: Path) -> None:
    frame = bars()
    frame.loc[DAYS[300], (["Open", "High", "Low", "Close", "Volume"], "NA")] = np.nan
    panel = load(two_levels(frame, tmp_path), max_gap=3)
    assert panel.halted[300, 1]
    assert panel.dividends[300, 1] == pytest.approx(9.0 / frame["Close"]["NA"].iloc[299])


def test_a_source_without_dividends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"market\.dividends = cash needs dividends beside prices"):
        load_config(None, {"market.dividends": "cash"}, environ={})
