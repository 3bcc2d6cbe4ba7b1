"""The B-Cell's policy and value function on the market, as the on-policy update asks for them.

An observation is a bar and a portfolio; the features are looked up by bar. An action is the vector of a portfolio's log
ratios, which the policy is normal in: densities there and those of weights differ by a Jacobian that is the same for
every policy, and drops out of every ratio and KL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn

from finflow.agent.batch import States
from finflow.agent.networks.critic import ValueNetwork
from finflow.agent.networks.logistic_normal import (
    ENTROPY_OF_NORMAL,
    LOG_DENSITY_AT_CENTRE,
    count_dimensions,
    log_portfolio,
    mean_listed,
    standard_normal,
    sum_listed,
)
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.on_policy.on_policy_settings import Observations
from finflow.training.data.replay import MarketTensors


@dataclass(frozen=True)
class PortfolioDistribution:
    """A batch of logistic-normal distributions, with actions in additive log ratios."""

    location: Tensor  # (batch, K - 1)
    log_scale: Tensor  # (batch, K - 1)
    listed: Tensor | None = None  # (batch, K - 1): assets whose ratios have a density; all of them when left out

    @property
    def dimensions(self) -> int | Tensor:
        """Free dimensions of an action: K - 1, or the number of listed assets, (batch,), at least one."""
        return count_dimensions(self.location, self.listed)

    @torch.no_grad()
    def sample(self, generator: Generator) -> Tensor:
        """Draw log ratios, (batch, K - 1)."""
        noise = standard_normal(tuple(self.location.shape), generator, self.location)
        return torch.addcmul(self.location, noise, self.log_scale.exp())

    def mode(self) -> Tensor:
        return self.location

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log of the joint density of log ratios (batch, K - 1), (batch,)."""
        standard = (actions - self.location) * (-self.log_scale).exp()
        return sum_listed(LOG_DENSITY_AT_CENTRE - 0.5 * standard.square() - self.log_scale, self.listed)

    def entropy(self) -> Tensor:
        """Entropy of the portfolio per free dimension, nats (batch,), with the Jacobian's mean taken at the centre."""
        spread = mean_listed(self.log_scale + ENTROPY_OF_NORMAL, self.listed)
        log_weights = log_portfolio(self.location)
        if self.listed is None:
            return spread + log_weights.sum(dim=-1) / self.dimensions
        return spread + (sum_listed(log_weights[..., :-1], self.listed) + log_weights[..., -1]) / self.dimensions

    def kl(self, other: PortfolioDistribution) -> Tensor:
        """``KL(self || other)``, nats (batch,): `kl_per_dimension` in an order of operations of its own, summed."""
        change = self.log_scale - other.log_scale
        shift = (self.location - other.location) * (-other.log_scale).exp()
        return sum_listed(0.5 * ((2.0 * change).exp() + shift.square() - 1.0) - change, self.listed)

    def rows(self, index: Tensor) -> PortfolioDistribution:
        listed = None if self.listed is None else self.listed[index]
        return PortfolioDistribution(self.location[index], self.log_scale[index], listed)


class MarketActorCritic:
    """A policy of experts and a value function over one market."""

    def __init__(self, policy: ExpertPolicy, value_network: ValueNetwork, market: MarketTensors) -> None:
        self.policy = policy
        self.value_network = value_network
        self.market = market

    def states(self, observations: Observations) -> States:
        """The observations with the market's features, one row of the market for each portfolio."""
        bars, portfolio = observations
        return self.market.states(bars, portfolio)

    def distribution(self, observations: Observations) -> PortfolioDistribution:
        return distribution_of(self.policy, self.states(observations))

    def value(self, observations: Observations) -> Tensor:
        """Discounted scaled rewards expected from each observation, (batch,)."""
        value: Tensor = self.value_network(self.states(observations))
        return value

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        return self.policy.parameters()

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the value function; the behaviour's value does not learn."""
        yield from self.value_network.encoder.parameters()
        yield from self.value_network.own.parameters()


def distribution_of(policy: ExpertPolicy, states: States) -> PortfolioDistribution:
    normal = policy(states).distribution
    return PortfolioDistribution(normal.location, normal.log_scale, normal.listed)
