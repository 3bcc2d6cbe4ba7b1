"""Interfaces between the on-policy update and the policies that it improves.

The update knows neither the task nor the networks: it asks an actor-critic for a distribution over actions and for
values, and the distribution for densities, entropies and divergences. The B-Cell's policy on the market and the small
policies of `task_policies` answer alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol, Self

from torch import Generator, Tensor, nn

Observations = tuple[Tensor, ...]  # the parts of a batch of observations, each (batch, ...)


class ActionDistribution(Protocol):
    """A batch of distributions over actions, one for each observation, that does not change as the policy learns.

    Densities are joint: one number for a whole action, however many dimensions it has.
    """

    def sample(self, generator: Generator) -> Tensor:
        """Draw one action for each observation, (batch, ...), without gradients."""
        ...

    def mode(self) -> Tensor:
        """The deterministic actions, (batch, ...)."""
        ...

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log of the joint density, or probability, of given actions, (batch,)."""
        ...

    def entropy(self) -> Tensor:
        """Entropy in nats, (batch,), exact or an estimate with gradients where there is no closed form."""
        ...

    def kl(self, other: Self) -> Tensor:
        """``KL(self || other)`` in nats, (batch,), exact."""
        ...

    def rows(self, index: Tensor) -> Self:
        """The distributions of some observations, by their numbers (n,)."""
        ...


class ActorCritic(Protocol):
    """A policy and a value function over the same observations."""

    def distribution(self, observations: Observations) -> ActionDistribution:
        """The policy's distributions over actions."""
        ...

    def value(self, observations: Observations) -> Tensor:
        """Estimated discounted return from each observation, (batch,)."""
        ...

    def actor_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters of the policy."""
        ...

    def critic_parameters(self) -> Iterable[nn.Parameter]:
        """Parameters of the value function; none of them is one of the policy's."""
        ...


class Rollout(NamedTuple):
    """Decisions of one policy, of all environments and steps one below the other, ready to learn from."""

    observations: Observations  # (n, ...)
    actions: Tensor  # (n, ...)
    log_prob: Tensor  # (n,): of the actions under the policy that took them
    values: Tensor  # (n,): of the value function at that time
    advantages: Tensor  # (n,): as estimated, not normalised
    returns: Tensor  # (n,): targets of the value function

    def rows(self, index: Tensor) -> Rollout:
        observations, *rest = self
        return Rollout(tuple(part[index] for part in observations), *(part[index] for part in rest))

    def between(self, start: int, stop: int) -> Rollout:
        observations, *rest = self
        return Rollout(tuple(part[start:stop] for part in observations), *(part[start:stop] for part in rest))
