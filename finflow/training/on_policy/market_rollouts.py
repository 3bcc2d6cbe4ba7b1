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
from finflow.env.portfolio_state import PortfolioState, WorldState
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.rewards import RewardUnits
from finflow.training.on_policy.market_actor_critic import MarketActorCritic
from finflow.training.on_policy.noise_effects import NoiseEffects, remaining_decisions
from finflow.training.on_policy.on_policy_state import discount_of
from finflow.training.playing.rollout_steps import Decisions, Reference, decide, observed, start_groups
from finflow.training.playing.rollout_workers import RolloutWorkers
from finflow.training.playing.segment_pay import SegmentPay

Accept = Callable[[NDArray[np.float64]], NDArray[np.bool_] | None]
"""Which of the environments' rewards may be learned from; None for all."""


class Played(NamedTuple):
    """Decisions with what is learned from them, each tensor (steps, portfolios).

    Attributes
    ----------
    decisions : Decisions
    rewards : Tensor
        In scaled units, less what the reference takes.
    constrained : Tensor
        Rewards with a limit, as they are; zeros where none has one.
    kept : bool Tensor
        Decisions to learn from.
    """

    decisions: Decisions
    rewards: Tensor
    constrained: Tensor
    kept: Tensor

    def mean_constrained(self) -> float:
        """Mean of the reward with a limit, per decision to learn from."""
        return float(self.constrained[self.kept].double().mean())

    def learnable(self, advantages: Tensor, values: Tensor) -> Rollout:
        """The decisions to learn from, one below the other, with targets ``advantages + values``."""
        made = self.decisions
        own = Rollout(made.observations, made.actions, made.log_prob, values, advantages, advantages + values)
        observations, *rest = own
        kept = self.kept.flatten()
        flat = Rollout(tuple(part.flatten(0, 1) for part in observations), *(part.flatten(0, 1) for part in rest))
        return flat if bool(kept.all()) else flat.rows(kept.nonzero().squeeze(1))


