"""Monthly bars: a year has twelve of them in windows, ratios, cash and strategies, and the portfolios of K. French."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.config import MarketConfig, ProtocolConfig, load_config
from finflow.errors import MarketError
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics import metrics
from finflow.experiments.jobs.folds import folds_of, history_of
from finflow.market.bar_frequency import bar_name, bar_rhythm, bars_per_month, bars_per_year
from finflow.market.cash import cash_returns
from finflow.market.features.asset_features import ASSET_FEATURES
from finflow.market.features.feature_set import compute_features
from finflow.market.features.feature_windows import (
    DAILY_WINDOWS,
    MONTHLY_WINDOWS,
    TEMPLATES,
    WEEKLY_WINDOWS,
    FeatureWindows,
)
from finflow.market.features.market_features import MARKET_FEATURES
from finflow.market.features.rolling_windows import PanelView
from finflow.market.features.trading_features import TRADING_FEATURES
from finflow.market.panel import MarketPanel
from finflow.market.sources import french_portfolios as french
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.strategies.classical import PatientEqualWeight, named_strategy
from finflow.strategies.rolling_rules import Momentum
from finflow.strategies.strategy import Information, equal_weights
from finflow.training.data.training_data import prepare_from

ROOT = Path(__file__).resolve().parents[2]
MONTHS = 300
SHIPPED = importlib.util.find_spec("linearmodels") is not None


def month_ends(count: int) -> NDArray[np.datetime64]:
    ends = pd.date_range("1970-01-31", periods=count, freq="ME")
    return ends.to_numpy().astype("datetime64[D]")


def monthly(assets: int = 5, months: int = MONTHS) -> MarketPanel:
    rng = np.random.default_rng(0)
    returns = 0.008 + 0.04 * rng.standard_normal((months, 1)) + 0.03 * rng.standard_normal((months, assets))
    names = tuple(f"P{number}" for number in range(assets))
    return MarketPanel(dates=month_ends(months), assets=names, close=np.cumprod(1.0 + returns, axis=0))


@pytest.mark.parametrize(
    ("freq", "year", "month", "name", "rhythm"),
    [
        ("B", 252, 21, "day", "daily"),
        ("D", 252, 21, "day", "daily"),
        ("W-FRI", 52, 4, "week", "weekly"),
        ("ME", 12, 1, "month", "monthly"),
        ("BME", 12, 1, "month", "monthly"),
    ],
)
def test_the_dates_say_how_many_bars_a_year_has(freq: str, year: int, month: int, name: str, rhythm: str) -> None:
    dates = pd.date_range("2000-01-03", periods=40, freq=freq).to_numpy().astype("datetime64[D]")
    assert bars_per_year(dates) == year
    assert (bars_per_month(year), bar_name(year), bar_rhythm(year)) == (month, name, rhythm)
    holidays = np.delete(dates, [5, 6, 20])
    assert bars_per_year(holidays) == year
    assert bars_per_year(dates[:1]) == 252


def test_figures_of_months_are_annualised_by_twelve() -> None:
    panel = monthly()
    config = load_config(ROOT / "configs" / "monthly.yaml", {"market.validation_end": "1990-12-31"}, {})
    data = prepare_from(panel, config)
    (run,) = run_backtests(data.process, data.split.validation, [named_strategy("equal-weight", config.evaluation)])
    assert run.bars_per_year == 12
    found = metrics.summarise(run)
    assert found["sharpe"] == pytest.approx(12**0.5 * run.returns.mean() / run.returns.std(ddof=1))
    assert found["annual_volatility"] == pytest.approx(12**0.5 * run.returns.std(ddof=1))
    assert found["annual_return"] == pytest.approx(np.prod(1.0 + run.returns) ** (12 / len(run.returns)) - 1.0)
    assert found["annual_cost"] == pytest.approx(12 * run.costs.mean())


def test_cash_of_a_month_is_a_twelfth_of_a_year() -> None:
    returns = cash_returns(month_ends(13), 0.05)
    assert returns[0] == 0.0
    assert np.prod(1.0 + returns) == pytest.approx(1.05)


def test_features_of_months_look_back_over_years_and_not_over_decades() -> None:
    panel = monthly()
    features = compute_features(panel, 200)
    assert features.first_bar == 36 == MONTHLY_WINDOWS.longest - 1
    assert np.isfinite(features.assets).all()
    view = PanelView(panel)
    values = {MONTHLY_WINDOWS.named(one.name): one.compute(view) for one in ASSET_FEATURES}
    r = np.diff(np.log(panel.close), axis=0, prepend=np.nan)
    t = 150
    three_years = r[t - 35 : t + 1].std(axis=0, ddof=1)
    np.testing.assert_allclose(
        values["momentum_12_1"][t], r[t - 11 : t].sum(axis=0) / (three_years * 11**0.5), rtol=1e-9
    )
    np.testing.assert_allclose(values["volatility_36"][t], np.log(three_years * 12**0.5), rtol=1e-9)
    short = compute_features(panel.until(250), 200)
    np.testing.assert_array_equal(short.assets, features.assets[:250])


@pytest.mark.parametrize("windows", [WEEKLY_WINDOWS, MONTHLY_WINDOWS], ids=["weeks", "months"])
def test_features_with_other_windows_have_other_names(windows: FeatureWindows) -> None:
    """So that an agent of days is refused on weeks and months; nothing else in a checkpoint would tell them apart."""
    names = [one.name for one in (*ASSET_FEATURES, *TRADING_FEATURES)] + list(MARKET_FEATURES)
    renamed = [windows.named(name) for name in names]
    assert len(set(renamed)) == len(names)
    assert set(TEMPLATES) <= set(names)
    assert [DAILY_WINDOWS.named(name) for name in names] == names
    known = ("momentum_12_1", "return_1", "market_return_1")
    of_days = [name for name in renamed if name.rpartition("_")[2].isdigit() and name not in known]
    assert not {"5", "21", "63", "126", "252", "200"} & {name.rpartition("_")[2] for name in of_days}


def test_twelve_less_one_momentum_holds_the_winners_of_eleven_months() -> None:
    close = monthly(assets=6).close[:60]
    information = Information(0, close, np.ones(6, bool), np.eye(7)[-1], None, bars_per_year=12)
    weights = Momentum(1).decide(information)
    winners = np.argsort(close[-2] / close[-13])[-2:]
    assert set(np.flatnonzero(weights)) == set(winners)


def test_patient_equal_weight_is_restored_once_a_month() -> None:
    held = np.array([0.3, 0.7, 0.0])
    for year, step, restored in ((252, 1, False), (252, 21, True), (52, 4, True), (52, 5, False), (12, 1, True)):
        told = Information(step, np.ones((3, 2)), np.ones(2, bool), held, None, year)
        expected = equal_weights(told.listed) if restored else held
        np.testing.assert_array_equal(PatientEqualWeight().decide(told), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_decide_on_three_years_of_months(family: str) -> None:
    tables = family_tables(monthly(), family)
    assert tables.shape[1:] == (MONTHS, 6)
    np.testing.assert_allclose(tables.sum(axis=2), 1.0)
    assert (np.abs(tables[:, 80:, :-1] - 0.2).max(axis=(1, 2)) > 1e-3).all()


def test_folds_of_months_purge_three_years() -> None:
    panel = monthly(months=600)
    assert history_of(panel) == 36
    fold = folds_of("walk-forward", panel.n_bars, ProtocolConfig(folds=2), history_of(panel))[0]
    assert fold.tests[0].start - fold.pieces[0].stop == 36


# --- the portfolios


def table(months: int = 819) -> pd.DataFrame:
    """A file like that of linearmodels, with made-up returns."""
    rng = np.random.default_rng(0)
    dates = pd.date_range("1949-01-01", periods=months, freq="MS").strftime("%Y-%m-%d")
    names = (*french.INDUSTRIES, *french.SIZE_AND_VALUE, *french.SIZE_AND_MOMENTUM)
    returns = pd.DataFrame(0.01 + 0.04 * rng.standard_normal((months, 30)).round(4), columns=list(names))
    returns.insert(0, "RF", 0.003)
    returns.insert(0, "MktRF", returns[list(names)].mean(axis=1) - 0.003)
    returns.insert(0, "dates", dates)
    return returns


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for the package's file; the caller writes it."""
    path = tmp_path / "french.csv.bz2"
    monkeypatch.setattr(french, "_file", lambda: path)
    french.french_portfolios.cache_clear()
    return path


