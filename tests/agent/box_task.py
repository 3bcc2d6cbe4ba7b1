"""The learners on any gymnasium task with a Box of observations and a Box of actions.

Networks of plain layers with the interface of the portfolio's, so that IQL, TD3+BC, cloning and `BCell.update_sac` run
unchanged on the tasks that their papers used. Actions are in -1..1; a caller whose Box is another rescales.

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

from finflow.agent.batch import Batch, States
from finflow.agent.gradient_steps import at_least_single
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import Networks
from finflow.agent.losses.off_policy_losses import CoverageProposals
from finflow.agent.networks.critic import CRITICS, CriticEnsemble, NetworkShape, Valuation, ValueNetwork
from finflow.agent.networks.distributions import normal_log_density, weighted_likelihood_loss
from finflow.agent.networks.layers import Encoding, EnsembleLinear, normalised
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import AnchorConfig, BCellConfig

IQL_LOG_SCALES = (-5.0, 2.0)  # as in the code of Kostrikov et al.
SAC_LOG_SCALES = (-20.0, 2.0)  # as in the code of Haarnoja et al.


def box_states(observations: Tensor) -> States:
    """Observations (batch, D) in the place of the market; there are no assets and no portfolio."""
    batch = len(observations)
    return States(observations.new_zeros(batch, 0, 1), observations, observations.new_zeros(batch, 1), complete=True)


def box_batch(
    observations: Tensor,
    actions: Tensor,
    rewards: Tensor,
    terminated: Tensor,
    next_observations: Tensor,
    next_actions: Tensor | None = None,
) -> Batch:
    """Transitions of a Box task; the behaviour's next actions are read by cloning and by the quantiles only."""
    return Batch(
        both=box_states(torch.cat([observations, next_observations])),
        actions=actions,
        rewards=rewards,
        terminated=terminated,
        next_actions=actions if next_actions is None else next_actions,
        families=torch.zeros(len(rewards), dtype=torch.int64, device=rewards.device),
        calibrations=torch.zeros_like(rewards),
        behaviour_returns=torch.zeros_like(rewards),
    )


class BoxLayers(nn.Module):
    """Two hidden layers for E networks at once, (E, rows, inputs) to (E, rows, outputs)."""

    def __init__(
        self, ensemble: int, inputs: int, hidden: int, outputs: int, generator: Generator, layer_norm: bool = False
    ) -> None:
        super().__init__()
        self.layer_norm = layer_norm
        self.first = EnsembleLinear(ensemble, inputs, hidden, generator)
        self.second = EnsembleLinear(ensemble, hidden, hidden, generator)
        self.last = EnsembleLinear(ensemble, hidden, outputs, generator)

    def forward(self, rows: Tensor) -> Tensor:
        """The outputs."""
        hidden = self.first(rows)
        hidden = self.second(functional.relu(normalised(hidden) if self.layer_norm else hidden))
        outputs: Tensor = self.last(functional.relu(normalised(hidden) if self.layer_norm else hidden))
        return at_least_single(outputs)


class BoxPolicy(nn.Module):
    """A normal policy with mean ``tanh(f(s))`` and one scale an action dimension, as in IQL's code."""

    def __init__(self, observation_size: int, action_size: int, hidden: int, generator: Generator) -> None:
        super().__init__()
        self.mean = BoxLayers(1, observation_size, hidden, action_size, generator)
        self.log_scale = nn.Parameter(torch.zeros(action_size))

    def forward(self, states: States) -> Tensor:
        """The mean action, (batch, K)."""
        mean: Tensor = self.mean(states.market)[0].tanh()
        return mean

    def log_density(self, states: States, actions: Tensor) -> Tensor:
        """Log density of actions, (batch,)."""
        log_scale = self.log_scale.clamp(*IQL_LOG_SCALES)
        standard = (actions - self(states)) * (-log_scale).exp()
        density: Tensor = (-0.5 * standard.square() - log_scale - 0.5 * math.log(2.0 * math.pi)).sum(-1)
        return density

    def imitation_loss(
        self, batch: Batch, weights: Tensor, noise: Generator | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Weighted likelihood of the data's actions, as published: not divided by their dimensions."""
        loss = weighted_likelihood_loss(self.log_density(batch.states, batch.actions), weights[:, 0], 1)
        return loss, {"policy_loss": loss.detach()}

    def deterministic(self, states: States) -> Tensor:
        """The mean action, (batch, K)."""
        mean: Tensor = self(states)
        return mean

    def pathwise_gradient(
        self, batch: Batch, weights: Tensor, noise: Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """The mean action, and the likelihood of the data's; there is nothing else to learn."""
        cloning, metrics = self.imitation_loss(batch, torch.ones_like(weights).unsqueeze(1))
        return self(batch.states), cloning, torch.zeros_like(cloning), metrics

    def coordinates(self, actions: Tensor, states: States) -> Tensor:
        """Actions as they are."""
        return actions

    def squared_distance(self, actions: Tensor, others: Tensor, states: States) -> Tensor:
        """Mean square of the difference of actions in each coordinate, (batch,)."""
        return (actions - others).square().mean(dim=1)

    def perturbed(self, actions: Tensor, change: Tensor, states: States) -> Tensor:
        """Actions moved, within their bounds."""
        return (actions + change).clamp(-1.0, 1.0)


class BoxCritic(nn.Module):
    """Two distributional critics of plain layers."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        hidden: int,
        n_quantiles: int,
        generator: Generator,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        inputs = observation_size + action_size
        self.layers = BoxLayers(CRITICS, inputs, hidden, 1 + n_quantiles, generator, layer_norm)

    def encode(self, states: States) -> Encoding:
        """Nothing is shared between actions here: the observations as they are."""
        return Encoding(states.assets.unsqueeze(0), states.market.unsqueeze(0))

    def value(
        self,
        encoding: Encoding,
        states: States,
        portfolios: Tensor,
        with_quantiles: int = 1,
        noise: Generator | None = None,
    ) -> Valuation:
        """Value actions (batch, P, K); quantiles for the first ``with_quantiles`` of P."""
        batch, count = portfolios.shape[:2]
        observations = encoding.state[0].unsqueeze(1).expand(-1, count, -1)
        outputs = self.layers(torch.cat([observations, portfolios], dim=-1).flatten(0, 1))
        outputs = outputs.view(outputs.shape[0], batch, count, -1)
        return Valuation(outputs[..., 0], outputs[:, :, :with_quantiles, 1:])


class BoxValue(nn.Module):
    """V, and the behaviour's own V_mu, of an observation."""

    def __init__(self, observation_size: int, hidden: int, generator: Generator) -> None:
        super().__init__()
        self.encoder = nn.Identity()
        self.own = BoxLayers(1, observation_size, hidden, 1, generator)
        self.behaviour = BoxLayers(1, observation_size, hidden, 1, generator)

    def forward(self, states: States) -> Tensor:
        """V, (batch,)."""
        value: Tensor = self.own(states.market)[0, :, 0]
        return value

    def of_behaviour(self, states: States) -> Tensor:
        """V_mu, (batch,)."""
        value: Tensor = self.behaviour(states.market)[0, :, 0]
        return value

    def both(self, states: States) -> tuple[Tensor, Tensor]:
        """V and V_mu, each (batch,)."""
        return self(states), self.of_behaviour(states)


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
        return BoxDecision(SquashedNormal(location, log_scale.clamp(*SAC_LOG_SCALES)))

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
