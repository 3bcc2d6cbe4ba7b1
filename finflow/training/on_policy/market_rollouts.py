"""Rollouts on the market: decisions of the policy in several portfolios, and their advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.on_policy.advantages import generalised_advantages, leave_one_out_advantages
from finflow.agent.on_policy.policy_interface import Observations, Rollout
from finflow.config import Config
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.rewards import RewardUnits
from finflow.training.on_policy.market_actor_critic import MarketActorCritic
from finflow.training.on_policy.on_policy_state import discount_of
from finflow.training.rollouts.rollout_steps import Reference, RolloutDecisions, decide, start_groups
from finflow.training.rollouts.segment_rewards import SegmentRewards

Accept = Callable[[NDArray[np.float64]], NDArray[np.bool_] | None]
"""Which of the environments' rewards may be learned from; None for all."""


class RewardedDecisions(NamedTuple):
    """Decisions with the rewards that are learned from, each tensor (steps, portfolios).

    Attributes
    ----------
    rewards : Tensor
        In scaled units, less what the reference takes.
    kept : bool Tensor
        Decisions to learn from.
    """

    decisions: RolloutDecisions
    rewards: Tensor
    kept: Tensor

    def learnable(self, advantages: Tensor, values: Tensor) -> Rollout:
        """The decisions to learn from in one dimension, with targets ``advantages + values``."""
        decisions, kept = self.decisions, self.kept.flatten()
        parts = (decisions.actions, decisions.log_prob, values, advantages, advantages + values)
        observations = tuple(part.flatten(0, 1) for part in decisions.observations)
        flat = Rollout(observations, *(part.flatten(0, 1) for part in parts))
        return flat if bool(kept.all()) else flat.rows(kept.nonzero().squeeze(1))


class RolloutCollector:
    """Collects rollouts of a policy in the environments.

    Parameters
    ----------
    generator : Generator
        Draws the actions.
    accept : callable
        Checks the environments' rewards.
    queue : RewardQueue, optional
        Has the rewards, where workers compute them: they are fetched at the end of a rollout.
    by_segment : SegmentRewards, optional
        Gives the rewards by the segment.
    """

    def __init__(
        self,
        env: PortfolioVectorEnv,
        agent: MarketActorCritic,
        units: RewardUnits,
        config: Config,
        generator: Generator,
        accept: Accept,
        queue: RewardQueue | None = None,
        by_segment: SegmentRewards | None = None,
    ) -> None:
        self.env = env
        self.agent = agent
        self.units = units
        self.config = config
        self.generator = generator
        self.accept = accept
        self.queue = queue
        self.by_segment = by_segment
        self.gamma = discount_of(config)

    def collect(self, reference: Reference | None = None) -> tuple[Rollout, RewardedDecisions]:
        """Collect one rollout with the configured advantages.

        Parameters
        ----------
        reference : Reference, optional
            Each reward is less ``beta (log pi - log pi_ref)`` per free dimension.
        """
        online = self.config.online
        steps = online.rollout // online.portfolios
        if online.advantages == "group":
            start_groups(self.env, online)
            if self.by_segment is not None:
                self.by_segment.begin()
            rewarded = self.decide(min(steps, self.env.episode_length), reference)
            return self._group_relative(rewarded), rewarded
        rewarded = self.decide(steps, reference)
        decisions = rewarded.decisions
        values, following = self._values(decisions.observations), self._values(decisions.next_observations)
        if online.algorithm == "reinforce":  # no baseline
            values, following = torch.zeros_like(values), torch.zeros_like(following)
        advantages = generalised_advantages(
            rewarded.rewards,
            values,
            following,
            decisions.terminated if self.gamma < 1.0 else decisions.ended,
            decisions.ended,
            self.gamma,
            1.0 if online.algorithm in ("a2c", "reinforce") else online.gae_lambda,
        )
        return rewarded.learnable(advantages, values), rewarded

    @torch.no_grad()
    def decide(self, steps: int, reference: Reference | None = None) -> RewardedDecisions:
        """Take so many vector steps from the present state of the environments, and scale their rewards.

        Raises
        ------
        TrainingError
            If a reward cannot be computed; the guard has seen none of the rollout then.
        """
        decisions = decide(self.env, self.agent.policy, self.agent.market, self.generator, steps, reference)
        raw = decisions.rewards if self.queue is None else self.queue.collect()
        scaled, kept = zip(*(self._scaled(decisions, step, reward) for step, reward in enumerate(raw)), strict=True)
        rewards = torch.stack(scaled)
        if self.by_segment is not None:
            rewards = self.by_segment.assign(rewards, decisions.ended)
        return RewardedDecisions(
            decisions,
            rewards if decisions.charge is None else rewards - decisions.charge,
            torch.stack(kept),
        )

    def _scaled(self, decisions: RolloutDecisions, step: int, reward: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
        """Scaled rewards of a step, and which may be learned from."""
        bars = decisions.observations[0][step]
        state, kept = decisions.states[step], self.accept(reward)
        accepted = np.ones(len(reward), dtype=np.bool_) if kept is None else kept
        self.units.remember(reward[accepted], state.bar[accepted])
        known = torch.as_tensor(accepted, device=bars.device)
        raw = torch.as_tensor(np.where(accepted, reward, 0.0), dtype=torch.float32, device=bars.device)
        scaled = self.units.scaled(raw, bars)
        return torch.where(known, scaled, torch.zeros_like(raw)), known

    @torch.no_grad()
    def _values(self, observations: Observations) -> Tensor:
        """Values of observations (steps, portfolios, ...), (steps, portfolios)."""
        steps, portfolios = observations[0].shape
        return self.agent.value(tuple(part.flatten(0, 1) for part in observations)).view(steps, portfolios)

    def _group_relative(self, rewarded: RewardedDecisions) -> Rollout:
        """Returns to the end of the window less the mean of the group's others, zero after the end of an episode."""
        ended = rewarded.decisions.ended
        alive = torch.ones_like(ended)
        alive[1:] = (1.0 - ended[:-1]).cumprod(dim=0)
        returns = torch.empty_like(rewarded.rewards)
        following = torch.zeros_like(rewarded.rewards[0])
        for step in range(len(returns) - 1, -1, -1):
            following = returns[step] = alive[step] * rewarded.rewards[step] + self.gamma * following
        grouped = returns.view(len(returns), -1, self.config.online.group_size)
        advantages = leave_one_out_advantages(grouped).view_as(returns)
        return rewarded._replace(kept=rewarded.kept & (alive > 0.0)).learnable(advantages, torch.zeros_like(returns))
