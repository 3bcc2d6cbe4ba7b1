"""The B-Cell's own online update on any gymnasium task with a Box of observations and a Box of actions.

A squashed normal policy with the interface of the portfolio's, for the critics of `box_task`. What is learned, and
how, is `BCell.update_sac` unchanged: so what SAC is known to do on its usual tasks, this code can be held to.

References
----------
Haarnoja et al. (2018), Soft Actor-Critic Algorithms and Applications, appendix C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from finflow.agent.batch import States
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import Networks
from finflow.agent.losses.critic_losses import CoverageProposals
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape, ValueNetwork
from finflow.agent.networks.logistic_normal import normal_log_density
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import AnchorConfig, BCellConfig
from scripts.evidence.box_task import BoxCritic, BoxLayers, BoxValue

LOG_SCALE_RANGE = (-20.0, 2.0)  # as in the code of Haarnoja et al.


@dataclass(frozen=True)
class SquashedNormal:
    """A batch of ``tanh`` of normal distributions, densities with respect to Lebesgue measure on (-1, 1)^K.

    Attributes
    ----------
    location : Tensor, (batch, K)
        Mean before the squashing.
    log_scale : Tensor, (batch, K)
    """

    location: Tensor
    log_scale: Tensor

    def centre(self) -> Tensor:
        """The deterministic action, (batch, K)."""
        return self.location.tanh()

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions and their log densities.

        ``log(1 - tanh(u)^2)`` is taken as ``2 (log 2 - u - softplus(-2 u))``, which is exact where the square is 1.

        Parameters
        ----------
        noise : Tensor, (batch, P, K)
            Standard normal.

        Returns
        -------
        actions : Tensor, (batch, P, K)
        log_density : Tensor, (batch, P)
        """
        raw = self.location.unsqueeze(1) + self.log_scale.exp().unsqueeze(1) * noise
        normal = normal_log_density(noise, self.log_scale.unsqueeze(1))
        squashing = 2.0 * (math.log(2.0) - raw - functional.softplus(-2.0 * raw))
        return raw.tanh(), (normal - squashing).sum(-1)

    def entropy_density(self, noise: Tensor) -> Tensor:
        """The same log densities, (batch,), of one sample each: entropy of actions, as published."""
        _, log_density = self.sample(noise.unsqueeze(1))
        return log_density[:, 0]


class BoxDecision(NamedTuple):
    """A batch of decisions."""

    distribution: SquashedNormal

    def figures(self) -> dict[str, Tensor]:
        """Nothing here explains a decision."""
        return {}


class BoxActor(nn.Module):
    """A squashed normal policy whose mean and scale depend on the observation."""

    entropy_unit = 1.0  # of the entropy coefficient, in sigma_A: as published

    def __init__(self, observation_size: int, action_size: int, hidden: int, generator: Generator) -> None:
        super().__init__()
        self.layers = BoxLayers(1, observation_size, hidden, 2 * action_size, generator)

    def forward(self, states: States, noise: Generator | None = None) -> BoxDecision:
        """Decide for a batch of observations; there is no dropout here."""
        location, log_scale = self.layers(states.market)[0].chunk(2, dim=-1)
        return BoxDecision(SquashedNormal(location, log_scale.clamp(*LOG_SCALE_RANGE)))

    def coordinate_count(self, actions: Tensor) -> int:
        """All of an action's: none follows from the others."""
        return actions.shape[-1]

    def free_dimensions(self, actions: Tensor, states: States) -> int:
        """All of an action's."""
        return actions.shape[-1]

    def target_entropy(self, share: float, dimensions: int) -> float:
        """Entropy H whose ``exp((H - H_max) / K)`` is ``share``; ``H_max`` is ``K log 2``, the uniform law's.

        The usual target of ``-K`` is a share of ``exp(-1) / 2``, 0.184.
        """
        return dimensions * math.log(2.0 * share)


def box_agent(
    observation_size: int, action_size: int, config: BCellConfig, generator: Generator, device: torch.device
) -> BCell:
    """A B-Cell whose networks are plain layers and whose actions lie in -1..1; ``generator`` draws its weights.

    The anchor is left out: a Box has no equal weight.
    """
    hidden = config.hidden_dim
    config = config.model_copy(update={"anchor": AnchorConfig(weight=0.0)})
    actor = BoxActor(observation_size, action_size, hidden, generator)
    critic = BoxCritic(observation_size, action_size, hidden, config.n_quantiles, generator)
    value = BoxValue(observation_size, hidden, generator)
    # they answer the calls that an update makes
    networks = Networks(cast(ExpertPolicy, actor), cast(CriticEnsemble, critic), cast(ValueNetwork, value))
    return BCell(NetworkShape(0, observation_size, hidden, ()), config, generator, device, networks)


def uniform_proposals(batch: int, count: int, dimensions: int, noise: Generator) -> CoverageProposals:
    """Uniform actions for CQL, whose log density is ``-K log 2`` everywhere."""
    drawn = torch.rand(batch, count, dimensions, generator=noise, device=noise.device) * 2.0 - 1.0
    return CoverageProposals(drawn, drawn.new_full((batch, count), -dimensions * math.log(2.0)))
