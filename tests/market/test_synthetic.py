"""Synthetic markets: prices follow the process that their parameters describe."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from finflow.config import MarketConfig, load_config
from finflow.errors import ConfigError
from finflow.market.features.feature_set import compute_features
from finflow.market.sources.panel_loader import load_panel
from finflow.market.sources.synthetic_market import MEMORY, Regimes, process_of
from finflow.market.splits import split_panel

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


@pytest.mark.parametrize("kind", ["mean-reverting", "regime"])
def test_the_agents_features_show_the_signal(kind: str) -> None:
    """A linear reading of the features explains most of the belief, on bars it was not fitted on."""
    config = market(kind)
    panel = load_panel(config)
    split = split_panel(panel, config)
    features = compute_features(panel, split.train_end)
    belief = process_of(config.synthetic).filtered(np.log(panel.close))
    apart = features.assets[:, 0] - features.assets[:, 1]
    seen = np.column_stack([apart, features.market, np.ones(panel.n_bars)])
    train, test = slice(features.first_bar, split.train_end), slice(split.train_end, None)
    reading, *_ = np.linalg.lstsq(seen[train], belief[train], rcond=None)
    error = belief[test] - seen[test] @ reading
    assert 1.0 - error.var() / belief[test].var() > 0.7
