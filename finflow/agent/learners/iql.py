"""Implicit Q-learning, in the order of the paper and its code (V, then policy, then Q).

The critic's mean obeys the published rule exactly. Its quantiles learn the spread of the data's own returns: their
target uses the behaviour's own next decision. Each expert learns the portfolios of the family of its name from its own
features; the gate and the trade rate learn direction and size of all trades in the data; both weighted by advantage.

References
----------
Kostrikov, Nair and Levine (2022), Offline Reinforcement Learning with Implicit Q-Learning, algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import (
    compute_gradients,
    cosine,
    gradient_step,
    linearised,
    polyak_update,
    set_learning_rate,
    step,
)
from finflow.agent.learners.offline_learner import OfflineLearner, TargetValues
from finflow.agent.losses.losses import advantage_weights, ddpg_bc_loss, expectile_loss
from finflow.agent.precision import autocast_update
from finflow.cores import run_both

# With ``bcell.iql_extraction: gradient`` the policy is cloned up to this share of the updates. Untrained critics would
# teach it not to trade, from which it does not recover: without trades the aim has no gradient.
GRADIENT_FROM = 0.5


class IQL(OfflineLearner):
    """Implicit Q-learning."""

    @autocast_update
    def update(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step of V, the policy, the critics and their targets."""
        config = self.config
        self.schedule_critics(progress)
        (value, behaviour), values = run_both(
            lambda: self.value.both(batch.states), lambda: self.target_values(batch), self.device
        )
        data_value, ahead = values.data, values.ahead
        v_loss = expectile_loss(data_value, value, config.iql_expectile)
        gradient_step(v_loss, self.value_optimiser, config.gradient_norm)
        behaviour_metrics = self.update_behaviour_value(behaviour, batch)
        with torch.no_grad():
            now, ahead_value = self.value(batch.both).chunk(2)
        policy_loss, policy_metrics = self._policy_loss(batch, values, now, progress, self.dropout_noise(noise))
        set_learning_rate(self.policy_optimiser, cosine(config.actor_lr, self._policy_progress(progress)))
        critic_metrics, _ = run_both(
            lambda: self.update_critic(batch, ahead_value, ahead.spread[:, :, 0], self.dropout_noise(noise)),
            lambda: compute_gradients(policy_loss, self.policy_optimiser),
            self.device,
        )
        step(self.policy_optimiser, config.gradient_norm)
        polyak_update(self.target_critic, self.critic, config.tau)
        figures = {"v_loss": v_loss, "v": value.mean(), "advantage": (data_value - now).mean()}
        return {
            **{name: tensor.detach() for name, tensor in figures.items()},
            **behaviour_metrics,
            **policy_metrics,
            **critic_metrics,
        }

    def moves_far(self, progress: float) -> bool:
        """Return True while the policy follows the critics' gradient, which takes it far from the cloned one."""
        return self.config.iql_extraction == "gradient" and progress >= GRADIENT_FROM

    def _policy_loss(
        self, batch: Batch, values: TargetValues, now: Tensor, progress: float, noise: Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the policy: as published, or by the critics' gradient; ``now`` is V(s), (B,)."""
        advantage, beta = values.data - now, self.config.iql_temperature / self.advantage_scale
        weights = advantage_weights(advantage, beta)
        figures = {"effective_beta": weights.new_tensor(beta), "weight_variation": weights.std() / weights.mean()}
        if not self.moves_far(progress):
            loss, metrics = self.policy.imitation_loss(batch, weights, noise)
            return loss, metrics | figures | {"mean_weight": weights.mean()}
        action, cloning, others, metrics = self.policy.pathwise_gradient(batch, weights, noise)
        value = linearised(lambda x: self.minimum_value(values.encoding, batch, x)[:, 0], action.unsqueeze(1))
        loss = ddpg_bc_loss(value - now, advantage, cloning, self.config.iql_cloning)  # V(s) has no gradient here
        return loss + others, {**metrics, **figures, "policy_loss": loss.detach()}

    def _policy_progress(self, progress: float) -> float:
        """Progress along the actor's cosine, which begins anew with the critics' gradient."""
        if self.config.iql_extraction == "awr":
            return progress
        return (
            progress / GRADIENT_FROM if progress < GRADIENT_FROM else (progress - GRADIENT_FROM) / (1.0 - GRADIENT_FROM)
        )
