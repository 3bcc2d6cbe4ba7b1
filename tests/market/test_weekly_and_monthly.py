"""Weekly and monthly bars: how many a year has in windows, ratios, cash, strategies and checks of the newest prices."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
from quantstats import stats

from finflow.config import Config, ProtocolConfig, load_config
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics import metrics
from finflow.experiments.jobs.walk_forward import folds_of, history_of
from finflow.market.bar_frequency import bar_name, bar_rhythm, bars_per_month, bars_per_year
from finflow.market.features.asset_features import ASSET_FEATURES, features_of
from finflow.market.features.feature_set import compute_features
from finflow.market.features.market_features import MARKET_FEATURES
from finflow.market.features.rolling_windows import (
    MONTHLY_WINDOWS,
    WEEKLY_WINDOWS,
    FeatureWindows,
    PanelView,
    windows_of,
)
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.strategies.classical import Momentum, PatientEqualWeight, named_strategy
from finflow.strategies.strategy import Information, equal_weights
from finflow.trading.price_checks import calendar_of, check_gaps
from finflow.training.data.training_data import prepare_from
from tests.evaluation.made_up import process_on

ROOT = Path(__file__).resolve().parents[2]


class Bars(NamedTuple):
    """Bars of a frequency: their preset, how many a year and a month have, and how many the prices have."""

    preset: str
    first: str
    freq: str
    year: int
    month: int
    bars: int
    validation_end: str
    windows: FeatureWindows
    longest: int
    volatility: str
    train_end: str


WEEKLY = Bars(
    "weekly.yaml", "2000-01-07", "W-FRI", 52, 4, 600, "2008-12-31", WEEKLY_WINDOWS, 104, "volatility_104", "2006-12-31"
)
MONTHLY = Bars(
    "monthly.yaml", "1970-01-31", "ME", 12, 1, 300, "1990-12-31", MONTHLY_WINDOWS, 36, "volatility_36", "1985-12-31"
)
both = pytest.mark.parametrize("of", [WEEKLY, MONTHLY], ids=["weeks", "months"])


def panel_of(of: Bars, assets: int = 5, bars: int | None = None, left_out: tuple[int, ...] = ()) -> MarketPanel:
    count, deviation = bars or of.bars, 0.14 / of.year**0.5
    rng = np.random.default_rng(0)
    common, own = rng.standard_normal((count, 1)), rng.standard_normal((count, assets))
    returns = 0.1 / of.year + deviation * common + 0.75 * deviation * own
    dates = pd.date_range(of.first, periods=count, freq=of.freq).to_numpy(dtype="datetime64[D]")
    kept = np.delete(np.arange(count), left_out)
    names = tuple(f"A{number}" for number in range(assets))
    return MarketPanel(dates=dates[kept], assets=names, close=np.cumprod(1.0 + returns, axis=0)[kept])


@pytest.mark.parametrize(
    ("freq", "year", "month", "name", "rhythm"),
    [
        ("B", 252, 21, "day", "daily"),
        ("D", 365, 30, "day", "daily, seven days a week"),
        ("W-FRI", 52, 4, "week", "weekly"),
        ("2W-FRI", 26, 2, "fortnight", "fortnightly"),
        ("ME", 12, 1, "month", "monthly"),
        ("BME", 12, 1, "month", "monthly"),
        ("2ME", 6, 1, "two months", "two-monthly"),
        ("QE", 4, 1, "quarter", "quarterly"),
        ("2QE", 2, 1, "half-year", "half-yearly"),
        ("YE", 1, 1, "year", "yearly"),
    ],
)
def test_the_dates_say_how_many_bars_a_year_has(freq: str, year: int, month: int, name: str, rhythm: str) -> None:
    dates = pd.date_range("2000-01-03", periods=40, freq=freq).to_numpy().astype("datetime64[D]")
    assert bars_per_year(dates) == year
    assert (bars_per_month(year), bar_name(year), bar_rhythm(year)) == (month, name, rhythm)
    holidays = np.delete(dates, [5, 6, 20])
    assert bars_per_year(holidays) == year
    assert bars_per_year(dates[:1]) == 252


@both
def test_figures_are_annualised_by_the_bars_of_a_year(of: Bars) -> None:
    windows = {"market.train_end": of.train_end, "market.validation_end": of.validation_end}
    config = load_config(ROOT / "configs" / of.preset, windows, {})
    data = prepare_from(panel_of(of), config)
    (run,) = run_backtests(data.process, data.split.validation, [named_strategy("equal-weight", config.evaluation)])
    assert run.bars_per_year == of.year
    found = metrics.summarise(run)
    deviation = run.returns.std(ddof=1)
    assert found["sharpe"] == pytest.approx(of.year**0.5 * run.returns.mean() / deviation)
    assert found["annual_volatility"] == pytest.approx(of.year**0.5 * deviation)
    assert found["annual_return"] == pytest.approx(np.prod(1.0 + run.returns) ** (of.year / len(run.returns)) - 1.0)
    assert found["annual_turnover"] == pytest.approx(of.year * run.turnover.mean())
    assert found["annual_cost"] == pytest.approx(of.year * run.costs.mean())


EMPYRICAL = {
    365: (-0.055363463519407685, 0.2627838574056686, -0.08519635762426045, -0.11569417241306026, -0.16917151121487542),
    252: (-0.03855929567134142, 0.21834966076291173, -0.07079048145935198, -0.09613141213480257, -0.11782381204917472),
    52: (-0.008081312304488053, 0.0991868100084919, -0.0321570549291692, -0.04366834405855089, -0.024693682949773622),
    12: (
        -0.0018707425386341736,
        0.04764780230542724,
        -0.015447749512849922,
        -0.0209775939414633,
        -0.005716339300986014,
    ),
    4: (
        -0.0006239701039234546,
        0.02750947148733249,
        -0.008918762339617813,
        -0.012111419509054498,
        -0.0019066358700017079,
    ),
    1: (
        -0.00015602903977429694,
        0.013754735743666245,
        -0.004459381169808907,
        -0.006055709754527249,
        -0.00047677054096824536,
    ),
}
"""Of empyrical-reloaded 0.7.1: return, volatility, Sharpe, Sortino and Calmar ratio of the returns below, by year."""


@pytest.mark.parametrize("year", [365, 252, 52, 26, 12, 6, 4, 2, 1])
def test_quantstats_and_empyrical_annualise_alike(year: int) -> None:
    """Both divide by the deviation with n - 1; quantstats' yearly growth counts n / year years, and so does ours."""
    returns = np.random.default_rng(3).standard_t(4, 400) * 0.01 + 4e-4
    series, close = pd.Series(returns, index=pd.bdate_range("2016-01-04", periods=400)), {"rel": 1e-10, "abs": 1e-12}
    assert metrics.annual_return(returns, year) == pytest.approx(stats.cagr(series, periods=year), **close)
    assert metrics.annual_volatility(returns, year) == pytest.approx(stats.volatility(series, year), **close)
    assert metrics.sharpe(returns, 0.0, year) == pytest.approx(stats.sharpe(series, periods=year), **close)
    assert metrics.sortino(returns, 0.0, year) == pytest.approx(stats.sortino(series, periods=year), **close)
    if year in EMPYRICAL:
        names = (metrics.annual_return, metrics.annual_volatility, metrics.sharpe, metrics.sortino, metrics.calmar)
        growth, spread, sharpe, sortino, calmar = (float(one(returns, bars_per_year=year)) for one in names)
        assert (growth, spread, sharpe, sortino, calmar) == pytest.approx(EMPYRICAL[year], rel=1e-10)


