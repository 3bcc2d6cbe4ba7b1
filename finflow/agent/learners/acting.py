"""What an agent does with what it has learned: it decides, explores and explains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import States
from finflow.agent.networks.logistic_normal import standard_normal
from finflow.agent.networks.policy import Decision, ExpertPolicy
from finflow.agent.observation import states_of
from finflow.agent.optimisation.weight_averaging import PolicyAverage


class Deciding:
    """Decisions of a policy that learns, or of its average.

    Attributes
    ----------
    policy : ExpertPolicy
        The one that learns and explores.
    average : PolicyAverage or None
        What decides in its place, where there is one.
    device : torch.device
    action_noise : Generator
        Of the draws of `act`.
    """

    policy: ExpertPolicy
    average: PolicyAverage | None
    device: torch.device
    action_noise: Generator

    @property
    def deployed(self) -> ExpertPolicy:
        """The policy that decides where it counts: the average, where there is one."""
        return self.policy if self.average is None else self.average.policy

    @torch.no_grad()
    def decide(self, states: States) -> Decision:
        """Decisions and what led to them."""
        decision: Decision = self.deployed(states)
        return decision

    @torch.no_grad()
    def explore(self, states: States, noise: Generator) -> Tensor:
        """Portfolios drawn from the policy, (batch, K)."""
        distribution = self.policy(states).distribution
        batch, dimensions = distribution.location.shape
        drawn, _ = distribution.sample(standard_normal((batch, 1, dimensions), noise, distribution.location))
        portfolios: Tensor = drawn[:, 0]
        return portfolios

    def act(self, observation: Mapping[str, Any], deterministic: bool = True) -> NDArray[np.float32]:
        """Target weights for an observation of the environment, or for a batch of them.

        Parameters
        ----------
        observation : mapping of arrays
            ``assets``, ``market``, ``portfolio``, as the single or the vector environment gives them.
        deterministic : bool
            The centre of the policy; otherwise a draw from it, by the agent's own generator.

        Returns
        -------
        array, (K,) or (batch, K)
            On the simplex, cash last.
        """
        states = states_of(observation, self.device)
        if deterministic:
            weights = self.decide(states).distribution.centre()
        else:
            weights = self.explore(states, self.action_noise)
        chosen: NDArray[np.float32] = weights.cpu().numpy()
        return chosen if np.ndim(observation["market"]) == 2 else chosen[0]

    def explain(self, observation: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
        """Gate, the five portfolios, aim, trade rate and centre behind a decision, each with a batch in front."""
        decision = self.decide(states_of(observation, self.device))
        shown = decision._asdict() | {"centre": decision.distribution.centre()}
        return {name: shown[name].cpu().numpy() for name in ("gate", "experts", "aim", "trade_rate", "centre")}
