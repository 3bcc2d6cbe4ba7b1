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

from functools import partial

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.learners.offline_learner import OfflineLearner, TargetValues
from finflow.agent.losses.losses import advantage_weights, expectile_loss
from finflow.agent.optimisation.gradient_steps import cosine, descend, descending, follow, set_learning_rate, step
from finflow.agent.optimisation.policy_gradient import climbing_loss, linear_in
from finflow.agent.optimisation.precision import in_its_precision
from finflow.cores import meanwhile

# Until the critics know something, a climb teaches the policy to stand still, which is hard to unlearn: where nothing
# is traded, the aim of trading has no gradient. So it clones first.
CLIMB_FROM = 0.5


class IQL(OfflineLearner):
    """Implicit Q-learning."""

    @in_its_precision
    def update(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """One update of V, the policy, the critics and their targets."""
        config = self.config
        self.schedule_critics(progress)
        with meanwhile(partial(self.target_values, batch), self.device) as found:
            value, behaviour = self.value.both(batch.states)
        values = found.result()
        data_value, ahead = values.data, values.ahead
        v_loss = expectile_loss(data_value, value, config.iql_expectile)
        descend(v_loss, self.value_optimiser, config.gradient_norm)
        behaviour_metrics = self.update_behaviour_value(behaviour, batch)
        with torch.no_grad():
            now, ahead_value = self.value(batch.both).chunk(2)
        policy_loss, policy_metrics = self._policy_loss(batch, values, now, progress, self.dropout_noise(noise))
        set_learning_rate(self.policy_optimiser, cosine(config.actor_lr, self._policy_progress(progress)))
        with descending(policy_loss, self.policy_optimiser):
            critic_metrics = self.update_critic(batch, ahead_value, ahead.spread[:, :, 0], self.dropout_noise(noise))
        step(self.policy_optimiser, config.gradient_norm)
        follow(self.target_critic, self.critic, config.tau)
        own = {"v_loss": v_loss, "v": value.mean(), "advantage": (data_value - now).mean()}
        return {
            **{name: tensor.detach() for name, tensor in own.items()},
            **behaviour_metrics,
            **policy_metrics,
            **critic_metrics,
        }

    def travels(self, progress: float) -> bool:
        """Whether the policy climbs, which takes it far from where it cloned to."""
        return self.config.iql_extraction == "gradient" and progress >= CLIMB_FROM

    def _policy_loss(
        self, batch: Batch, values: TargetValues, now: Tensor, progress: float, noise: Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """How the policy is read off the values: as published, or by the critics' gradient; ``now`` is V(s), (B,)."""
        advantage = values.data - now
        weights = advantage_weights(advantage, self.config.iql_temperature)
        if not self.travels(progress):
            return self.policy.imitation_loss(batch, weights, noise)
        action, cloning, others, metrics = self.policy.climbing_step(batch, weights, noise)
        value = linear_in(action.unsqueeze(1), lambda chosen: self.least_value(values.encoding, batch, chosen))[:, 0]
        loss = climbing_loss(value - now, advantage, cloning, self.config.iql_cloning)  # V(s) teaches nothing here
        return loss + others, {**metrics, "policy_loss": loss.detach()}

    def _policy_progress(self, progress: float) -> float:
        """Progress along the actor's cosine, which begins anew with the climb."""
        if self.config.iql_extraction == "awr":
            return progress
        return progress / CLIMB_FROM if progress < CLIMB_FROM else (progress - CLIMB_FROM) / (1.0 - CLIMB_FROM)
