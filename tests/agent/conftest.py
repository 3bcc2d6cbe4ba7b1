"""Small networks and agents, random batches, proposals and generators that the tests of this folder share."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from finflow.agent.batch import Batch, Choices, States
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import IQL, portfolio_networks
from finflow.agent.losses.off_policy_losses import CoverageProposals
from finflow.agent.networks.critic import NetworkShape
from finflow.config import BCellConfig

FEATURES, MARKET = 7, 4
MakeBatch = Callable[..., Batch]
MakeStates = Callable[[int, int, int], States]


@pytest.fixture
def shape() -> NetworkShape:
    """Networks for six features and the listing flag."""
    return NetworkShape(FEATURES, MARKET, 32, ((0,), (1, 2), (3,), (4,), (5, 0)))


#: Networks whose experts all see the first feature, which says what an asset pays where something is to be learned.
TO_LEARN = NetworkShape(FEATURES, MARKET, 32, ((0,), (0, 2), (0, 3), (0, 4), (0, 5)))


def draw_states(size: int, n_assets: int, seed: int) -> States:
    """Random states whose portfolios lie on the simplex."""
    generator = torch.Generator().manual_seed(seed)
    assets = torch.randn(size, n_assets, FEATURES, generator=generator)
    assets[..., -1] = 1.0
    weights = torch.softmax(torch.randn(size, n_assets + 1, generator=generator), dim=-1)
    reward_state = 0.1 * torch.randn(size, 3, generator=generator)
    return States(assets, torch.randn(size, MARKET, generator=generator), torch.cat([weights, reward_state], dim=-1))


@pytest.fixture
def make_states() -> MakeStates:
    """``draw_states``."""
    return draw_states


@pytest.fixture
def make_batch() -> MakeBatch:
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


CPU = torch.device("cpu")
SMALL: dict[str, object] = {"hidden_dim": 32, "n_quantiles": 8, "cql_samples": 3}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_agent(shape: NetworkShape, **changes: object) -> BCell:
    """An agent of the same weights whatever the options."""
    return BCell(shape, BCellConfig.model_validate({**SMALL, **changes}), generator(), CPU)


def make_iql(shape: NetworkShape, config: BCellConfig) -> IQL:
    return IQL(portfolio_networks(shape, config, generator()), config, CPU)


def coverage(size: int = 16, n_weights: int = 5, proposals: int = 3, seed: int = 5) -> CoverageProposals:
    """Uniform portfolios: their density is Gamma(K)."""
    drawn = -torch.rand(size, proposals, n_weights, generator=generator(seed)).log()
    return CoverageProposals(drawn / drawn.sum(-1, keepdim=True), torch.full((size, proposals), math.lgamma(n_weights)))


def parameters(*modules: torch.nn.Module) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([parameter.detach().flatten() for module in modules for parameter in module.parameters()])


def held_of_the_best(batch: Batch, portfolios: torch.Tensor) -> torch.Tensor:
    """What portfolios (batch, ..., K) hold of the asset with the highest first feature, which pays one."""
    best = batch.states.assets[..., 0].argmax(dim=1)
    return portfolios[torch.arange(len(best)), ..., best]


def with_choices(batch: Batch, count: int = 4, seed: int = 7) -> Batch:
    """The batch with ``count`` actions a state, the stored one first, the others random, and random outcomes."""
    noise, following = generator(seed), batch.next_states
    size, n_weights = batch.actions.shape
    others = torch.softmax(torch.randn(size, count - 1, n_weights, generator=noise), dim=-1)
    rewards = torch.cat([batch.rewards.unsqueeze(1), torch.randn(size, count - 1, generator=noise)], dim=1)
    ended = torch.cat([batch.terminated.unsqueeze(1), torch.zeros(size, count - 1)], dim=1)
    actions = torch.cat([batch.actions.unsqueeze(1), others], dim=1)
    reward_state = following.reward_state.unsqueeze(1).expand(-1, count, -1)
    held = torch.cat([following.weights.unsqueeze(1), others], dim=1)  # a move is what is held then
    portfolio = torch.cat([held, reward_state], dim=-1).flatten(0, 1)
    after = States(following.assets, following.market, portfolio, following.complete)
    return batch._replace(choices=Choices(actions, rewards, ended, after))
