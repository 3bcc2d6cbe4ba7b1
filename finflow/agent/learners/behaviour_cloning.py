"""Behaviour cloning, with the values of the behaviour.

The policy maximises the likelihood of the data, unweighted: other actions than the data's have no meaning. The critics
learn the behaviour's own action values, from its own next decision (SARSA), so that an online phase can start from here
as well.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import (
    compute_gradients,
    cosine,
    polyak_update,
    set_learning_rate,
    step,
)
from finflow.agent.learners.offline_learner import OfflineLearner
from finflow.agent.precision import autocast_update
from finflow.cores import run_both


class BehaviourCloning(OfflineLearner):
    """Behaviour cloning, with the behaviour's values."""

    compares_actions = False
    clones = True

    @autocast_update
    def update(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step of V, the policy, the critics and their targets."""
        config = self.config
        _, data_value, ahead = self.target_values(batch)
        metrics = self.update_mean_value(batch, data_value)
        next_value = ahead.mean.min(dim=0).values
        critics = partial(self.update_critic, batch, next_value, ahead.spread[:, :, 0], self.dropout_noise(noise))
        if self.clones:
            weights = torch.ones_like(data_value)
            policy_loss, policy_metrics = self.policy.imitation_loss(batch, weights, self.dropout_noise(noise))
            set_learning_rate(self.policy_optimiser, cosine(config.actor_lr, progress))
            critic_metrics, _ = run_both(
                critics, lambda: compute_gradients(policy_loss, self.policy_optimiser), self.device
            )
            step(self.policy_optimiser, config.gradient_norm)
            metrics |= policy_metrics | critic_metrics
        else:
            metrics |= critics()
        polyak_update(self.target_critic, self.critic, config.tau)
        return metrics


class BehaviourValues(BehaviourCloning):
    """The behaviour's values alone, for an online phase whose policy starts from initial weights."""

    clones = False
