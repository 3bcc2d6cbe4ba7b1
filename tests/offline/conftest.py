"""Behaviour data of a short piece of the embedded prices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from finflow.config import Config, load_config
from finflow.env import decision_process
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


def make_small(panel: MarketPanel | None = None, **changes: object) -> Small:
    """A small collection; keys in keyword form, ``env__execution_lag=2``, and other prices if given."""
    given = {**SMALL, **{name.replace("__", "."): value for name, value in changes.items()}}
    config = load_config(overrides=given, environ={})
    prices = panel or load_panel(config.market)
    prices, train_end = prices.until(config.market.validation_end), prices.bars_until(config.market.train_end)
    features = compute_features(prices, train_end)
    moments = equal_weight_moments(prices, config.env.fill, range(features.first_bar, train_end))
    process = DecisionProcess(prices, features, config.env, config.objectives, moments)
    return Small(config, process, range(train_end))


def assert_same(left: OfflineDataset, right: OfflineDataset) -> None:
    """Every column has the same bits, type and shape, and the meta is the same."""
    assert left.arrays().keys() == right.arrays().keys()
    for name, column in left.arrays().items():
        other = getattr(right, name)
        assert (other.dtype, other.shape, other.tobytes()) == (column.dtype, column.shape, column.tobytes()), name
    assert left.meta == right.meta


def assert_priced(world: Small, data: OfflineDataset, rows: range) -> None:
    """The rows of one episode are those of the process that the environment uses, decision by decision."""
    process, first = world.process, slice(rows.start, rows.start + 1)
    held = data.portfolio[first, : process.n_weights].astype(np.float64)
    if world.config.env.execution_lag == 0:  # what was observed had drifted to the fill already
        held /= process.growth[data.bar[first]]
    state = process.start(data.bar[first].astype(np.int64), held / held.sum())
    for row in rows:
        # single precision in what is stored: 1e-7 of a weight, a little more in the state of the reward
        np.testing.assert_allclose(process.observed_portfolio(state)[0], data.portfolio[row], rtol=0, atol=1e-5)
        outcome = process.step(state, data.action[row : row + 1].astype(np.float64))
        assert outcome.reward[0] == pytest.approx(data.reward[row], abs=1e-6)
        state = outcome.state


@pytest.fixture(scope="session")
def small() -> Small:
    return make_small()


@pytest.fixture(scope="session")
def dataset(small: Small) -> OfflineDataset:
    return small.collect()


@pytest.fixture
def ruined(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OfflineDataset:
    """What it collects, with decisions of a user's own, where all assets lose everything on one day.

    The smoothed portfolios keep some cash, so an account counts as ruined here from a twentieth of its capital.
    """
    monkeypatch.setattr(decision_process, "RUIN", 0.05)
    (tmp_path / "mine.csv").write_text("date,GE\n2007-08-01,1\n", encoding="utf-8")
    close = small.process.panel.close.copy()
    close[small.window.stop - 60 :] *= 1e-7
    panel = replace(small.process.panel, close=close)
    data = make_small(panel, offline__decisions=[str(tmp_path / "mine.csv")]).collect()
    assert data.terminated.any()
    return data
