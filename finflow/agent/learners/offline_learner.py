"""Offline learners: IQL, TD3+BC and behaviour cloning, with the networks, optimisers and steps that all share.

The methods differ in the target of the critic and the loss of the policy (`off_policy_losses`). All of them leave a
policy, critics, targets and V_mu for the online phase to start from.

References
----------
Kostrikov, Nair and Levine (2022), Offline Reinforcement Learning with Implicit Q-Learning, algorithm 1.
Fujimoto and Gu (2021), A Minimalist Approach to Offline Reinforcement Learning, equations 5 and 6.
Fujimoto, van Hoof and Meger (2018), Addressing Function Approximation Error in Actor-Critic Methods, algorithm 1.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from finflow.agent.batch import OWN, Batch, States
from finflow.agent.gradient_steps import (
    cosine,
    gradient_step,
    linearised,
    make_optimiser,
    polyak_update,
    set_learning_rate,
    update_precision,
)
from finflow.agent.losses.off_policy_losses import (
    advantage_weights,
    choice_loss,
    critic_target,
    ddpg_bc_loss,
    expectile_loss,
    expectile_of,
    td3bc_loss,
)
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape, Valuation, ValueNetwork
from finflow.agent.networks.distributions import standard_normal
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
            loss, policy_metrics = self.policy.imitation_loss(batch, torch.ones_like(data_value), noise)
            self.update_policy(loss, progress)
            metrics |= policy_metrics
        next_value = ahead.mean.min(dim=0).values
        metrics |= self.update_critic(batch, next_value, ahead.spread, noise)
        polyak_update(self.target_critic, self.critic, self.config.tau)
        return metrics


class BehaviourValues(BehaviourCloning):
    """The behaviour's values alone, for an online phase whose policy starts from initial weights."""

    clones = False


POLICY_DELAY = 2  # critic updates for one of the policy, as published
SMOOTHING, SMOOTHING_LIMIT = 0.2, 0.5  # deviation and bound of the noise on the target policy's action


class TD3BC(OfflineLearner):
    """TD3+BC: gradient ascent on the critic with a penalty on the distance from the data.

    The deterministic action is the policy's centre. For portfolios, distances and the smoothing noise live in additive
    log ratios: squared differences of twenty small weights would be negligible beside the critic's term. V follows the
    mean of the critics for the record and the hand-over. The policy moves at every second update.
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
        metrics |= self.update_critic(batch, next_value, spread, noise)
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
        action, _, others, metrics = self.policy.pathwise_gradient(batch, weights, noise)
        with torch.no_grad():
            encoding = self.critic.encode(batch.states)
        value = linearised(
            lambda chosen: self.critic.value(encoding, batch.states, chosen, with_quantiles=0).mean[0, :, 0],
            action.unsqueeze(1),
        )
        loss = td3bc_loss(value, self.policy.squared_distance(action, batch.actions, batch.states))
        self.update_policy(loss + others, progress)
        return {**metrics, "policy_loss": loss.detach()}


class IQL(OfflineLearner):
    """Implicit Q-learning, in the order of the paper and its code (V, then policy, then Q).

    The critic's mean obeys the published rule exactly. Its quantiles learn the spread of the data's own returns: their
    target uses the behaviour's own next decision. Each expert learns the portfolios of the family of its name from its
    own features; the gate and the trade rate learn direction and size of all trades in the data; both weighted by
    advantage.
    """

    def learn(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """Take one step of V, the policy, the critics and their targets."""
        config = self.config
        value, behaviour = self.value.both(batch.states)
        encoding, actions, ahead = self.target_values(batch)
        v_loss = expectile_loss(actions, value.unsqueeze(1), config.iql_expectile)
        gradient_step(v_loss, self.value_optimiser, config.gradient_norm)
        metrics = self.update_behaviour_value(behaviour, batch)
        now, next_value = self._values(batch, actions)
        policy_loss, policy_metrics = self._policy_loss(batch, encoding, actions, now, noise)
        self.update_policy(policy_loss, progress)
        metrics |= policy_metrics | self.update_critic(batch, next_value, ahead.spread, noise)
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


METHODS: dict[str, type[OfflineLearner]] = {"iql": IQL, "td3bc": TD3BC, "bc": BehaviourCloning, "none": BehaviourValues}
"""Learners by ``offline.method``."""
