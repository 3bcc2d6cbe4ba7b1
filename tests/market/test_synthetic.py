"""Synthetic markets follow the process of their parameters; the monthly portfolios of K. French are those shipped."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

from finflow.config import MarketConfig, load_config
from finflow.errors import ConfigError, MarketError
from finflow.evaluation.backtest import run_backtests
from finflow.market.panel import split_panel
from finflow.market.sources import shipped_prices as french
from finflow.market.sources.panel_loader import load_panel
from finflow.market.sources.synthetic_market import MEMORY, Regimes, process_of
from finflow.strategies.classical import named_strategy
from finflow.training.data.training_data import prepare_from
from tests.market.conftest import assert_refused

KINDS = ("lognormal", "constant-drift", "mean-reverting", "regime", "exchangeable")


def market(kind: str, **changes: object) -> MarketConfig:
    keys = {f"market.synthetic.{name}": value for name, value in changes.items()}
    return load_config(None, {"market.source": "synthetic", "market.synthetic.kind": kind, **keys}, {}).market


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_a_panel_that_the_default_windows_fit(kind: str) -> None:
    config = market(kind, assets=4)
    panel = load_panel(config)
    split = split_panel(panel, config)
    assert (panel.n_bars, panel.n_assets) == (20_000, 4)
    assert (len(split.train), len(split.validation), len(split.test)) == (17_130, 1_044, 1_826)
    assert panel.provenance["parameters"]["volatility"] > 0.0  # what a report prints of the process
    assert load_panel(config).sha256 == panel.sha256
    assert load_panel(market(kind, assets=4, seed=1)).sha256 != panel.sha256


def test_a_parameter_that_the_kind_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"market\.synthetic\.persistence = 0\.5 means nothing where .* lognormal"):
        market("lognormal", persistence=0.5)
    with pytest.raises(ConfigError, match=r"market\.tickers is set"):
        load_config(None, {"market.source": "synthetic", "market.tickers": ["A", "B"]}, {})


@pytest.mark.parametrize("kind", KINDS)
def test_prices_follow_the_scenarios_of_their_process(kind: str) -> None:
    """Mean and covariance of the next return, given the belief, are those that the optimum is computed from."""
    process = process_of(market(kind, assets=3).synthetic)
    log_prices = process.draw(np.random.default_rng(0), 40_000)
    beliefs, returns = process.filtered(log_prices)[:-1], np.diff(log_prices, axis=0)
    nodes = process.beliefs
    nearest = np.abs(beliefs[:, None] - nodes).argmin(axis=1)
    expected, spread = np.empty_like(returns), np.empty_like(returns)
    for node in np.unique(nearest):
        probability, moves, _ = process.scenarios(float(nodes[node]))
        mean = probability @ moves
        expected[nearest == node] = mean
        spread[nearest == node] = np.sqrt(probability @ (moves - mean) ** 2)
    standard = (returns - expected) / spread
    error = 1.0 / np.sqrt(len(standard))
    assert np.abs(standard.mean(axis=0)).max() < 4.0 * error
    assert np.abs((standard**2).mean(axis=0) - 1.0).max() < 0.05
    if len(nodes) > 1:  # the belief foretells what it says it does, no more and no less
        foretold = (expected - expected.mean(axis=0))[:, 0]
        slope = foretold @ returns[:, 0] / (foretold @ foretold)
        assert slope == pytest.approx(1.0, abs=0.1)


def test_the_filter_is_bayes_rule() -> None:
    process = process_of(market("regime", persistence=0.8).synthetic)
    assert isinstance(process, Regimes)
    log_prices = process.draw(np.random.default_rng(5), 7)
    returns = np.diff(log_prices, axis=0)
    weights = np.zeros(2)
    for path in itertools.product((0, 1), repeat=7):  # the regime of every bar, summed over all of them
        chance = 0.5
        for before, after, value in zip(path, path[1:], returns, strict=False):
            stays = float(process.stay[before])
            density = multivariate_normal(process.means[after], process.covariances[after]).pdf(value)
            chance *= (stays if before == after else 1.0 - stays) * density
        weights[path[-1]] += chance
    assert process.filtered(log_prices)[-1] == pytest.approx(weights[1] / weights.sum(), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_belief_needs_no_more_than_recent_prices(kind: str) -> None:
    process = process_of(market(kind).synthetic)
    log_prices = process.draw(np.random.default_rng(1), 2_000)
    beliefs = process.filtered(log_prices)
    found = [process.filtered(log_prices[: bar + 1][-MEMORY - 1 :])[-1] for bar in (50, 700, 1_999)]
    np.testing.assert_allclose(found, beliefs[[50, 700, 1_999]], atol=1e-6)


ROOT = Path(__file__).resolve().parents[2]
SHIPPED = importlib.util.find_spec("linearmodels") is not None


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
    monkeypatch.setattr(french, "package_file", lambda *_: path)
    return path


@pytest.fixture(autouse=True)
def _fresh() -> None:
    french.french_portfolios.cache_clear()


CONFIG = MarketConfig(source="french")


def test_returns_become_prices_at_the_ends_of_months(shipped: Path) -> None:
    table().to_csv(shipped, index=False)
    panel = load_panel(CONFIG)
    assert [str(day) for day in panel.dates[[0, 1, -1]]] == ["1948-12-31", "1949-01-31", "2017-03-31"]
    assert (panel.n_bars, panel.n_assets, panel.bars_per_year, panel.benchmark_name) == (820, 30, 12, "Market")
    growth = panel.close[1:] / panel.close[:-1] - 1.0
    np.testing.assert_allclose(growth[:, 0], table()["NoDur"], atol=1e-12)
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
        (None, "cannot be read"),
    ],
)
def test_another_file_of_the_package_or_none_is_one_line(shipped: Path, change: Any, words: str) -> None:
    if change is not None:
        change(table()).to_csv(shipped, index=False)
    assert_refused([words], lambda: load_panel(CONFIG))


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.market.sources.shipped_prices.find_spec", lambda name: None)
    with pytest.raises(MarketError, match=r"pip install 'finflow\[markets\]'"):
        load_panel(CONFIG)


@pytest.mark.skipif(not SHIPPED, reason="linearmodels is not installed")
def test_twelve_less_one_momentum_beats_equal_weight_on_the_portfolios() -> None:
    """The positive control: a published edge, at 15 basis points of what is traded."""
    config = load_config(ROOT / "configs" / "monthly.yaml", {}, {})
    panel = load_panel(config.market)
    process = prepare_from(panel, config).held_out_process()
    names = ("momentum", "equal-weight")
    runs = run_backtests(process, range(36, panel.n_bars), [named_strategy(name, config.evaluation) for name in names])
    active = np.log1p(runs[0].returns) - np.log1p(runs[1].returns)
    t = active.mean() / active.std(ddof=1) * len(active) ** 0.5
    assert t == pytest.approx(3.6, abs=0.3)
