"""Any gymnasium task as a vector environment with flat observations, and rollouts of a policy in it.

Vector environments begin the next episode of a finished one in the same step, in the next step, or on request. Here all
three have one interface: a step gives the observation that followed the action, even where the episode ended with it,
and the observation to decide at next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.on_policy.on_policy_losses import generalised_advantages
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings, Rollout
from finflow.agent.on_policy.task_policies import TaskActorCritic
from finflow.errors import ConfigError

Environment = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
RewardUnit = Callable[[NDArray[np.float64]], NDArray[np.float64]]


@dataclass(frozen=True)
class TaskSpaces:
    """Sizes of a task."""

    observations: int  # numbers in one observation, all parts of it one after the other
    actions: int  # actions of a Discrete space, or dimensions of a Box
    kind: Literal["discrete", "box"]
    low: NDArray[Any] | None = None
    high: NDArray[Any] | None = None
    first: int = 0  # the first action of a Discrete space

    @classmethod
    def of(cls, env: VectorEnv[Any, Any, Any]) -> TaskSpaces:
        """Read the spaces of one of the environments.

        Raises ConfigError for an action space that is neither Discrete nor Box, or observations that are no numbers.
        """
        try:
            observations = gym.spaces.flatdim(env.single_observation_space)
        except (NotImplementedError, ValueError):
            kind = type(env.single_observation_space).__name__
            raise ConfigError(f"observations of the kind {kind} cannot be made a vector of numbers") from None
        actions = env.single_action_space
        if isinstance(actions, gym.spaces.Discrete):
            return cls(observations, int(actions.n), "discrete", first=int(actions.start))
        if isinstance(actions, gym.spaces.Box) and len(actions.shape) == 1:
            return cls(observations, actions.shape[0], "box", actions.low, actions.high)
        raise ConfigError(f"the action space is {actions}, and has to be Discrete or a Box of one dimension")

    def bounded(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions of a policy, (n,) or (n, d), as the environment takes them."""
        if self.kind == "discrete":
            return actions + self.first if self.first else actions
        clipped: NDArray[Any] = np.clip(actions, self.low, self.high)
        return clipped


class TaskStep(NamedTuple):
    """One step of all environments."""

    rewards: NDArray[np.float64]  # (n,)
    following: Floats  # (n, observations): what followed the actions; where an episode ended, its last observation
    terminated: Flags  # (n,): ended for good
    ended: Flags  # (n,): ended at all
    counted: Flags  # (n,): false where the environment only began an episode, and took no action


class VectorTask:
    def __init__(self, env: Environment) -> None:
        self.given = env
        if isinstance(env, gym.Env):
            self.env: VectorEnv[Any, Any, Any] = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
        elif isinstance(env, VectorEnv):
            self.env = env
        else:
            raise ConfigError(f"an environment is a gymnasium Env or VectorEnv, not {type(env).__name__}")
        self.spaces = TaskSpaces.of(self.env)
        self.size = self.env.num_envs
        mode = self.env.metadata.get("autoreset_mode") or AutoresetMode.NEXT_STEP
        self.mode = AutoresetMode(mode)
        self._plain = isinstance(self.env.single_observation_space, gym.spaces.Box)
        self.observations = np.zeros((self.size, self.spaces.observations), np.float32)
        self._beginning = np.zeros(self.size, np.bool_)
        self._all = np.ones(self.size, np.bool_)

    def reset(self, seed: int) -> None:
        observation, _ = self.env.reset(seed=seed)
        self.observations = self._flat(observation)
        self._beginning = np.zeros(self.size, np.bool_)

    def step(self, actions: NDArray[Any]) -> TaskStep:
        """Take actions, (n,) or (n, d); those of a Box are clipped to its bounds."""
        observation, rewards, terminated, truncated, info = self.env.step(self.spaces.bounded(actions))
        observations = self._flat(observation)
        ended = terminated | truncated
        following, counted = observations, self._all
        if self.mode == AutoresetMode.NEXT_STEP:
            counted = ~self._beginning
            self._beginning = ended
        elif ended.any():
            if self.mode == AutoresetMode.SAME_STEP:
                following = observations.copy()
                space = self.env.single_observation_space
                last = [gym.spaces.flatten(space, one) for one in info["final_obs"][ended]]
                following[ended] = np.stack([np.asarray(one, np.float32) for one in last])
            else:
                observation, _ = self.env.reset(options={"reset_mask": ended})
                observations = self._flat(observation)
        self.observations = observations
        return TaskStep(np.asarray(rewards, np.float64), following, terminated, ended, counted)

    def _flat(self, observation: Any) -> Floats:
        if self._plain:
            return np.asarray(observation, np.float32).reshape(self.size, -1)
        return flat_observations(self.env.single_observation_space, observation, self.size)


