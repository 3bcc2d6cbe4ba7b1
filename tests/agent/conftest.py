"""Small networks and random batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from finflow.agent.batch import Batch, States
from finflow.agent.networks.critic import NetworkShape

FEATURES, MARKET = 7, 4


@pytest.fixture
def shape() -> NetworkShape:
    """Networks for six features and the listing flag."""
    return NetworkShape(FEATURES, MARKET, 32, ((0,), (1, 2), (3,), (4,), (5, 0)))


def draw_states(size: int, n_assets: int, seed: int) -> States:
    """Random states whose portfolios lie on the simplex."""
    generator = torch.Generator().manual_seed(seed)
    assets = torch.randn(size, n_assets, FEATURES, generator=generator)
    assets[..., -1] = 1.0
    weights = torch.softmax(torch.randn(size, n_assets + 1, generator=generator), dim=-1)
    reward_state = 0.1 * torch.randn(size, 3, generator=generator)
    return States(assets, torch.randn(size, MARKET, generator=generator), torch.cat([weights, reward_state], dim=-1))


@pytest.fixture
def make_states() -> Callable[[int, int, int], States]:
    """``draw_states``."""
    return draw_states


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """Random transitions: ``make_batch(size, n_assets, seed)``."""

    def make(size: int = 16, n_assets: int = 4, seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed + 1)
        both = draw_states(2 * size, n_assets, seed)
        actions, next_actions = torch.softmax(torch.randn(2, size, n_assets + 1, generator=generator), dim=-1)
        return Batch(
            both=both,
            actions=actions,
            rewards=torch.randn(size, generator=generator),
            terminated=(torch.rand(size, generator=generator) < 0.2).float(),
            next_actions=next_actions,
            families=torch.randint(0, 7, (size,), generator=generator),
            calibrations=torch.randn(size, generator=generator),
            behaviour_returns=torch.randn(size, generator=generator),
        )

    return make
