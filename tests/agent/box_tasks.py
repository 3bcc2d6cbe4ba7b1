"""The online update on solved tasks: Pendulum-v1, and an environment whose best action is its observation.

No market is in it: one environment, one update a step by `BCell.update_sac`, and every transition kept.

References
----------
Raffin et al. (2021), Stable-Baselines3: whose tests solve an identity environment with SAC in 400 steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.learners.bcell import BCell
from finflow.config import BCellConfig
from tests.agent.box_task import box_agent, box_batch, box_states, uniform_proposals

BoxTask = gym.Env[NDArray[Any], NDArray[Any]]
PENDULUM_GOAL = -200.0
PENDULUM_RANDOM_STEPS = 500
HELD_OUT_SEED = 10_000
#: Of `bcell`, for tasks of a few numbers. The target entropy is SAC's usual one, minus the dimensions of the action.
SMALL: Mapping[str, object] = {
    "hidden_dim": 64,
    "n_quantiles": 16,
    "dropped_quantiles": 1,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "alpha_lr": 3e-3,
    "alpha_init": 0.2,
    "target_entropy": 0.184,
    "tau": 0.02,
    "gamma": 0.97,
    "cql_alpha": 0.0,
}


class IdentityTask(gym.Env[NDArray[Any], NDArray[Any]]):
    """Pays 1 for an action that equals the observation, within a tolerance, and 0 for any other.

    Observations are uniform in -1..1 and have nothing to do with what was done; an episode is of 100 steps.
    """

    LENGTH = 100

    def __init__(self, tolerance: float = 0.2) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.tolerance = tolerance
        self._played = 0
        self._shown = np.zeros(1, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._played = 0
        return self._show(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Pay for an action; truncated at the end of the episode, never terminated."""
        reward = float(np.abs(action - self._shown).max() <= self.tolerance)
        self._played += 1
        return self._show(), reward, False, self._played == self.LENGTH, {}

    def _show(self) -> NDArray[np.float32]:
        """The next observation."""
        self._shown = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self._shown.copy()


def small_config(**changes: object) -> BCellConfig:
    """Settings for tasks of a few numbers."""
    return BCellConfig.model_validate({**SMALL, **changes})


def pendulum() -> BoxTask:
    """Pendulum-v1: swing up and hold; an episode is of 200 steps, and a good one returns about -150."""
    task: BoxTask = gym.make("Pendulum-v1")
    return task


class BoxUnits(NamedTuple):
    """Units in which a learner sees a task: fixed from the random steps before learning, as rewards are in a training.

    Attributes
    ----------
    centre, spread : Tensor, (D,)
        Mean and deviation of the observations.
    """

    centre: Tensor
    spread: Tensor
    reward: float

    def seen(self, observations: Tensor) -> Tensor:
        """Observations in these units."""
        return (observations - self.centre) / self.spread


class BoxReplay:
    """All transitions of one training; rows are written in order and drawn with replacement."""

    def __init__(self, capacity: int, observation_size: int, action_size: int) -> None:
        self.observations = torch.zeros(capacity, observation_size)
        self.next_observations = torch.zeros(capacity, observation_size)
        self.actions = torch.zeros(capacity, action_size)
        self.rewards = torch.zeros(capacity)
        self.terminated = torch.zeros(capacity)
        self.size = 0

    def add(
        self, observation: NDArray[Any], action: Tensor, reward: float, terminated: bool, following: NDArray[Any]
    ) -> None:
        """Keep a transition; a truncated one is not terminated."""
        row = self.size
        self.observations[row] = torch.as_tensor(observation)
        self.next_observations[row] = torch.as_tensor(following)
        self.actions[row], self.rewards[row], self.terminated[row] = action, float(reward), float(terminated)
        self.size += 1

    def units(self) -> BoxUnits:
        """Of what is kept."""
        seen, rewards = self.observations[: self.size], self.rewards[: self.size]
        return BoxUnits(seen.mean(0), seen.std(0).clamp(min=1e-3), max(float(rewards.std()), 1e-3))

    def draw(self, count: int, units: BoxUnits, noise: Generator) -> Batch:
        """Random transitions in these units."""
        rows = torch.randint(self.size, (count,), generator=noise)
        return box_batch(
            units.seen(self.observations[rows]),
            self.actions[rows],
            self.rewards[rows] / units.reward,
            self.terminated[rows],
            units.seen(self.next_observations[rows]),
        )


