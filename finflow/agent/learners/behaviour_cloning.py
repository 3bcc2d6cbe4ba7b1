"""Behaviour cloning: do what was done, whatever came of it; and know what it was worth.

The policy climbs the plain likelihood of the data. The critics learn the behaviour's own action values, from the
behaviour's own next decision (SARSA), so that an online phase can start from here as well.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.learners.offline_learner import OfflineLearner
from finflow.agent.losses.losses import expectile_loss
from finflow.agent.optimisation.gradient_steps import cosine, descend, descending, follow, set_learning_rate, step
from finflow.agent.optimisation.precision import in_its_precision

MEAN = 0.5  # the expectile that is the mean


class BehaviourCloning(OfflineLearner):
    """Behaviour cloning, with the behaviour's values."""

    @in_its_precision
    def update(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """One update of V, the policy, the critics and their targets."""
        config = self.config
        self.schedule_critics(progress)
        _, data_value, ahead = self.target_values(batch)
        value, behaviour = self.value.both(batch.states)
        v_loss = expectile_loss(data_value, value, MEAN)
        descend(v_loss, self.value_optimiser, config.gradient_norm)
        behaviour_metrics = self.update_behaviour_value(behaviour, batch)
        policy_loss, policy_metrics = self.policy.imitation_loss(
            batch, torch.ones_like(batch.rewards), self.dropout_noise(noise)
        )
        set_learning_rate(self.policy_optimiser, cosine(config.actor_lr, progress))
        next_value = ahead.mean[..., 0].min(dim=0).values
        with descending(policy_loss, self.policy_optimiser):
            critic_metrics = self.update_critic(batch, next_value, ahead.spread[:, :, 0], self.dropout_noise(noise))
        step(self.policy_optimiser, config.gradient_norm)
        follow(self.target_critic, self.critic, config.tau)
        own = {"v_loss": v_loss.detach(), "v": value.mean().detach()}
        return {**own, **behaviour_metrics, **policy_metrics, **critic_metrics}
