"""Rollouts on the market: decisions of the policy in several portfolios, and their advantages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.networks.logistic_normal import log_portfolio
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.on_policy.advantages import generalised_advantages, leave_one_out_advantages
from finflow.agent.on_policy.policy_interface import Observations, Rollout
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.env.portfolio_state import PortfolioState, WorldState
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.data.rewards import RewardUnits
from finflow.training.on_policy.market_actor_critic import MarketActorCritic, distribution_of
from finflow.training.on_policy.noise_effects import NoiseEffects, remaining_decisions

Accept = Callable[[NDArray[np.float64]], NDArray[np.bool_] | None]
"""Which of the environments' rewards may be learned from; None for all."""


class EndedEpisode(NamedTuple):
    """An episode that ended.

    Attributes
    ----------
    net_return : float
        Net simple return of the whole episode.
    sharpe : float
        Sharpe ratio of its returns in excess of cash, a year.
    """

    net_return: float
    sharpe: float


def ended_episodes(info: Mapping[str, Any], ended: NDArray[np.bool_], capital: float) -> list[EndedEpisode]:
    """Episodes that ended in a step of the vector environment, by its info; ``capital`` is what each began with."""
    return [
        EndedEpisode(float(info["wealth"][place]) / capital - 1.0, float(info["sharpe"][place]))
        for place in np.flatnonzero(ended)
    ]


def _per_dimension(divergence: Tensor, dimensions: int | Tensor) -> float:
    """Mean of divergences (batch,) in nats per free dimension of each action."""
    if isinstance(dimensions, Tensor):
        return float((divergence / dimensions).mean())
    return float(divergence.mean()) / dimensions


class Reference(NamedTuple):
    """Frozen policy that decisions are charged for leaving.

    Attributes
    ----------
    policy : ExpertPolicy
    beta : float
        Scaled reward per nat and free dimension.
    """

    policy: ExpertPolicy
    beta: float


