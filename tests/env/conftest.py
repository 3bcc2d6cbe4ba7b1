"""Markets small enough to follow by hand, as decision processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from finflow.arrays import FloatArray
from finflow.config import CostsConfig, EnvConfig, ObjectivesConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.env.objective import Moments
from finflow.env.portfolio_state import PortfolioState
from finflow.market.features.feature_set import Features, compute_features
from finflow.market.panel import MarketPanel

MOMENTS = Moments(4e-4, 1e-4)
EVERYTHING = CostsConfig(minimum=3.0, slippage_linear_bps=20.0, slippage_sqrt_bps=10.0, impact=0.5)
LAGS = pytest.mark.parametrize("lag", [0, 1, 2])


def random_prices(bars: int = 60, assets: int = 4, seed: int = 0, deviation: float = 0.02) -> FloatArray:
    rng = np.random.default_rng(seed)
    return 50.0 * np.exp(np.cumsum(rng.normal(4e-4, deviation, size=(bars, assets)), axis=0))


def panel_of(close: FloatArray, cash_rate: float = 0.0, **fields: Any) -> MarketPanel:
    """Prices as a panel; ``cash_rate`` a bar."""
    cash = np.full(len(close), cash_rate)
    cash[0] = 0.0
    dates = np.busday_offset("2000-01-03", np.arange(len(close)), roll="forward")
    names = tuple(f"A{column}" for column in range(close.shape[1]))
    return MarketPanel(dates=dates, assets=names, close=close, cash_returns=cash, **fields)


def numbered_features(panel: MarketPanel) -> Features:
    """Features that only say which bar they are of, so that a process starts at once."""
    bars = np.arange(panel.n_bars, dtype=np.float32)
    return Features(
        assets=np.repeat(bars[:, None, None], panel.n_assets, axis=1).repeat(2, axis=2),
        market=bars[:, None],
        asset_names=("bar", "again"),
        market_names=("bar",),
        lenses={"volatility": (0,)},
        first_bar=0,
    )


def build_process(
    close: FloatArray,
    cash_rate: float = 0.0,
    objectives: dict[str, float] | None = None,
    fields: dict[str, FloatArray] | None = None,
    **env: Any,
) -> DecisionProcess:
    """A process over prices, with numbered features; ``env`` are keys of the environment's section."""
    panel = panel_of(close, cash_rate, **(fields or {}))
    return DecisionProcess(
        panel, numbered_features(panel), EnvConfig(**env), ObjectivesConfig(**(objectives or {})), MOMENTS
    )


def build_featured_process(close: FloatArray, train_end: int, **env: Any) -> DecisionProcess:
    """A process over prices with the features that an agent sees, all that is fitted fitted before ``train_end``."""
    panel = panel_of(close)
    features = compute_features(panel, train_end)
    moments = equal_weight_moments(panel, "close", range(features.first_bar, train_end))
    return DecisionProcess(panel, features, EnvConfig(**env), ObjectivesConfig(), moments)


def in_torch(state: PortfolioState) -> PortfolioState:
    """The same state as tensors."""
    return PortfolioState(**{name: torch.from_numpy(np.array(value)) for name, value in vars(state).items()})
