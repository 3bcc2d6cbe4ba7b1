"""Small tasks whose ends and observations are known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray


class CountingTask(gym.Env[Any, Any]):
    """Shows how many steps were taken in the episode, and which episode it is; pays 1 a step."""

    def __init__(self, length: int = 3, terminates: bool = False) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.length, self.terminates, self.episode, self.taken = length, terminates, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.episode = 0
        self.episode += 1
        self.taken = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.taken += 1
        over = self.taken == self.length
        return self._show(), 1.0, over and self.terminates, over and not self.terminates, {}

    def _show(self) -> NDArray[np.float32]:
        return np.array([self.taken, self.episode], np.float32)


class FollowTask(gym.Env[Any, Any]):
    """Costs the squared distance of the action from a target that is shown with noise; episodes are of 20 steps.

    No policy returns more than -3.6 on average: 20 steps of two dimensions with a noise of 0.3.
    """

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Dict(
            {"shown": gym.spaces.Box(-1.0, 1.0, (2,), np.float32), "age": gym.spaces.Box(0.0, 1.0, (1,), np.float32)}
        )
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._taken, self._shown = 0, np.zeros(2, np.float32)
        self.poisoned = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._taken = 0
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        target = self._shown + self.np_random.normal(0.0, 0.3, 2)
        reward = float("nan") if self.poisoned else -float(np.square(action - target).sum())
        self._taken += 1
        return self._show(), reward, False, self._taken == 20, {}

    def _show(self) -> dict[str, NDArray[np.float32]]:
        self._shown = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return {"shown": self._shown.copy(), "age": np.array([self._taken / 20], np.float32)}