class Played(NamedTuple):
    """Decisions of several portfolios side by side, each tensor (steps, portfolios, ...).

    Attributes
    ----------
    observations, next_observations : tuple of Tensor
        The second before a new episode began.
    actions : Tensor
        Log ratios.
    log_prob, rewards, terminated, ended : Tensor
        Rewards in scaled units.
    kept : bool Tensor
        Decisions to learn from.
    divergence : float
        Mean KL to the reference in nats per free dimension; 0 without one.
    episodes : list of EndedEpisode
    states : list of PortfolioState
        Of the environments before each step.
    """

    observations: Observations
    next_observations: Observations
    actions: Tensor
    log_prob: Tensor
    rewards: Tensor
    terminated: Tensor
    ended: Tensor
    kept: Tensor
    divergence: float
    episodes: list[EndedEpisode]
    states: list[PortfolioState]

    def learnable(self, advantages: Tensor, values: Tensor) -> Rollout:
        """The decisions to learn from, one below the other, with targets ``advantages + values``."""
        own = Rollout(self.observations, self.actions, self.log_prob, values, advantages, advantages + values)
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
    ) -> None:
        self.env = env
        self.agent = agent
        self.units = units
        self.config = config
        self.generator = generator
        self.accept = accept
        self.queue = queue

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
            self._start_groups()
            played = self.play(min(steps, self.env.episode_length), reference)
            return self._group_relative(played), played
        played = self.play(steps, reference)
        values, following = self._values(played.observations), self._values(played.next_observations)
        if online.algorithm == "reinforce":  # no baseline
            values, following = torch.zeros_like(values), torch.zeros_like(following)
        advantages = generalised_advantages(
            played.rewards,
            values,
            following,
            played.terminated,
            played.ended,
            self.config.bcell.gamma,
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
        rows: list[dict[str, Any]] = []
        rewards: list[NDArray[np.float64]] = []
        episodes: list[EndedEpisode] = []
        states: list[PortfolioState] = []
        divergence = 0.0
        for _ in range(steps):
            states.append(self.env.state)
            row, reward, apart, over = self._step(reference)
            rows.append(row)
            rewards.append(reward)
            episodes += over
            divergence += apart / steps
        known = rewards if self.queue is None else self.queue.collect()
        for row, state, reward in zip(rows, states, known, strict=True):
            row |= _judged(self, state, reward, row["observations"], row.pop("charge"))
        columns = {name: torch.stack([row[name] for row in rows]) for name in rows[0] if "observations" not in name}
        parts = [
            tuple(torch.stack(part) for part in zip(*(row[name] for row in rows), strict=True))
            for name in ("observations", "next_observations")
        ]
        return Played(parts[0], parts[1], **columns, divergence=divergence, episodes=episodes, states=states)

    def _step(
        self, reference: Reference | None
    ) -> tuple[dict[str, Any], NDArray[np.float64], float, list[EndedEpisode]]:
        """One vector step: its row, its raw rewards, the mean KL to the reference, and the episodes that ended."""
        env, market = self.env, self.agent.market
        state = env.state
        observations = self._observed(state, state.bar)
        states = self.agent.states(observations)
        distribution = distribution_of(self.agent.policy, states)
        actions = distribution.sample(self.generator)
        log_prob = distribution.log_prob(actions)
        universe = observations[2] if len(observations) > 2 else None
        targets = market.scatter_assets(log_portfolio(actions).exp(), universe)
        _, reward, terminated, truncated, info = env.step(targets.cpu().numpy())
        final = info.get("final_state", env.state)
        members = state.universe if isinstance(state, WorldState) else None
        device = actions.device
        charge, apart = None, 0.0
        if reference is not None:
            other = distribution_of(reference.policy, states)
            charge = reference.beta * (log_prob - other.log_prob(actions)) / distribution.dimensions
            apart = _per_dimension(distribution.kl(other), distribution.dimensions)
        ended = terminated | truncated
        row = {
            "observations": observations,
            "next_observations": self._observed(final, state.bar + 1, members),
            "actions": actions,
            "log_prob": log_prob,
            "charge": charge,
            "terminated": torch.as_tensor(terminated, device=device).float(),
            "ended": torch.as_tensor(ended, device=device).float(),
        }
        return row, reward, apart, ended_episodes(info, ended, self.config.env.initial_capital)

    def _observed(
        self, state: PortfolioState, bars: NDArray[np.int64], universe: NDArray[np.int64] | None = None
    ) -> Observations:
        """Observations of portfolios at bars."""
        device = self.agent.market.assets.device
        portfolio = torch.as_tensor(self.env.process.observed_portfolio(state), dtype=torch.float32, device=device)
        parts = (torch.as_tensor(bars, device=device), portfolio)
        if self.agent.market.members is None or not isinstance(state, WorldState):
            return parts
        return (*parts, torch.as_tensor(state.universe if universe is None else universe, device=device))

    @torch.no_grad()
    def _values(self, observations: Observations) -> Tensor:
        """Values of observations (steps, portfolios, ...), (steps, portfolios)."""
        steps, portfolios = observations[0].shape
        return self.agent.value(tuple(part.flatten(0, 1) for part in observations)).view(steps, portfolios)

    def _start_groups(self) -> None:
        """Start all portfolios anew: those of a group on one bar with one portfolio."""
        online, rng = self.config.online, self.env.np_random
        groups = online.portfolios // online.group_size
        bars = rng.choice(self.env.starts, size=groups)
        weights, _ = draw_coverage(rng, groups, self.env.process.n_weights)
        self.env.reset(
            options={
                "bars": np.repeat(bars, online.group_size),
                "weights": np.repeat(weights, online.group_size, axis=0),
            }
        )

    def _group_relative(self, played: Played) -> Rollout:
        """Returns to the end of the window less the mean of the group's others; an ended portfolio earns no more.

        Later rewards are weighted by powers of gamma and ``online.group_lambda``. Differences from the others are
        linear in the returns, so that differences of weighted returns are weighted differences. The effects of the
        noise of later decisions are taken off, where they are followed (``online.group_noise``).
        """
        decay = self.config.bcell.gamma * self.config.online.group_lambda
        alive = torch.ones_like(played.ended)
        alive[1:] = (1.0 - played.ended[:-1]).cumprod(dim=0)
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
        return followed.of(played.states, played.actions, remaining_decisions(played.ended.cpu())).to(played.rewards)


def _judged(
    player: MarketPlayer,
    state: PortfolioState,
    reward: NDArray[np.float64],
    observations: Observations,
    charge: Tensor | None,
) -> dict[str, Tensor]:
    """Scaled rewards of a step, less the charge for leaving the reference, and which may be learned from."""
    kept, units = player.accept(reward), player.units
    accepted = np.ones(len(reward), dtype=np.bool_) if kept is None else kept
    members = state.universe if isinstance(state, WorldState) else None
    units.remember(reward[accepted], state.bar[accepted], None if members is None else members[accepted])
    device = observations[0].device
    known = torch.as_tensor(accepted, device=device)
    raw = torch.as_tensor(np.where(accepted, reward, 0.0), dtype=torch.float32, device=device)
    universe = observations[2] if len(observations) > 2 else None
    scaled = torch.where(known, units.scaled(raw, observations[0], universe), torch.zeros_like(raw))
    return {"rewards": scaled if charge is None else scaled - charge, "kept": known}