@pytest.fixture(autouse=True)
def _fresh() -> None:
    french.french_portfolios.cache_clear()


CONFIG = MarketConfig(source="french")


def test_returns_become_prices_at_the_ends_of_months(shipped: Path) -> None:
    table().to_csv(shipped, index=False)
    panel = load_panel(CONFIG)
    assert (str(panel.dates[0]), str(panel.dates[1]), str(panel.dates[-1])) == (
        "1948-12-31",
        "1949-01-31",
        "2017-03-31",
    )
    assert (panel.n_bars, panel.n_assets, panel.bars_per_year, panel.benchmark_name) == (820, 30, 12, "Market")
    growth = panel.close[1:] / panel.close[:-1] - 1.0
    np.testing.assert_allclose(growth[:, 0], table()["NoDur"], atol=1e-12)
    assert panel.benchmark is not None
    np.testing.assert_allclose(panel.benchmark[1] - 1.0, table()["MktRF"][0] + 0.003)
    np.testing.assert_allclose(panel.cash_returns[1:], 0.003)
    assert panel.cash_returns[0] == 0.0
    told = panel.describe()
    assert "Treasury bills" in str(told["cash_rate"])
    assert "NCSA" in str(told["licence"])
    assert "once paid" in str(told["survivorship"])


def test_a_configured_rate_and_names_take_the_place_of_the_sources_own(shipped: Path) -> None:
    table().to_csv(shipped, index=False)
    chosen = MarketConfig(source="french", cash_rate=0.06, tickers=("S1M5", "NoDur"), start="1960-02-01")  # type: ignore[arg-type]
    panel = load_panel(chosen)
    assert panel.assets == ("S1M5", "NoDur")
    assert str(panel.dates[0]) == "1960-02-29"
    np.testing.assert_allclose((1.0 + panel.cash_returns[1:]) ** 12, 1.06)
    own = load_panel(chosen.model_copy(update={"cash_rate": 0.0}))
    np.testing.assert_allclose(own.cash_returns, np.append(0.0, np.full(own.n_bars - 1, 0.003)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.drop(columns="S3V3"), "has no column 'S3V3'"),
        (lambda frame: frame.drop(index=7), "lacks a month"),
        (lambda frame: frame.assign(Hlth=np.nan), "lacks a month or a return"),
    ],
)
def test_another_file_of_the_package_is_one_line(shipped: Path, change: object, words: str) -> None:
    assert callable(change)
    change(table()).to_csv(shipped, index=False)
    with pytest.raises(MarketError, match=words) as caught:
        load_panel(CONFIG)
    assert "\n" not in str(caught.value)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.market.sources.shipped_tables.find_spec", lambda name: None)
    with pytest.raises(MarketError, match=r"pip install 'finflow\[markets\]'"):
        load_panel(CONFIG)


def test_a_file_that_is_not_there_is_one_line(shipped: Path) -> None:
    assert not shipped.exists()
    with pytest.raises(MarketError, match="cannot be read"):
        load_panel(CONFIG)


@pytest.mark.skipif(not SHIPPED, reason="linearmodels is not installed")
def test_twelve_less_one_momentum_beats_equal_weight_on_the_portfolios() -> None:
    """The positive control: a published edge, at 15 basis points of what is traded."""
    config = load_config(ROOT / "configs" / "monthly.yaml", {}, {})
    panel = load_panel(config.market)
    data = prepare_from(panel, config)
    process = data.held_out_process()
    names = ("momentum", "equal-weight")
    runs = run_backtests(process, range(36, panel.n_bars), [named_strategy(name, config.evaluation) for name in names])
    active = np.log1p(runs[0].returns) - np.log1p(runs[1].returns)
    t = active.mean() / active.std(ddof=1) * len(active) ** 0.5
    assert t == pytest.approx(3.6, abs=0.3)
