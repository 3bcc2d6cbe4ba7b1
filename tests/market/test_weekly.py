"""Weekly bars: a year has 52 of them in windows, ratios, cash, strategies and checks of the newest prices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finflow.config import ProtocolConfig, load_config
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics import metrics
from finflow.experiments.jobs.folds import folds_of, history_of
from finflow.market.cash import cash_returns
from finflow.market.features.asset_features import ASSET_FEATURES
from finflow.market.features.feature_set import compute_features
from finflow.market.features.feature_windows import WEEKLY_WINDOWS
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel
from finflow.strategies.behaviour import FAMILIES, family_tables
from finflow.strategies.classical import named_strategy
from finflow.strategies.rolling_rules import Momentum
from finflow.strategies.strategy import Information
from finflow.trading.price_checks import check_gaps
from finflow.trading.trading_calendar import calendar_of
from finflow.training.data.training_data import prepare_from

ROOT = Path(__file__).resolve().parents[2]
WEEKS = 600


def weekly(assets: int = 5, weeks: int = WEEKS, left_out: tuple[int, ...] = ()) -> MarketPanel:
    rng = np.random.default_rng(0)
    returns = 0.002 + 0.02 * rng.standard_normal((weeks, 1)) + 0.015 * rng.standard_normal((weeks, assets))
    dates = pd.date_range("2000-01-07", periods=weeks, freq="W-FRI").to_numpy(dtype="datetime64[D]")
    kept = np.delete(np.arange(weeks), left_out)
    names = tuple(f"W{number}" for number in range(assets))
    return MarketPanel(dates=dates[kept], assets=names, close=np.cumprod(1.0 + returns, axis=0)[kept])


def test_figures_of_weeks_are_annualised_by_fifty_two() -> None:
    windows = {"market.train_end": "2006-12-31", "market.validation_end": "2008-12-31"}
    config = load_config(ROOT / "configs" / "weekly.yaml", windows, {})
    data = prepare_from(weekly(), config)
    (run,) = run_backtests(data.process, data.split.validation, [named_strategy("equal-weight", config.evaluation)])
    assert run.bars_per_year == 52
    found = metrics.summarise(run)
    assert found["sharpe"] == pytest.approx(52**0.5 * run.returns.mean() / run.returns.std(ddof=1))
    assert found["annual_return"] == pytest.approx(np.prod(1.0 + run.returns) ** (52 / len(run.returns)) - 1.0)
    assert found["annual_turnover"] == pytest.approx(52 * run.turnover.mean())


def test_cash_of_a_week_is_a_fifty_second_of_a_year() -> None:
    assert np.prod(1.0 + cash_returns(weekly().dates[:53], 0.05)) == pytest.approx(1.05)


def test_features_of_weeks_look_back_over_two_years_and_not_over_five() -> None:
    panel = weekly()
    features = compute_features(panel, 400)
    assert features.first_bar == 104 == WEEKLY_WINDOWS.longest - 1
    view = PanelView(panel)
    values = {WEEKLY_WINDOWS.named(one.name): one.compute(view) for one in ASSET_FEATURES}
    r = np.diff(np.log(panel.close), axis=0, prepend=np.nan)
    t = 300
    two_years = r[t - 103 : t + 1].std(axis=0, ddof=1)
    year_less_month = r[t - 51 : t - 3].sum(axis=0)
    np.testing.assert_allclose(values["momentum_12_1"][t], year_less_month / (two_years * 48**0.5), rtol=1e-9)
    np.testing.assert_allclose(values["volatility_104"][t], np.log(two_years * 52**0.5), rtol=1e-9)
    short = compute_features(panel.until(450), 400)
    np.testing.assert_array_equal(short.assets, features.assets[:450])


def test_momentum_holds_the_winners_of_a_year_less_its_last_month() -> None:
    close = weekly(assets=6).close[:120]
    information = Information(0, close, np.ones(6, bool), np.eye(7)[-1], None, bars_per_year=52)
    winners = np.argsort(close[-5] / close[-53])[-2:]
    assert set(np.flatnonzero(Momentum(1).decide(information))) == set(winners)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_decide_on_weeks(family: str) -> None:
    tables = family_tables(weekly(), family)
    np.testing.assert_allclose(tables.sum(axis=2), 1.0)
    assert (np.abs(tables[:, 220:, :-1] - 0.2).max(axis=(1, 2)) > 1e-3).all()


def test_folds_of_weeks_purge_two_years() -> None:
    panel = weekly(weeks=1500)
    assert history_of(panel) == 104
    fold = folds_of("walk-forward", panel.n_bars, ProtocolConfig(folds=2), history_of(panel))[0]
    assert fold.tests[0].start - fold.pieces[0].stop == 104


def test_a_week_without_a_bar_is_named_and_a_holiday_that_moves_one_is_not() -> None:
    whole = weekly()
    dates = whole.dates.copy()
    dates[-3] -= np.timedelta64(1, "D")  # the Thursday before a holiday
    moved = MarketPanel(dates=dates, assets=whole.assets, close=whole.close)
    assert check_gaps(moved, moved.n_bars - 1, calendar_of(None, moved.dates)).passed
    holed = weekly(left_out=(WEEKS - 5,))
    found = check_gaps(holed, holed.n_bars - 1, calendar_of(None, holed.dates))
    sunday = whole.dates[WEEKS - 5] + np.timedelta64(2, "D")
    assert not found.passed
    assert f"no bar on {sunday}," in found.said
