"""Any gymnasium task as a vector environment with flat observations.

Vector environments begin the next episode of a finished one in the same step, in the next step, or on request. Here all
three have one interface: a step gives the observation that followed the action, even where the episode ended with it,
and the observation to decide at next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.on_policy.on_policy_settings import Observations
from finflow.errors import ConfigError
from finflow.training.on_policy.on_policy_rollouts import Outcome

Environment = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]
Floats = NDArray[np.float32]


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
        self.observations = np.zeros((self.size, self.spaces.observations), np.float32)
        self._beginning = np.zeros(self.size, np.bool_)

    def reset(self, seed: int) -> None:
        observation, _ = self.env.reset(seed=seed)
        self.observations = self._flat(observation)
        self._beginning = np.zeros(self.size, np.bool_)

    @property
    def observed(self) -> Observations:
        return (torch.tensor(self.observations),)

    def step(self, actions: Tensor) -> Outcome:
        """Take actions, (n,) or (n, d); those of a Box are clipped to its bounds."""
        observation, rewards, terminated, truncated, info = self.env.step(self.spaces.bounded(actions.numpy()))
        observations = self._flat(observation)
        ended = terminated | truncated
        following, counted = observations, np.ones(self.size, np.bool_)
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
        return Outcome(np.asarray(rewards, np.float64), (torch.tensor(following),), terminated, ended, counted)

    def _flat(self, observation: Any) -> Floats:
        return flat_observations(self.env.single_observation_space, observation, self.size)


def flat_observations(space: gym.Space[Any], observation: Any, size: int) -> Floats:
    """Observations of a batch as rows of numbers, in the order of ``gymnasium.spaces.flatten``."""
    if isinstance(space, gym.spaces.Box):
        return np.asarray(observation, np.float32).reshape(size, -1)
    if isinstance(space, gym.spaces.Dict) and all(isinstance(one, gym.spaces.Box) for one in space.values()):
        return np.concatenate([np.asarray(observation[name], np.float32).reshape(size, -1) for name in space], axis=1)
    rows = gym.vector.utils.iterate(gym.vector.utils.batch_space(space, size), observation)
    return np.stack([np.asarray(gym.spaces.flatten(space, row), np.float32) for row in rows])
