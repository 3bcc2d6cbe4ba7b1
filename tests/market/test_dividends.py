"""Dividends of files: in every layout the same market, that no later dividend changes; passed over unless asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.config import Config, EnvConfig, MarketConfig
from finflow.config.loading import load_config
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments, share_prices
from finflow.errors import ConfigError, MarketError
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.market.dividends import as_traded
from finflow.market.features.feature_set import compute_features
from finflow.market.liquidity import liquidity_of
from finflow.market.panel import MarketPanel
from finflow.market.price_notes import price_notes
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.classical import EqualWeight
from tests.market.test_layouts import long, of, save

FloatArray = NDArray[np.float64]

DAYS = pd.DatetimeIndex(pd.bdate_range("2020-01-01", periods=420), name="Date")
NAMES = ("AAA", "BBB", "IDX")
FREE = {"commission_bps": 0.0, "slippage_bps": 0.0}


def bars(count: int = len(DAYS)) -> pd.DataFrame:
    """Unadjusted fields by assets as yfinance gives them, with actions; BBB lists late, the index pays nothing."""
    rng = np.random.default_rng(5)
    close = 50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.01, (len(DAYS), 3)), axis=0))
    paid = np.zeros(close.shape)
    paid[20::63, 0], paid[300, 1] = 0.4, 9.0
    tables = {
        "Open": close * np.exp(rng.normal(0.0, 0.002, close.shape)),
        "High": close * 1.02,
        "Low": close * 0.97,
        "Close": close,
        "Volume": rng.integers(1, 9, close.shape).astype(float),
        "Dividends": paid,
        "Stock Splits": np.zeros(close.shape),
    }
    frame = pd.concat({name: pd.DataFrame(table, DAYS, list(NAMES)) for name, table in tables.items()}, axis=1)
    frame.columns.names = ["Price", "Ticker"]
    frame.loc[DAYS[:40], (slice(None), "BBB")] = np.nan
    return frame.iloc[:count]


def load(path: Path, **settings: Any) -> MarketPanel:
    values = {"source": "csv", "path": path, "benchmark": "IDX", "dividends": "cash", **settings}
    return load_panel(MarketConfig.model_validate(values))


def two_levels(frame: pd.DataFrame, folder: Path) -> Path:
    return save(frame, folder / "prices.csv")


def rows(frame: pd.DataFrame, folder: Path) -> Path:
    return save(long(frame), folder / "rows.csv", index=False)


def file_an_asset(frame: pd.DataFrame, folder: Path) -> Path:
    for name in NAMES:
        save(of(frame, name), folder / "assets" / f"{name}.csv")
    return folder / "assets"


def file_a_field(frame: pd.DataFrame, folder: Path) -> Path:
    """With a file of the ex-dates alone, of the assets that pay."""
    for field in ("Open", "High", "Low", "Close", "Volume"):
        save(frame[field], folder / "fields" / f"{field.lower()}.csv")
    paid = frame["Dividends"][["AAA", "BBB"]]
    save(paid[(paid > 0.0).any(axis=1)], folder / "fields" / "dividends.csv")
    return folder / "fields"


LAYOUTS = (two_levels, rows, file_an_asset, file_a_field)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_market(tmp_path: Path, layout: Callable[[pd.DataFrame, Path], Path]) -> None:
    frame = bars()
    panel = load(layout(frame, tmp_path))
    assert panel.sha256 == load(two_levels(frame, tmp_path / "again")).sha256
    assert panel.assets == ("AAA", "BBB")
    assert panel.quoted is not None
    assert panel.dividends is not None
    pd.testing.assert_frame_equal(
        pd.DataFrame(panel.quoted, DAYS, list(panel.assets)), frame["Close"][["AAA", "BBB"]], check_names=False
    )
    assert np.flatnonzero(panel.dividends[:, 0]).tolist() == list(range(20, len(DAYS), 63))
    assert panel.dividends[300, 1] == pytest.approx(9.0 / frame["Close"]["BBB"].iloc[300], rel=1e-15)
    assert "paid in cash" in panel.provenance["adjusted"]


def test_prices_are_total_returns_and_as_traded_gives_the_file_back(tmp_path: Path) -> None:
    frame = bars()
    panel = load(two_levels(frame, tmp_path))
    close, paid = (frame[name][["AAA", "BBB"]].to_numpy() for name in ("Close", "Dividends"))
    np.testing.assert_allclose(panel.close[1:] / panel.close[:-1], (close + paid)[1:] / close[:-1], rtol=1e-13)
    for name, table in as_traded(panel).items():
        expected = frame[name.capitalize()][["AAA", "BBB"]].to_numpy()
        np.testing.assert_allclose(table, expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(share_prices(panel, "open"), frame["Open"][["AAA", "BBB"]], rtol=1e-13)


def test_no_later_dividend_changes_what_was(tmp_path: Path) -> None:
    """Nor its hash, so that a decision finds the prices of the run; and a cut panel knows what a share cost."""
    whole = load(two_levels(bars(), tmp_path))
    before = load(two_levels(bars(290), tmp_path / "before"))
    assert whole.until(290).sha256 == before.sha256
    assert whole.until(310).sha256 != before.sha256
    np.testing.assert_array_equal(whole.until(290).share_closes[-1], bars()["Close"][["AAA", "BBB"]].iloc[289])


def test_the_remarks_say_that_dividends_are_held_as_cash(tmp_path: Path) -> None:
    path = two_levels(bars(), tmp_path)
    assert any("dividends are held as cash" in note for note in price_notes(load(path)))
    assert not any("dividends" in note for note in price_notes(load(path, dividends="reinvested")))


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


def test_an_adjusted_close_is_not_used(tmp_path: Path) -> None:
    frame = bars()
    adjusted = pd.concat({"Adj Close": frame["Close"] * 0.5}, axis=1, names=["Price", "Ticker"])
    found = load(two_levels(pd.concat([frame, adjusted], axis=1), tmp_path))
    assert found.sha256 == load(two_levels(frame, tmp_path / "plain")).sha256


def adjusted(frame: pd.DataFrame) -> pd.DataFrame:
    """Closes as a vendor adjusts them, back from the last one: before an ex-date times ``p / (p + d)``."""
    close, paid = frame["Close"], frame["Dividends"].fillna(0.0)
    factor = (close / (close + paid)).fillna(1.0).shift(-1, fill_value=1.0)[::-1].cumprod()[::-1]
    return close * factor


def backtest(panel: MarketPanel, **env: Any) -> tuple[DecisionProcess, Backtest]:
    features = compute_features(panel, 380)
    config = Config(env=EnvConfig(execution_lag=0, **env))
    moments = equal_weight_moments(panel, "close", range(features.first_bar, 380))
    process = DecisionProcess(panel, features, config.env, config.objectives, moments)
    return process, run_backtests(process, range(0, panel.n_bars), [EqualWeight()])[0]


def test_reinvested_at_the_close_they_agree_with_adjusted_prices(tmp_path: Path) -> None:
    """Equal weight at no cost, from a file of prices and dividends and from one of adjusted closes alone."""
    frame = bars()
    paid = load(two_levels(frame, tmp_path))
    usual = load(save(adjusted(frame), tmp_path / "adjusted.csv"), dividends="reinvested")
    mine, theirs = backtest(paid, **FREE), backtest(usual, **FREE)
    np.testing.assert_allclose(mine[1].returns, theirs[1].returns, atol=1e-13)
    assert np.prod(1.0 + mine[1].returns) == pytest.approx(np.prod(1.0 + theirs[1].returns), rel=1e-12)
    unadjusted = load(save(frame["Close"], tmp_path / "close.csv"), dividends="reinvested")
    fell = backtest(unadjusted, **FREE)[1]
    assert np.prod(1.0 + fell.returns) < 0.93 * np.prod(1.0 + mine[1].returns)


def test_money_traded_is_counted_at_the_prices_of_the_time(tmp_path: Path) -> None:
    panel = load(two_levels(bars(), tmp_path))
    money = bars()["Close"]["AAA"] * bars()["Volume"]["AAA"]
    expected = money.rolling(21).mean().iloc[-1]
    assert liquidity_of(panel, 21).volume[-1, 0] == pytest.approx(expected, rel=1e-12)


def test_a_join_pays_nothing(tmp_path: Path) -> None:
    panel = load(two_levels(bars(), tmp_path))
    assert panel.dividends is not None
    joined = panel.spliced([range(0, 100), range(300, 400)])
    assert joined.dividends is not None
    assert panel.dividends[300, 1] > 0.0
    assert joined.dividends[100, 1] == 0.0
    assert joined.dividends[120:, 0].sum() > 0.0


def refused(path: Path, **settings: Any) -> str:
    with pytest.raises(MarketError) as found:
        load(path, **settings)
    assert "\n" not in str(found.value)
    return str(found.value)


def test_mistakes_are_named_in_one_line(tmp_path: Path) -> None:
    frame = bars()
    assert "add a column Dividends" in refused(save(frame["Close"], tmp_path / "wide.csv"))
    wrong = frame.copy()
    wrong.loc[DAYS[33], ("Dividends", "AAA")] = -0.1
    assert f"'AAA' has a dividend of -0.1 on {DAYS[33].date()}" in refused(two_levels(wrong, tmp_path / "negative"))
    late = frame.copy()
    late.loc[DAYS[200] :, (["Open", "High", "Low", "Close", "Volume"], "BBB")] = np.nan
    assert f"'BBB' has a dividend of 9 on {DAYS[300].date()} and no price" in refused(
        two_levels(late, tmp_path / "late")
    )
    folder = file_a_field(frame, tmp_path)
    save(pd.DataFrame({"AAA": [0.3]}, pd.DatetimeIndex(["2020-01-04"], name="Date")), folder / "dividends.csv")
    assert "close.csv has no row of 2020-01-04" in refused(folder)
    twice = pd.DatetimeIndex([DAYS[3], DAYS[3]], name="Date")
    save(pd.DataFrame({"AAA": [0.3, 0.3]}, twice), folder / "dividends.csv")
    assert "repeats one" in refused(folder)


def test_a_dividend_before_the_first_price_is_nobodys(tmp_path: Path) -> None:
    frame = bars()
    frame.loc[DAYS[10], ("Dividends", "BBB")] = 1.0
    assert load(two_levels(frame, tmp_path)).sha256 == load(two_levels(bars(), tmp_path / "plain")).sha256


def test_while_an_asset_is_halted_its_dividend_is_paid(tmp_path: Path) -> None:
    frame = bars()
    frame.loc[DAYS[300], (["Open", "High", "Low", "Close", "Volume"], "BBB")] = np.nan
    panel = load(two_levels(frame, tmp_path), max_gap=3)
    assert panel.halted is not None
    assert panel.dividends is not None
    assert panel.halted[300, 1]
    assert panel.dividends[300, 1] == pytest.approx(9.0 / frame["Close"]["BBB"].iloc[299])


def test_a_source_without_dividends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"market\.dividends = cash needs dividends beside prices"):
        load_config(None, {"market.dividends": "cash"}, environ={})
