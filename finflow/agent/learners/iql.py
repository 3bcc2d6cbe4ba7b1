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
from finflow.agent.gradient_steps import gradient_step, linearised, polyak_update
from finflow.agent.learners.offline_learner import OfflineLearner
from finflow.agent.learners.soft_actor_critic import OWN
from finflow.agent.losses.offline_losses import advantage_weights, ddpg_bc_loss, expectile_loss, expectile_of
from finflow.agent.networks.layers import Encoding


class IQL(OfflineLearner):
    """Implicit Q-learning."""

    def learn(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step of V, the policy, the critics and their targets."""
        config = self.config
        value, behaviour = self.value.both(batch.states)
        encoding, actions, ahead = self.target_values(batch)
        v_loss = expectile_loss(actions, value.unsqueeze(1), config.iql_expectile)
        gradient_step(v_loss, self.value_optimiser, config.gradient_norm)
        metrics = self.update_behaviour_value(behaviour, batch)
        now, next_value = self._values(batch, actions)
        policy_loss, policy_metrics = self._policy_loss(batch, encoding, actions, now, self.dropout_noise(noise))
        self.update_policy(policy_loss, progress)
        metrics |= policy_metrics | self.update_critic(batch, next_value, ahead.spread, self.dropout_noise(noise))
        polyak_update(self.target_critic, self.critic, config.tau)
        figures = {"v_loss": v_loss, "v": value.mean(), "advantage": (actions - now).mean()}
        return {name: tensor.detach() for name, tensor in figures.items()} | metrics

    @property
    def moves_far(self) -> bool:
        return self.config.iql_extraction == "gradient"

    @torch.no_grad()
    def _values(self, batch: Batch, actions: Tensor) -> tuple[Tensor, Tensor]:
        """V(s), (B, 1), and V(s') after each action, (B, P).

        Of the alternatives (B, P) whose values are known in a state the expectile is exact.
        """
        if batch.choices is None:
            now, ahead = self.value(batch.both).chunk(2)
            return now.unsqueeze(1), ahead.unsqueeze(1)
        ahead = self.value(batch.choices.next_states).view_as(actions)
        return expectile_of(actions, self.config.iql_expectile), ahead

    def _policy_loss(
        self, batch: Batch, encoding: Encoding, actions: Tensor, now: Tensor, noise: Generator | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of the policy: as published, or by the critics' gradient.

        ``actions``, (B, P), are values of each state's actions; ``now`` is V(s), (B, 1).
        """
        advantage, beta = actions - now, self.config.iql_temperature / self.advantage_scale
        weights = advantage_weights(advantage, beta)
        figures = {"effective_beta": weights.new_tensor(beta), "weight_variation": weights.std() / weights.mean()}
        if self.config.iql_extraction == "awr":
            if batch.choices is not None:  # holding and the policy's own decision are compared, and not imitated
                weights = weights.clone()
                weights[:, 1 : OWN + 1] = 0.0
            loss, metrics = self.policy.imitation_loss(batch, weights, noise)
            return loss, metrics | figures | {"mean_weight": weights.mean()}
        action, cloning, others, metrics = self.policy.pathwise_gradient(batch, weights[:, 0], noise)
        value = linearised(lambda x: self.minimum_value(encoding, batch, x)[:, 0], action.unsqueeze(1))
        loss = ddpg_bc_loss(value - now[:, 0], advantage, cloning, self.config.iql_cloning)  # V(s) has no gradient here
        return loss + others, {**metrics, **figures, "policy_loss": loss.detach()}
