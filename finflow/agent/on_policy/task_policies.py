"""Small policies and value functions for tasks that are not markets: Discrete and Box actions.

Two networks of two hidden layers, tanh 64 x 64, with orthogonal initial weights: of scale sqrt(2) in hidden layers,
0.01 at the policy's output, 1 at the value's. The logarithm of a Box policy's deviation is a parameter for each
dimension and does not depend on the state.

References
----------
Andrychowicz and others (2021), What Matters for On-Policy Deep Actor-Critic Methods? A Large-Scale Study.
Huang and others (2022), The 37 Implementation Details of Proximal Policy Optimization.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from finflow.agent.networks.layers import empty_linear
from finflow.agent.networks.logistic_normal import ENTROPY_OF_NORMAL, LOG_DENSITY_AT_CENTRE
from finflow.agent.on_policy.on_policy_settings import Observations

HIDDEN = 64


@dataclass(frozen=True)
class Categorical:
    """A batch of distributions over the actions 0 .. n - 1, by their log probabilities (batch, n)."""

    log_probabilities: Tensor

    def sample(self, generator: Generator) -> Tensor:
        """Draw actions, int64 (batch,)."""
        with torch.no_grad():
            return torch.multinomial(self.log_probabilities.exp(), 1, generator=generator).squeeze(1)

    def mode(self) -> Tensor:
        """The most probable actions, int64 (batch,)."""
        return self.log_probabilities.argmax(dim=-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log probabilities of actions (batch,), (batch,)."""
        return self.log_probabilities.gather(1, actions.unsqueeze(1)).squeeze(1)

    def entropy(self) -> Tensor:
        return -(self.log_probabilities.exp() * self.log_probabilities).sum(dim=-1)

    def kl(self, other: Categorical) -> Tensor:
        """``KL(self || other)``, (batch,)."""
        return (self.log_probabilities.exp() * (self.log_probabilities - other.log_probabilities)).sum(dim=-1)

    def rows(self, index: Tensor) -> Categorical:
        return Categorical(self.log_probabilities[index])


@dataclass(frozen=True)
class DiagonalNormal:
    """A batch of normal distributions (batch, d), independent in each dimension.

    Log deviations (d,) are common to all.
    """

    location: Tensor
    log_scale: Tensor

    def sample(self, generator: Generator) -> Tensor:
        """Draw actions, (batch, d); not held to the bounds of the task."""
        with torch.no_grad():
            noise = torch.randn(self.location.shape, generator=generator, dtype=self.location.dtype)
            return torch.addcmul(self.location, noise, self.log_scale.exp())

    def mode(self) -> Tensor:
        return self.location

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log joint densities of actions (batch, d), (batch,)."""
        standard = (actions - self.location) * (-self.log_scale).exp()
        constant = self.log_scale.sum() - LOG_DENSITY_AT_CENTRE * self.location.shape[-1]
        return -0.5 * standard.square().sum(dim=-1) - constant

    def entropy(self) -> Tensor:
        entropy = self.log_scale.sum() + ENTROPY_OF_NORMAL * self.location.shape[-1]
        return entropy.expand(len(self.location))

    def kl(self, other: DiagonalNormal) -> Tensor:
        """``KL(self || other)``, (batch,): `kl_per_dimension` in an order of operations of its own, summed."""
        change = self.log_scale - other.log_scale
        shift = (self.location - other.location) * (-other.log_scale).exp()
        return 0.5 * shift.square().sum(dim=-1) + (0.5 * ((2.0 * change).exp() - 1.0) - change).sum()

    def rows(self, index: Tensor) -> DiagonalNormal:
        return DiagonalNormal(self.location[index], self.log_scale)


TaskDistribution = Categorical | DiagonalNormal


class TaskActorCritic(nn.Module):
    """Policy and value function of a task with vectors as observations.

    ``actions`` are those of a Discrete space, or the dimensions of a Box, by ``kind``; the generator draws the initial
    weights, and ``hidden`` is the width of both hidden layers.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        kind: Literal["discrete", "box"],
        generator: Generator,
        hidden: int = HIDDEN,
    ) -> None:
        super().__init__()
        self.observations, self.actions, self.kind = observations, actions, kind
        self.actor = _network(observations, hidden, actions, 0.01, generator)
        self.critic = _network(observations, hidden, 1, 1.0, generator)
        self.log_scale = nn.Parameter(torch.zeros(actions)) if kind == "box" else None

    def distribution(self, observations: Observations) -> TaskDistribution:
        """Distributions over actions; the one part of the observations is (batch, observations)."""
        output = self.actor(observations[0])
        if self.log_scale is None:
            return Categorical(torch.log_softmax(output, dim=-1))
        return DiagonalNormal(output, self.log_scale.clone())  # a distribution does not change as the policy learns

    def value(self, observations: Observations) -> Tensor:
        values: Tensor = self.critic(observations[0])
        return values.squeeze(-1)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.actor.parameters()
        if self.log_scale is not None:
            yield self.log_scale

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.critic.parameters()


def _network(inputs: int, hidden: int, outputs: int, scale: float, generator: Generator) -> nn.Sequential:
    return nn.Sequential(
        _layer(inputs, hidden, math.sqrt(2.0), generator),
        nn.Tanh(),
        _layer(hidden, hidden, math.sqrt(2.0), generator),
        nn.Tanh(),
        _layer(hidden, outputs, scale, generator),
    )


def _layer(inputs: int, outputs: int, scale: float, generator: Generator) -> nn.Linear:
    layer = empty_linear(inputs, outputs)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight, scale, generator=generator)
        layer.bias.zero_()
    return layer
