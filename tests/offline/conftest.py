"""Behaviour data of a short piece of the embedded prices."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest

from finflow.config import Config, load_config
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.offline.collection import collect
from finflow.offline.dataset import OfflineDataset

SMALL: dict[str, object] = {
    "market.start": "2006-01-01",
    "market.train_end": "2008-06-30",
    "market.validation_end": "2008-09-30",
    "market.tickers": "AAPL,AMD,GE,JNJ,WMT",
    "env.episode_length": 25,
    "train.offline_episodes": 40,
}


class Small(NamedTuple):
    """What a collection is made from."""

    config: Config
    process: DecisionProcess
    window: range

    def collect(self) -> OfflineDataset:
        return collect(self.config, self.process, self.window)


@cache
def _panel(start: str, tickers: str) -> MarketPanel:
    return load_panel(load_config(overrides={"market.start": start, "market.tickers": tickers}, environ={}).market)


def make_small(panel: MarketPanel | None = None, **changes: object) -> Small:
    """A small collection; keys in keyword form, ``env__execution_lag=2``, and other prices if given."""
    given = {**SMALL, **{name.replace("__", "."): value for name, value in changes.items()}}
    config = load_config(overrides=given, environ={})
    prices = panel or _panel(str(given["market.start"]), str(given["market.tickers"]))
    prices, train_end = prices.until(config.market.validation_end), prices.bars_until(config.market.train_end)
    features = compute_features(prices, train_end)
    moments = equal_weight_moments(prices, config.env.fill, range(features.first_bar, train_end))
    process = DecisionProcess(prices, features, config.env, config.objectives, moments)
    return Small(config, process, range(train_end))


@pytest.fixture(scope="session")
def small_of() -> Callable[..., Small]:
    """``make_small``."""
    return make_small


@pytest.fixture(scope="session")
def small() -> Small:
    """The small collection as it is."""
    return make_small()


@pytest.fixture(scope="session")
def dataset(small: Small) -> OfflineDataset:
    """What it collects."""
    return small.collect()
