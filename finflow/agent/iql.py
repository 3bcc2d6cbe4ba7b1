"""Implicit Q-learning: the offline phase, in the order of the paper and its code (V, then policy, then Q).

The critic's mean obeys the published rule exactly. Its quantiles learn the spread of the data's own continuation:
their target uses the behaviour's own next decision. Each expert learns to name the portfolios of the family it is
called after, through its own lens; the gate and the trade rate learn how far and whither all of the data moved; both
weighted by advantage.

References
----------
Kostrikov, Nair and Levine (2022), Offline Reinforcement Learning with Implicit Q-Learning, algorithm 1.
"""

from __future__ import annotations

import copy

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.critic import CriticEnsemble, NetworkShape, ValueNetwork
from finflow.agent.losses import (
    advantage_weights,
    bellman_target,
    expectile_loss,
    mean_loss,
    pinball_loss,
    weighted_likelihood_loss,
)
from finflow.agent.optimisation import cosine, descend, follow, freeze, make_optimiser, set_learning_rate
from finflow.agent.policy import EXPERTS, ExpertPolicy
from finflow.config import BCellConfig


class IQL:
    """The offline learner.

    Parameters
    ----------
    shape : NetworkShape
    config : BCellConfig
    generator : Generator
        Draws the initial weights, on the CPU.
    device : torch.device
    total_updates : int
        Length of the actor's cosine schedule.
    """

    def __init__(
        self,
        shape: NetworkShape,
        config: BCellConfig,
        generator: Generator,
        device: torch.device,
        total_updates: int,
    ) -> None:
        self.config = config
        self.total_updates = max(total_updates, 1)
        self.policy = ExpertPolicy(shape, generator, config.dropout).to(device)
        self.critic = CriticEnsemble(shape, config.n_critics, config.n_quantiles, generator, config.dropout).to(device)
        self.value = ValueNetwork(shape, generator).to(device)
        self.target_critic = copy.deepcopy(self.critic)
        freeze([self.target_critic])
        self.value_optimiser = make_optimiser(self.value, config.critic_lr)
        self.policy_optimiser = make_optimiser(self.policy, config.actor_lr)
        self.critic_optimiser = make_optimiser(self.critic, config.critic_lr)

    def update(self, batch: Batch, progress: float, noise: Generator | None = None) -> dict[str, Tensor]:
        """One update of V, the policy, the critics and their targets.

        Parameters
        ----------
        batch : Batch
        progress : float
            Share of the offline updates done, for the actor's learning rate.
        noise : Generator, optional
            For dropout.

        Returns
        -------
        dict of Tensor, ()
            ``v_loss``, ``q_loss``, ``policy_loss`` and others.
        """
        action, next_action = batch.actions.unsqueeze(1), batch.next_actions.unsqueeze(1)
        with torch.no_grad():
            encoding = self.target_critic.encode(batch.both)
            size = len(batch.rewards)
            data = self.target_critic.value(encoding.rows(0, size), batch.states, action, with_quantiles=0)
            ahead = self.target_critic.value(encoding.rows(size, 2 * size), batch.next_states, next_action)
            data_value = data.mean[..., 0].min(dim=0).values
        value_metrics = self._update_value(batch, data_value)
        with torch.no_grad():
            values, _ = self.value(batch.both)
        advantage = data_value - values[:size]
        policy_metrics = self._update_policy(batch, advantage, progress, noise)
        critic_metrics = self._update_critic(batch, values[size:], ahead.spread[:, :, 0], noise)
        follow(self.target_critic, self.critic, self.config.tau)
        return {**value_metrics, **policy_metrics, **critic_metrics, "advantage": advantage.mean()}

    def _update_value(self, batch: Batch, data_value: Tensor) -> dict[str, Tensor]:
        """V by expectile regression; V_mu, the behaviour's own value, by temporal differences."""
        with torch.no_grad():
            _, next_behaviour = self.value(batch.next_states)
        behaviour_target = bellman_target(batch.rewards, batch.terminated, next_behaviour, self.config.gamma)
        value, behaviour = self.value(batch.states)
        v_loss = expectile_loss(data_value, value, self.config.iql_expectile)
        behaviour_loss = (behaviour - behaviour_target).square().mean()
        descend(v_loss + behaviour_loss, self.value_optimiser, self.config.gradient_norm)
        return {"v_loss": v_loss.detach(), "behaviour_value_loss": behaviour_loss.detach(), "v": value.mean().detach()}

    def _update_policy(
        self, batch: Batch, advantage: Tensor, progress: float, noise: Generator | None
    ) -> dict[str, Tensor]:
        """Advantage-weighted likelihood: the mixture on all data, each expert on its own family."""
        weights = advantage_weights(advantage, self.config.iql_temperature)
        states, dimensions = batch.states, batch.actions.shape[1] - 1
        decision = self.policy(states, noise, gate_only=True)
        mixture_loss = weighted_likelihood_loss(decision.distribution.log_density(batch.actions), weights, dimensions)
        own = (batch.families < len(EXPERTS)).to(weights.dtype)
        expert = decision.expert_distribution(batch.families.clamp(max=len(EXPERTS) - 1))
        expert_loss = weighted_likelihood_loss(expert.log_density(batch.actions), weights * own, dimensions)
        set_learning_rate(self.policy_optimiser, cosine(self.config.actor_lr, progress))
        descend(mixture_loss + expert_loss, self.policy_optimiser, self.config.gradient_norm)
        return {
            "policy_loss": mixture_loss.detach(),
            "expert_loss": expert_loss.detach(),
            "trade_rate": decision.trade_rate.mean().detach(),
        }

    def _update_critic(
        self, batch: Batch, next_value: Tensor, next_spread: Tensor, noise: Generator | None
    ) -> dict[str, Tensor]:
        """m toward ``r + gamma V(s')``; q toward the same with the spread of the behaviour's continuation."""
        gamma = self.config.gamma
        target = bellman_target(batch.rewards, batch.terminated, next_value, gamma)
        samples = target.unsqueeze(-1) + gamma * (1.0 - batch.terminated).unsqueeze(-1) * next_spread
        states = batch.states
        valuation = self.critic.value(self.critic.encode(states), states, batch.actions.unsqueeze(1), noise=noise)
        q_loss = mean_loss(valuation.mean[..., 0], target)
        quantile_loss = pinball_loss(valuation.quantiles[:, :, 0], samples)
        length = descend(q_loss + quantile_loss, self.critic_optimiser, self.config.gradient_norm)
        return {
            "q_loss": q_loss.detach(),
            "quantile_loss": quantile_loss.detach(),
            "q": valuation.mean.mean().detach(),
            "critic_gradient": length,
        }