@pytest.mark.parametrize(("freq", "year", "called"), [("D", 365, 252), ("QE", 4, 12)])
def test_a_file_of_every_day_or_quarter_is_annualised_by_its_calendar(freq: str, year: int, called: int) -> None:
    """By what these were called before, returns and ratios were others by the powers and roots of year / called."""
    returns = np.random.default_rng(1).normal(0.002, 0.02, (400, 3))
    dates = pd.date_range("1910-01-01", periods=401, freq=freq).to_numpy(dtype="datetime64[D]")
    panel = MarketPanel(dates, ("A", "B", "C"), np.cumprod(np.vstack([np.ones((1, 3)), 1.0 + returns]), axis=0))
    assert panel.bars_per_year == year
    (run,) = run_backtests(process_on(panel), range(1, 400), [named_strategy("buy-and-hold", Config().evaluation)])
    found, growth = metrics.summarise(run), 1.0 + run.returns
    wrong = float(metrics.sharpe(run.returns, run.cash_returns, called))
    assert found["sharpe"] == pytest.approx(wrong * (year / called) ** 0.5)
    assert found["annual_return"] == pytest.approx(np.prod(growth) ** (year / len(growth)) - 1.0)


def test_a_year_that_the_configuration_sets_counts_in_every_part_of_the_market() -> None:
    """Cash, annual figures, cuts and the hash; the manifest says where the number comes from."""
    market = load_config(overrides={"market.bars_per_year": 365, "market.cash_rate": 0.05}).market
    panel, usual = load_panel(market), load_panel(market.model_copy(update={"bars_per_year": None}))
    assert (panel.bars_per_year, panel.until(300).bars_per_year, usual.bars_per_year) == (365, 365, 252)
    assert panel.cash_returns[5] == pytest.approx(1.05 ** (1 / 365) - 1.0)
    assert panel.sha256 != usual.sha256
    assert str(panel.describe()["bars_per_year"]).startswith("365: set by market.bars_per_year; the median step")
    assert str(usual.describe()["bars_per_year"]).startswith(
        "252: the median step between dates, in days, is 1, and 78%"
    )
    (run,) = run_backtests(process_on(panel), range(400, 700), [named_strategy("buy-and-hold", Config().evaluation)])
    assert run.bars_per_year == 365