def flat_observations(space: gym.Space[Any], observation: Any, size: int) -> Floats:
    """Observations of a batch as rows of numbers, in the order of ``gymnasium.spaces.flatten``."""
    if isinstance(space, gym.spaces.Dict) and all(isinstance(one, gym.spaces.Box) for one in space.values()):
        return np.concatenate([np.asarray(observation[name], np.float32).reshape(size, -1) for name in space], axis=1)
    rows = gym.vector.utils.iterate(gym.vector.utils.batch_space(space, size), observation)
    return np.stack([np.asarray(gym.spaces.flatten(space, row), np.float32) for row in rows])


class Trajectories(NamedTuple):
    """Steps of all environments."""

    observations: Tensor  # (steps + 1, n, observations): to decide at; the last ones have no decision yet
    actions: Tensor  # (steps, n, d): without the d in a Discrete space
    rewards: NDArray[np.float64]  # (steps, n): as the task gave them
    terminated: NDArray[np.bool_]  # (steps, n)
    ended: NDArray[np.bool_]  # (steps, n)
    counted: NDArray[np.bool_]  # (steps, n)
    last: Tensor  # (ends, observations): last observations of ended episodes, in the order of ``ended``'s entries

    @property
    def finite(self) -> bool:
        """True where all rewards and observations are numbers."""
        return bool(np.isfinite(self.rewards).all() and self.observations.isfinite().all())


@torch.inference_mode()
def collect_steps(task: VectorTask, agent: TaskActorCritic, steps: int, generator: Generator) -> Trajectories:
    """Take so many steps in all environments by actions drawn from a policy.

    A step computes the action alone: densities and values are computed in whole batches afterwards.
    """
    observations = torch.empty(steps + 1, task.size, task.spaces.observations)
    discrete = task.spaces.kind == "discrete"
    shape = (steps, task.size) if discrete else (steps, task.size, task.spaces.actions)
    actions = torch.empty(shape, dtype=torch.int64 if discrete else torch.float32)
    rewards = np.empty((steps, task.size))
    terminated, ended, counted = np.empty((3, steps, task.size), np.bool_)
    last = []
    for step in range(steps):
        now = observations[step]
        now.copy_(torch.from_numpy(task.observations))
        drawn = agent.distribution((now,)).sample(generator)
        actions[step] = drawn
        result = task.step(drawn.numpy())
        rewards[step], terminated[step] = result.rewards, result.terminated
        ended[step], counted[step] = result.ended, result.counted
        if result.ended.any():
            last.append(torch.from_numpy(result.following[result.ended]))
    observations[steps].copy_(torch.from_numpy(task.observations))
    finals = torch.cat(last) if last else observations[0, :0]
    return Trajectories(observations, actions, rewards, terminated, ended, counted, finals)


@torch.no_grad()
def rollout_of(
    trajectories: Trajectories, agent: TaskActorCritic, settings: OnPolicySettings, unit: RewardUnit
) -> Rollout:
    """Estimate advantages and returns of trajectories, with rewards in the learner's unit.

    ``settings``: with a value coefficient of 0 there is no value function: values are 0, also where an episode was cut.
    ``unit``: maps the rewards of all decisions, (decisions,), to those that are learned from.
    """
    steps, environments = trajectories.rewards.shape
    observations = trajectories.observations.clone()  # out of inference mode
    rewards = np.zeros((steps, environments))
    rewards[trajectories.counted] = unit(trajectories.rewards[trajectories.counted])
    ended, terminated = torch.from_numpy(trajectories.ended), torch.from_numpy(trajectories.terminated)
    values = torch.zeros(steps + 1, environments)
    following = values[1:]
    if settings.value_coefficient > 0.0:
        values = agent.value((observations,))
        following = values[1:].clone()
        if len(trajectories.last):
            following[ended] = agent.value((trajectories.last.clone(),))
    advantages = generalised_advantages(
        torch.from_numpy(rewards).float(),
        values[:-1],
        following,
        terminated.float(),
        ended.float(),
        settings.gamma,
        settings.gae_lambda,
    )
    chosen = torch.from_numpy(trajectories.counted)
    seen, actions = (observations[:-1][chosen],), trajectories.actions.clone()[chosen]
    log_prob = agent.distribution(seen).log_prob(actions)
    advantages, values = advantages[chosen], values[:-1][chosen]
    return Rollout(seen, actions, log_prob, values, advantages, advantages + values)


def ended_returns(trajectories: Trajectories, running: NDArray[np.float64]) -> list[float]:
    """Undiscounted returns of the episodes that ended.

    ``running`` (n,): returns so far of the running episodes; changed in place.
    """
    returns: list[float] = []
    for rewards, ended in zip(trajectories.rewards, trajectories.ended, strict=True):
        running += rewards
        if ended.any():
            returns += running[ended].tolist()
            running[ended] = 0.0
    return returns
