"""Decision processes whose features are zero, and strategies whose decisions are planned or random."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import EnvConfig, ObjectivesConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import Moments
from finflow.market.features.feature_set import Features
from finflow.market.panel import MarketPanel
from finflow.strategies.strategy import Information

FloatArray = NDArray[np.float64]


def process_on(panel: MarketPanel, **env: Any) -> DecisionProcess:
    """The process on a panel; ``env`` are keys of the environment's section."""
    features = Features(
        assets=np.zeros((panel.n_bars, panel.n_assets, 1), dtype=np.float32),
        market=np.zeros((panel.n_bars, 1), dtype=np.float32),
        asset_names=("none",),
        market_names=("none",),
        lenses={},
        first_bar=0,
    )
    return DecisionProcess(panel, features, EnvConfig(**env), ObjectivesConfig(), Moments(4e-4, 1e-4))


class Planned:
    """Names these weights, one decision after the other."""

    name = "planned"

    def __init__(self, weights: list[list[float]]) -> None:
        self.weights = np.array(weights)

    def decide(self, information: Information) -> FloatArray:
        return self.weights[information.step]


class Wandering:
    """A new portfolio every day."""

    name = "wandering"

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)

    def decide(self, information: Information) -> FloatArray:
        return self._rng.dirichlet(np.ones(len(information.portfolio)))
