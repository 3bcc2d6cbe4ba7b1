"""TD3+BC: gradient ascent on the critic with a penalty on the distance from the data.

The deterministic action is the policy's centre. For portfolios, distances and the smoothing noise live in additive
log ratios: squared differences of twenty small weights would be negligible beside the critic's term.

References
----------
Fujimoto and Gu (2021), A Minimalist Approach to Offline Reinforcement Learning, equations 5 and 6.
Fujimoto, van Hoof and Meger (2018), Addressing Function Approximation Error in Actor-Critic Methods, algorithm 1.
"""

from __future__ import annotations

import copy

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States
from finflow.agent.gradient_steps import linearised, polyak_update
from finflow.agent.learners.offline_learner import Networks, OfflineLearner
from finflow.agent.losses.offline_losses import td3bc_loss
from finflow.agent.networks.logistic_normal import standard_normal
from finflow.config import BCellConfig

POLICY_DELAY = 2  # critic updates for one of the policy, as published
SMOOTHING, SMOOTHING_LIMIT = 0.2, 0.5  # deviation and bound of the noise on the target policy's action


class TD3BC(OfflineLearner):
    """TD3+BC; V follows the mean of the critics for the record and the hand-over.

    The policy moves at every second update.
    """

    def __init__(self, networks: Networks, config: BCellConfig, device: torch.device) -> None:
        super().__init__(networks, config, device)
        self.target_policy = copy.deepcopy(self.policy).requires_grad_(False)
        self.updates = 0

    def learn(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step of V, the critics and, every second time, the policy and the targets."""
        config = self.config
        _, actions, _ = self.target_values(batch)
        metrics = self.update_mean_value(batch, actions)
        with torch.no_grad():
            states = batch.outcomes.next_states
            following = self._smoothed(self.target_policy.deterministic(states), states, noise)
            ahead = self.target_critic.value(self.target_critic.encode(states), states, following.unsqueeze(1))
            next_value = ahead.mean[..., 0].min(dim=0).values.view_as(actions)
            spread = ahead.spread[:, :: actions.shape[1]]
        metrics |= self.update_critic(batch, next_value, spread, self.dropout_noise(noise))
        self.updates += 1
        if self.updates % POLICY_DELAY == 0:
            metrics |= self._update_policy(batch, progress, noise)
            polyak_update(self.target_critic, self.critic, config.tau)
            polyak_update(self.target_policy, self.policy, config.tau)
        return metrics

    def _smoothed(self, action: Tensor, states: States, noise: Generator) -> Tensor:
        """Add clipped noise to an action, so that similar actions have similar values."""
        coordinates = self.target_policy.coordinates(action, states)
        change = SMOOTHING * standard_normal(tuple(coordinates.shape), noise, coordinates)
        return self.target_policy.perturbed(action, change.clamp(-SMOOTHING_LIMIT, SMOOTHING_LIMIT), states)

    def _update_policy(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step up the first critic, as published, with a penalty on the distance from the data's action."""
        weights = torch.ones_like(batch.rewards)
        action, _, others, metrics = self.policy.pathwise_gradient(batch, weights, self.dropout_noise(noise))
        with torch.no_grad():
            encoding = self.critic.encode(batch.states)
        value = linearised(
            lambda chosen: self.critic.value(encoding, batch.states, chosen, with_quantiles=0).mean[0, :, 0],
            action.unsqueeze(1),
        )
        loss = td3bc_loss(value, self.policy.squared_distance(action, batch.actions, batch.states))
        self.update_policy(loss + others, progress)
        return {**metrics, "policy_loss": loss.detach()}