class BoxPlayer(NamedTuple):
    """A trained agent with the units that it sees its task in."""

    agent: BCell
    units: BoxUnits

    @torch.no_grad()
    def act(self, observation: NDArray[Any], noise: Generator | None = None) -> Tensor:
        """The centre of the policy, or a draw from it, in -1..1, (K,)."""
        states = box_states(self.units.seen(torch.as_tensor(observation, dtype=torch.float32).unsqueeze(0)))
        if noise is not None:
            return self.agent.explore(states, noise)[0]
        action: Tensor = self.agent.policy(states).distribution.centre()[0]
        return action


def learn(
    task: BoxTask,
    config: BCellConfig,
    steps: int,
    seed: int,
    batch_size: int = 256,
    random_steps: int = 100,
    watch: Callable[[int, BoxPlayer], None] | None = None,
) -> BoxPlayer:
    """Play and learn: random steps first, then one update a step.

    Parameters
    ----------
    task : gymnasium.Env
        With a Box of observations and a bounded Box of actions.
    watch : callable, optional
        Told after every step how many were made, and the player.
    """
    space = box_of(task)
    noise, size = Generator().manual_seed(seed), space.shape[0]
    observation, _ = task.reset(seed=seed)
    agent = box_agent(len(observation), size, config, noise, torch.device("cpu"))
    replay, player = BoxReplay(steps, len(observation), size), None
    for step in range(1, steps + 1):
        action = torch.rand(size, generator=noise) * 2.0 - 1.0 if player is None else player.act(observation, noise)
        following, reward, terminated, truncated, _ = task.step(rescaled(action, space))
        replay.add(observation, action, float(reward), terminated, following)
        observation = task.reset()[0] if terminated or truncated else following
        if step == random_steps:
            player = BoxPlayer(agent, replay.units())
        if player is not None:
            coverage = uniform_proposals(batch_size, config.cql_samples, size, noise) if config.cql_alpha > 0 else None
            batch = replay.draw(batch_size, player.units, noise)
            agent.update_sac(batch, coverage, noise)
            if watch is not None:
                watch(step, player)
    return player or BoxPlayer(agent, replay.units())


def returns(task: BoxTask, player: BoxPlayer, episodes: int, seed: int) -> NDArray[np.float64]:
    """Undiscounted returns of whole episodes by the centre of the policy, (episodes,)."""
    space, totals = box_of(task), np.zeros(episodes)
    for episode in range(episodes):
        observation, _ = task.reset(seed=seed + episode)
        done = False
        while not done:
            observation, reward, terminated, truncated, _ = task.step(rescaled(player.act(observation), space))
            totals[episode] += float(reward)
            done = terminated or truncated
    return totals


def box_of(task: BoxTask) -> Box:
    """The actions of a task.

    Raises
    ------
    TypeError
        If they are no bounded Box of one dimension.
    """
    space = task.action_space
    if not isinstance(space, Box) or len(space.shape) != 1 or not space.is_bounded():
        raise TypeError(f"actions must be a bounded Box of one dimension, not {space}")
    return space


def rescaled(action: Tensor, space: Box) -> NDArray[np.float32]:
    """An action in -1..1 as one of the task's."""
    middle, half = (space.high + space.low) / 2.0, (space.high - space.low) / 2.0
    inside: NDArray[np.float32] = (middle + half * action.numpy()).astype(np.float32)
    return inside
