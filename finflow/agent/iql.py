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

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.losses import advantage_weights, expectile_loss
from finflow.agent.offline_learner import OfflineLearner
from finflow.agent.optimisation import cosine, descend, follow, set_learning_rate


class IQL(OfflineLearner):
    """Implicit Q-learning."""

    def update(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """One update of V, the policy, the critics and their targets."""
        config = self.config
        data_value, ahead = self.target_values(batch)
        value, behaviour = self.value.both(batch.states)
        v_loss = expectile_loss(data_value, value, config.iql_expectile)
        descend(v_loss, self.value_optimiser, config.gradient_norm)
        behaviour_metrics = self.update_behaviour_value(behaviour, batch)
        with torch.no_grad():
            now, ahead_value = self.value(batch.both).chunk(2)
        advantage = data_value - now
        weights = advantage_weights(advantage, config.iql_temperature)
        policy_loss, policy_metrics = self.policy.imitation_loss(batch, weights, self.dropout_noise(noise))
        set_learning_rate(self.policy_optimiser, cosine(config.actor_lr, progress))
        descend(policy_loss, self.policy_optimiser, config.gradient_norm)
        critic_metrics = self.update_critic(batch, ahead_value, ahead.spread[:, :, 0], self.dropout_noise(noise))
        follow(self.target_critic, self.critic, config.tau)
        own = {"v_loss": v_loss, "v": value.mean(), "advantage": advantage.mean()}
        return {
            **{name: tensor.detach() for name, tensor in own.items()},
            **behaviour_metrics,
            **policy_metrics,
            **critic_metrics,
        }