class MarketPlayer:
    """Plays a policy in the environments.

    Parameters
    ----------
    env : PortfolioVectorEnv
    agent : MarketActorCritic
    units : RewardUnits
    config : Config
    generator : Generator
        Draws the actions.
    accept : callable
        Judges the environments' rewards.
    queue : RewardQueue, optional
        Has the rewards, where workers compute them: they are taken at the end of a rollout.
    workers : RolloutWorkers, optional
        Play the portfolios, with generators of their own.
    pay : SegmentPay, optional
        Pays the rewards by the segment.
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
        workers: RolloutWorkers | None = None,
        pay: SegmentPay | None = None,
    ) -> None:
        self.env = env
        self.agent = agent
        self.units = units
        self.config = config
        self.generator = generator
        self.accept = accept
        self.queue = queue
        self.workers = workers
        self.pay = pay
        self.gamma = discount_of(config)

    def collect(self, reference: Reference | None = None) -> tuple[Rollout, Played]:
        """Play one rollout with the configured advantages.

        Parameters
        ----------
        reference : Reference, optional
            Each reward is less ``beta (log pi - log pi_ref)`` per free dimension.
        """
        online = self.config.online
        steps = online.rollout // online.portfolios
        if online.advantages == "group":
            if self.workers is None:  # which start groups themselves
                start_groups(self.env, online)
            if self.pay is not None:
                self.pay.begin()
            played = self.play(min(steps, self.env.episode_length), reference)
            return self._group_relative(played), played
        played = self.play(steps, reference)
        decisions = played.decisions
        values, following = self._values(decisions.observations), self._values(decisions.next_observations)
        if online.algorithm == "reinforce":  # no baseline
            values, following = torch.zeros_like(values), torch.zeros_like(following)
        advantages = generalised_advantages(
            played.rewards,
            values,
            following,
            decisions.terminated if self.gamma < 1.0 else decisions.ended,
            decisions.ended,
            self.gamma,
            1.0 if online.algorithm in ("a2c", "reinforce") else online.gae_lambda,
        )
        return played.learnable(advantages, values), played

    @torch.no_grad()
    def play(self, steps: int, reference: Reference | None = None) -> Played:
        """Play so many vector steps from where the environments stand.

        Raises
        ------
        TrainingError
            If a reward cannot be computed; the guard has seen none of the rollout then.
        """
        policy, market = self.agent.policy, self.agent.market
        if self.workers is None:
            decisions = decide(self.env, policy, market, self.generator, steps, reference)
        else:
            decisions = self.workers.decide(self.env, policy, steps, reference, market.assets.device)
        raw = decisions.rewards if self.queue is None else self.queue.collect()
        judged = [_judged(self, decisions, step, reward) for step, reward in enumerate(raw)]
        rewards = torch.stack([one for one, _ in judged])
        if self.pay is not None:
            turnover = torch.from_numpy(np.stack(decisions.turnover)).to(rewards)
            rewards = self.pay.pay(rewards, turnover, decisions.ended)
        return Played(
            decisions,
            rewards if decisions.charge is None else rewards - decisions.charge,
            torch.from_numpy(np.stack(decisions.constrained)).to(decisions.log_prob),
            torch.stack([kept for _, kept in judged]),
        )

    def _observed(self, state: PortfolioState, bars: NDArray[np.int64]) -> Observations:
        """Observations of portfolios at bars."""
        return observed(self.env.process, self.agent.market, state, bars)

    @torch.no_grad()
    def _values(self, observations: Observations) -> Tensor:
        """Values of observations (steps, portfolios, ...), (steps, portfolios)."""
        steps, portfolios = observations[0].shape
        return self.agent.value(tuple(part.flatten(0, 1) for part in observations)).view(steps, portfolios)

    def _group_relative(self, played: Played) -> Rollout:
        """Returns to the end of the window less the mean of the group's others; an ended portfolio earns no more.

        Later rewards are weighted by powers of gamma and ``online.group_lambda``. Differences from the others are
        linear in the returns, so that differences of weighted returns are weighted differences. The effects of the
        noise of later decisions are taken off, where they are followed (``online.group_noise``).
        """
        decay = self.gamma * self.config.online.group_lambda
        ended = played.decisions.ended
        alive = torch.ones_like(ended)
        alive[1:] = (1.0 - ended[:-1]).cumprod(dim=0)
        returns = torch.empty_like(played.rewards)
        effects = self._noise_effects(played, decay)
        following = torch.zeros_like(played.rewards[0])
        for step in range(len(returns) - 1, -1, -1):
            returns[step] = alive[step] * played.rewards[step] + decay * following
            following = returns[step] if effects is None else returns[step] - alive[step] * effects[step]
        grouped = returns.view(len(returns), -1, self.config.online.group_size)
        advantages = leave_one_out_advantages(grouped).view_as(returns)
        return played._replace(kept=played.kept & (alive > 0.0)).learnable(advantages, torch.zeros_like(returns))

    def _noise_effects(self, played: Played, decay: float) -> Tensor | None:
        """Effect of each decision's own noise on rewards from there on, (steps, portfolios); None where it stays in."""
        horizon = self.config.online.group_noise
        if horizon == 0:
            return None
        process = self.env.process
        followed = NoiseEffects(
            process, self.agent, self.units, lambda one: self._observed(one, one.bar), horizon, decay, self.queue
        )
        made = played.decisions
        return followed.of(made.states, made.actions, remaining_decisions(made.ended.cpu())).to(played.rewards)


def _judged(
    player: MarketPlayer, decisions: Decisions, step: int, reward: NDArray[np.float64]
) -> tuple[Tensor, Tensor]:
    """Scaled rewards of a step, and which may be learned from."""
    bars, _, *universe = (part[step] for part in decisions.observations)
    state, units, kept = decisions.states[step], player.units, player.accept(reward)
    accepted = np.ones(len(reward), dtype=np.bool_) if kept is None else kept
    members = state.universe if isinstance(state, WorldState) else None
    units.remember(reward[accepted], state.bar[accepted], None if members is None else members[accepted])
    known = torch.as_tensor(accepted, device=bars.device)
    raw = torch.as_tensor(np.where(accepted, reward, 0.0), dtype=torch.float32, device=bars.device)
    limited = torch.as_tensor(decisions.constrained[step], dtype=torch.float32, device=bars.device)
    scaled = units.scaled(raw, bars, universe[0] if universe else None, limited)
    return torch.where(known, scaled, torch.zeros_like(raw)), known
