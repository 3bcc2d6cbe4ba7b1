"""The offline learners on any gymnasium task with a Box of observations and a Box of actions.

Networks of plain layers with the interface of the portfolio's, so that IQL, TD3+BC and cloning run unchanged on the
tasks that their papers used. Actions are in -1..1; a caller whose Box is another rescales.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from finflow.agent.batch import Batch, States
from finflow.agent.gradient_steps import at_least_single
from finflow.agent.networks.critic import CRITICS, Valuation
from finflow.agent.networks.layers import Encoding, EnsembleLinear, normalised
from finflow.agent.networks.logistic_normal import weighted_likelihood_loss

LOG_SCALE_RANGE = (-5.0, 2.0)  # as in the code of Kostrikov et al.


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
        log_scale = self.log_scale.clamp(*LOG_SCALE_RANGE)
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
