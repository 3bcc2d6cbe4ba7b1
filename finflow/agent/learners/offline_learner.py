"""What every offline learner has and does: networks, the critic's step, the behaviour's own value.

The methods differ in what the critic bootstraps from and in what the policy climbs: IQL (`iql`), TD3+BC (`td3bc`),
behaviour cloning (`cloning`). All of them leave behind a policy, critics, targets and V_mu, so that the online phase
can take over from any.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.losses.losses import bellman_target, mean_loss, pinball_loss
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape, Valuation, ValueNetwork
from finflow.agent.networks.layers import Encoding
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.optimisation.gradient_steps import cosine, descend, freeze, make_optimiser, set_learning_rate
from finflow.config import BCellConfig


class Networks(NamedTuple):
    """The networks of one learner, or modules that answer the same calls on another task."""

    policy: ExpertPolicy
    critic: CriticEnsemble
    value: ValueNetwork


class TargetValues(NamedTuple):
    """What the target critics say of a batch, without gradients.

    Attributes
    ----------
    encoding : Encoding
        Of the states.
    data : Tensor, (B,)
        Least value of the data's actions.
    ahead : Valuation
        Of the behaviour's next decisions.
    """

    encoding: Encoding
    data: Tensor
    ahead: Valuation


def trade_range(config: BCellConfig) -> tuple[float, float]:
    """Least and greatest trade rate of a configuration."""
    return config.trade_rate_floor, config.trade_rate_ceiling


def make_policy(shape: NetworkShape, config: BCellConfig, generator: Generator) -> ExpertPolicy:
    """The configured policy; ``generator`` draws its weights, on the CPU."""
    cloning = 0.0 if config.one_head else config.expert_cloning
    return ExpertPolicy(shape, generator, config.dropout, trade_range(config), cloning)


def make_critics(shape: NetworkShape, config: BCellConfig, generator: Generator) -> CriticEnsemble:
    """The configured ensemble of critics; ``generator`` draws their weights, on the CPU."""
    return CriticEnsemble(
        shape, config.n_critics, config.n_quantiles, generator, config.dropout, config.gradient_checkpointing
    )


def portfolio_networks(shape: NetworkShape, config: BCellConfig, generator: Generator) -> Networks:
    """The networks that decide on portfolios; ``generator`` draws their weights, on the CPU."""
    return Networks(
        make_policy(shape, config, generator),
        make_critics(shape, config, generator),
        ValueNetwork(shape, generator),
    )


class OfflineLearner:
    """Networks and optimisers, and the steps that all methods share.

    Parameters
    ----------
    networks : Networks
    config : BCellConfig
    device : torch.device
    """

    def __init__(self, networks: Networks, config: BCellConfig, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.policy = networks.policy.to(device)
        self.critic = networks.critic.to(device)
        self.value = networks.value.to(device)
        self.target_critic = copy.deepcopy(self.critic)
        freeze([self.target_critic])
        decay = config.critic_weight_decay
        self.value_optimiser = make_optimiser([self.value.encoder, self.value.own], config.critic_lr, decay)
        self.behaviour_optimiser = make_optimiser(self.value.behaviour, config.critic_lr, decay)
        self.policy_optimiser = make_optimiser(self.policy, config.actor_lr, config.actor_weight_decay)
        self.critic_optimiser = make_optimiser(self.critic, config.critic_lr, decay)

    def update(self, batch: Batch, progress: float, noise: Generator) -> dict[str, Tensor]:
        """One update of everything that learns.

        Parameters
        ----------
        batch : Batch
        progress : float
            Share of the offline updates done, for the actor's cosine schedule.
        noise : Generator
            Draws whatever is random in it.

        Returns
        -------
        dict of Tensor, ()
            ``v_loss``, ``q_loss``, ``policy_loss`` and others.
        """
        raise NotImplementedError

    def travels(self, progress: float) -> bool:
        """Whether the policy moves far at this progress because it is meant to."""
        return False

    def schedule_critics(self, progress: float) -> None:
        """Let the steps of critics and values shrink to nothing, where that is configured.

        Returns of a day are noise for the most part, and a critic whose steps stay as large as they were at first goes
        on following the latest of it.
        """
        if self.config.critic_schedule == "cosine":
            for optimiser in (self.value_optimiser, self.behaviour_optimiser, self.critic_optimiser):
                set_learning_rate(optimiser, cosine(self.config.critic_lr, progress))

    def dropout_noise(self, noise: Generator) -> Generator | None:
        """The generator where dropout is on, and none where it is off."""
        return noise if self.config.dropout > 0.0 else None

    def target_values(self, batch: Batch) -> TargetValues:
        """What the target critics say of a batch."""
        with torch.no_grad():
            both = self.target_critic.encode(batch.both)
            groups = len(batch.both.market) // 2
            encoding = both.groups(0, groups)
            data = self.least_value(encoding, batch, batch.actions.unsqueeze(1))[:, 0]
            following = batch.next_actions.unsqueeze(1)
            ahead = self.target_critic.value(both.groups(groups, 2 * groups), batch.next_states, following)
            return TargetValues(encoding, data, ahead)

    def least_value(self, encoding: Encoding, batch: Batch, actions: Tensor) -> Tensor:
        """Least value of actions (B, P, K) by the target critics, (B, P)."""
        valuation = self.target_critic.value(encoding, batch.states, actions, with_quantiles=0)
        return valuation.mean.min(dim=0).values

    def update_behaviour_value(self, behaviour: Tensor, batch: Batch) -> dict[str, Tensor]:
        """V_mu toward the behaviour's lambda-returns, on an encoding that it does not teach."""
        loss = (behaviour - batch.behaviour_returns).square().mean()
        descend(loss, self.behaviour_optimiser, self.config.gradient_norm)
        return {"behaviour_value_loss": loss.detach()}

    def update_critic(
        self, batch: Batch, next_value: Tensor, next_spread: Tensor, noise: Generator | None
    ) -> dict[str, Tensor]:
        """m toward ``r + gamma V'``; q toward the same with the spread of the behaviour's continuation.

        Parameters
        ----------
        batch : Batch
        next_value : Tensor, (B,)
        next_spread : Tensor, (E, B, n)
            Centred quantiles of the next decision.
        noise : Generator, optional
            For dropout.
        """
        gamma, states = self.config.gamma, batch.states
        target = bellman_target(batch.rewards, batch.terminated, next_value, gamma)
        spread_out = self.config.n_quantiles > 1  # a single quantile has no spread: the critic is scalar
        valuation = self.critic.value(
            self.critic.encode(states), states, batch.actions.unsqueeze(1), int(spread_out), noise
        )
        q_loss = mean_loss(valuation.mean[..., 0], target)
        quantile_loss = torch.zeros_like(q_loss)
        if spread_out:
            samples = batch.whole(target).unsqueeze(-1)
            samples = samples + gamma * (1.0 - batch.terminated).unsqueeze(-1) * next_spread
            quantile_loss = pinball_loss(valuation.quantiles[:, :, 0], samples)
        length = descend(q_loss + quantile_loss, self.critic_optimiser, self.config.gradient_norm)
        return {
            "q_loss": q_loss.detach(),
            "quantile_loss": quantile_loss.detach(),
            "q": valuation.mean.mean().detach(),
            "q_largest": valuation.mean.detach().abs().max(),
            "critic_gradient": length,
        }
