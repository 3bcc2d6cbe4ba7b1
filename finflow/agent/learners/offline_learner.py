"""Networks, optimisers and steps that all offline learners share, and behaviour cloning.

The methods differ in the target of the critic and the loss of the policy: IQL (`iql`), TD3+BC (`td3bc`), behaviour
cloning. All of them leave a policy, critics, targets and V_mu for the online phase to start from.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import (
    cosine,
    gradient_step,
    make_optimiser,
    polyak_update,
    set_learning_rate,
    update_precision,
)
from finflow.agent.losses.critic_losses import choice_loss, critic_target
from finflow.agent.losses.offline_losses import expectile_loss
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape, Valuation, ValueNetwork
from finflow.agent.networks.layers import Encoding
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import BCellConfig

MEAN = 0.5  # the expectile that is the mean


class Networks(NamedTuple):
    """The networks of one learner, or others that answer the same calls on another task."""

    policy: ExpertPolicy
    critic: CriticEnsemble
    value: ValueNetwork


def make_policy(shape: NetworkShape, config: BCellConfig, generator: Generator) -> ExpertPolicy:
    """The configured policy; ``generator`` draws its weights, on the CPU."""
    return ExpertPolicy(shape, generator, config.dropout, config.expert_cloning)


def portfolio_networks(shape: NetworkShape, config: BCellConfig, generator: Generator) -> Networks:
    """Networks that decide on portfolios; ``generator`` draws their weights, on the CPU."""
    policy = make_policy(shape, config, generator)
    critic = CriticEnsemble(shape, config.n_quantiles, generator, config.dropout, config.gradient_checkpointing)
    return Networks(policy, critic, ValueNetwork(shape, generator))


class OfflineLearner:
    """Networks and optimisers of an offline method, and the steps that all methods share.

    ``advantage_scale`` is ``sigma_A``, the unit of advantages in the weights of imitation, in scaled rewards; 1 until
    it is measured. With ``compares_actions`` other actions of a state than the data's have a meaning.
    """

    compares_actions = True

    def __init__(self, networks: Networks, config: BCellConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.advantage_scale = 1.0
        self.policy = networks.policy.to(device)
        self.critic = networks.critic.to(device)
        self.value = networks.value.to(device)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        own = [*self.value.encoder.parameters(), *self.value.own.parameters()]
        self.value_optimiser = make_optimiser(own, config.critic_lr)
        self.behaviour_optimiser = make_optimiser(self.value.behaviour, config.critic_lr)
        self.policy_optimiser = make_optimiser(self.policy, config.actor_lr)
        self.critic_optimiser = make_optimiser(self.critic, config.critic_lr)

    def update(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step of every network; returns ``v_loss``, ``q_loss``, ``policy_loss`` and others, each ().

        ``progress`` is the share of the offline updates done, for the actor's cosine schedule.
        """
        with update_precision(self.device, self.config.mixed_precision):
            return self.learn(batch, progress, noise)

    def learn(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take the method's own steps, in the precision of an update."""
        raise NotImplementedError

    @property
    def moves_far(self) -> bool:
        """True where the policy is meant to move far: its divergence is no alarm then."""
        return False

    def dropout_noise(self, noise: Generator) -> Generator | None:
        return noise if self.config.dropout > 0.0 else None

    @torch.no_grad()
    def target_values(self, batch: Batch) -> tuple[Encoding, Tensor, Valuation]:
        """Values by the target critics: an encoding of the states, with the values of each state's actions, (B, P).

        P begins with the data's action. The last are the values of the behaviour's next decisions.
        """
        both = self.target_critic.encode(batch.both)
        groups = len(batch.both.market) // 2
        encoding = both.groups(0, groups)
        actions = self.minimum_value(encoding, batch, batch.outcomes.actions)
        following = batch.next_actions.unsqueeze(1)
        ahead = self.target_critic.value(both.groups(groups, 2 * groups), batch.next_states, following)
        return encoding, actions, ahead

    def minimum_value(self, encoding: Encoding, batch: Batch, actions: Tensor) -> Tensor:
        """Least value over critics of actions (B, P, K) by the target critics, (B, P)."""
        valuation = self.target_critic.value(encoding, batch.states, actions, with_quantiles=0)
        return valuation.mean.min(dim=0).values

    def update_mean_value(self, batch: Batch, actions: Tensor) -> dict[str, Tensor]:
        """Take one step of V toward the mean over the values of each state's actions, (B, P), and one of V_mu."""
        value, behaviour = self.value.both(batch.states)
        v_loss = expectile_loss(actions, value.unsqueeze(1), MEAN)
        gradient_step(v_loss, self.value_optimiser, self.config.gradient_norm)
        metrics = {"v_loss": v_loss.detach(), "v": value.mean().detach()}
        return metrics | self.update_behaviour_value(behaviour, batch)

    def update_behaviour_value(self, behaviour: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Take one step of V_mu toward the behaviour's lambda-returns; its encoding gets no gradient."""
        loss = (behaviour - batch.behaviour_returns).square().mean()
        gradient_step(loss, self.behaviour_optimiser, self.config.gradient_norm)
        return {"behaviour_value_loss": loss.detach()}

    def update_critic(
        self, batch: Batch, next_value: Tensor, next_spread: Tensor, noise: Generator | None
    ) -> dict[str, Tensor]:
        """Take one step of m toward ``r + gamma V'``, and of q toward the same with the spread of the next decision.

        ``next_value`` is (B, P); ``next_spread``, (E, B, 1, n), are centred quantiles of the next decision after the
        logged one.
        """
        states, distributional = batch.states, self.config.n_quantiles > 1  # one quantile has no spread
        values = self.critic.value(
            self.critic.encode(states), states, batch.outcomes.actions, int(distributional), noise
        )
        target = critic_target(batch, next_value, next_spread, self.config.gamma)
        loss, metrics = choice_loss(values, target, self.advantage_scale)
        return metrics | {"critic_gradient": gradient_step(loss, self.critic_optimiser, self.config.gradient_norm)}

    def update_policy(self, loss: Tensor, progress: float) -> None:
        """Take one step of the policy down its loss."""
        set_learning_rate(self.policy_optimiser, cosine(self.config.actor_lr, progress))
        gradient_step(loss, self.policy_optimiser, self.config.gradient_norm)


class BehaviourCloning(OfflineLearner):
    """Behaviour cloning, with the behaviour's values.

    The policy maximises the likelihood of the data, unweighted: other actions than the data's have no meaning. The
    critics learn the behaviour's own action values, from its own next decision (SARSA), so that an online phase can
    start from here as well.
    """

    compares_actions = False
    clones = True

    def learn(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step of V, the policy, the critics and their targets."""
        _, data_value, ahead = self.target_values(batch)
        metrics = self.update_mean_value(batch, data_value)
        if self.clones:
            loss, policy_metrics = self.policy.imitation_loss(
                batch, torch.ones_like(data_value), self.dropout_noise(noise)
            )
            self.update_policy(loss, progress)
            metrics |= policy_metrics
        next_value = ahead.mean.min(dim=0).values
        metrics |= self.update_critic(batch, next_value, ahead.spread, self.dropout_noise(noise))
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return metrics


class BehaviourValues(BehaviourCloning):
    """The behaviour's values alone, for an online phase whose policy starts from initial weights."""

    clones = False
