"""Small agents, proposals and generators that the tests of this folder share."""

from __future__ import annotations

import math

import torch

from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import portfolio_networks
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.agent.networks.critic import NetworkShape
from finflow.config import BCellConfig

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
