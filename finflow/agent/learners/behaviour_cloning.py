"""Behaviour cloning, with the values of the behaviour.

The policy maximises the likelihood of the data, unweighted. The critics learn the behaviour's own action values, from
its own next decision (SARSA), so that an online phase can start from here as well.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import (
    compute_gradients,
    cosine,
    gradient_step,
    polyak_update,
    set_learning_rate,
    step,
)
from finflow.agent.learners.offline_learner import OfflineLearner
from finflow.agent.losses.losses import expectile_loss
from finflow.agent.precision import autocast_update
from finflow.cores import run_both

MEAN = 0.5  # the expectile that is the mean


class BehaviourCloning(OfflineLearner):
    """Behaviour cloning, with the behaviour's values."""

    @autocast_update
    def update(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step of V, the policy, the critics and their targets."""
        config = self.config
        self.schedule_critics(progress)
        _, data_value, ahead = self.target_values(batch)
        value, behaviour = self.value.both(batch.states)
        v_loss = expectile_loss(data_value, value, MEAN)
        gradient_step(v_loss, self.value_optimiser, config.gradient_norm)
        behaviour_metrics = self.update_behaviour_value(behaviour, batch)
        policy_loss, policy_metrics = self.policy.imitation_loss(
            batch, torch.ones_like(batch.rewards), self.dropout_noise(noise)
        )
        set_learning_rate(self.policy_optimiser, cosine(config.actor_lr, progress))
        next_value = ahead.mean[..., 0].min(dim=0).values
        critic_metrics, _ = run_both(
            lambda: self.update_critic(batch, next_value, ahead.spread[:, :, 0], self.dropout_noise(noise)),
            lambda: compute_gradients(policy_loss, self.policy_optimiser),
            self.device,
        )
        step(self.policy_optimiser, config.gradient_norm)
        polyak_update(self.target_critic, self.critic, config.tau)
        figures = {"v_loss": v_loss.detach(), "v": value.mean().detach()}
        return {**figures, **behaviour_metrics, **policy_metrics, **critic_metrics}