@both
def test_features_look_back_over_years_and_not_over_decades(of: Bars) -> None:
    panel, t = panel_of(of), of.bars // 2
    features = compute_features(panel, 2 * of.bars // 3)
    assert features.first_bar == of.longest == of.windows.longest - 1
    assert np.isfinite(features.assets).all()
    view = PanelView(panel)
    values = {of.windows.named(one.name): one.compute(view) for one in features_of(panel, "none")}
    r = np.diff(np.log(panel.close), axis=0, prepend=np.nan)
    deviation, counted = r[t - of.longest + 1 : t + 1].std(axis=0, ddof=1), of.year - of.month
    year_less_month = r[t - of.year + 1 : t - of.month + 1].sum(axis=0)
    np.testing.assert_allclose(values["momentum_12_1"][t], year_less_month / (deviation * counted**0.5), rtol=1e-9)
    np.testing.assert_allclose(values[of.volatility][t], np.log(deviation * of.year**0.5), rtol=1e-9)
    cut = 5 * of.bars // 6
    short = compute_features(panel.until(cut), 2 * of.bars // 3)
    np.testing.assert_array_equal(short.assets, features.assets[:cut])


@pytest.mark.parametrize("windows", [windows_of(year) for year in (365, 52, 26, 12, 6, 4, 2, 1)], ids=str)
def test_features_with_other_windows_have_other_names(windows: FeatureWindows) -> None:
    """So that an agent of days is refused on weeks and months; nothing else in a checkpoint would tell them apart."""
    names = [*(one.name for one in ASSET_FEATURES), *MARKET_FEATURES]
    renamed = [windows.named(name) for name in names]
    assert len(set(renamed)) == len(names)
    known = ("momentum_12_1", "return_1", "market_return_1")
    of_days = [name for name in renamed if name.rpartition("_")[2].isdigit() and name not in known]
    assert not {"5", "21", "63", "126", "252", "200"} & {name.rpartition("_")[2] for name in of_days}


@both
def test_momentum_holds_the_winners_of_a_year_less_its_last_month(of: Bars) -> None:
    close = panel_of(of, assets=6).close[: 5 * of.year]
    information = Information(0, close, np.ones(6, bool), np.eye(7)[-1], None, bars_per_year=of.year)
    winners = np.argsort(close[-1 - of.month] / close[-1 - of.year])[-2:]
    assert set(np.flatnonzero(Momentum(1).decide(information))) == set(winners)


def test_patient_equal_weight_is_restored_once_a_month() -> None:
    held = np.array([0.3, 0.7, 0.0])
    for year, step, restored in ((252, 1, False), (252, 21, True), (52, 4, True), (52, 5, False), (12, 1, True)):
        told = Information(step, np.ones((3, 2)), np.ones(2, bool), held, None, year)
        expected = equal_weights(told.listed) if restored else held
        np.testing.assert_array_equal(PatientEqualWeight().decide(told), expected)


@both
@pytest.mark.parametrize("family", FAMILIES)
def test_families_decide_on_all_bars_after_their_longest_window(family: str, of: Bars) -> None:
    tables = family_tables(panel_of(of), family)
    assert tables.shape[1:] == (of.bars, 6)
    np.testing.assert_allclose(tables.sum(axis=2), 1.0)
    assert (np.abs(tables[:, 2 * of.longest + 12 :, :-1] - 0.2).max(axis=(1, 2)) > 1e-3).all()


@both
def test_folds_purge_the_longest_window(of: Bars) -> None:
    panel = panel_of(of, bars=1500 if of is WEEKLY else 600)
    assert history_of(panel) == of.longest
    fold = folds_of("walk-forward", panel.n_bars, ProtocolConfig(folds=2), history_of(panel))[0]
    assert fold.tests[0].start - fold.pieces[0].stop == of.longest


def test_a_week_without_a_bar_is_named_and_a_holiday_that_moves_one_is_not() -> None:
    whole = panel_of(WEEKLY)
    dates = whole.dates.copy()
    dates[-3] -= np.timedelta64(1, "D")  # the Thursday before a holiday
    moved = MarketPanel(dates=dates, assets=whole.assets, close=whole.close)
    assert check_gaps(moved, moved.n_bars - 1, calendar_of(None, moved.dates)).passed
    holed = panel_of(WEEKLY, left_out=(WEEKLY.bars - 5,))
    found = check_gaps(holed, holed.n_bars - 1, calendar_of(None, holed.dates))
    sunday = whole.dates[WEEKLY.bars - 5] + np.timedelta64(2, "D")
    assert not found.passed
    assert f"no bar on {sunday}," in found.said
