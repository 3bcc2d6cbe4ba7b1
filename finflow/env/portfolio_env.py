"""One portfolio as a gymnasium environment, over the same decision process as the vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.vector_env import PortfolioVectorEnv, check_options


class PortfolioEnv(gym.Env[dict[str, Any], NDArray[Any]]):
    """One portfolio, one episode at a time; parameters as of `PortfolioVectorEnv`."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self,
        process: DecisionProcess,
        window: range | Sequence[range],
        episode_length: int | None = None,
        random_portfolios: bool = False,
    ) -> None:
        self._portfolios = PortfolioVectorEnv(process, window, 1, episode_length, random_portfolios)
        self._ended = True
        self.observation_space = self._portfolios.single_observation_space
        self.action_space = self._portfolios.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; ``options`` may give ``bar`` and ``weights`` (K,)."""
        super().reset(seed=seed)
        self._ended = False
        options = check_options(options, ("bar", "weights"))
        batched: dict[str, Any] = {}
        if "bar" in options:
            batched["bars"] = np.array([options["bar"]])
        if "weights" in options:
            batched["weights"] = np.asarray(options["weights"], dtype=np.float64)[None]
        self._portfolios._np_random = self.np_random
        observation, _ = self._portfolios.reset(options=batched)
        return _first(observation), {"sharpe": 0.0, "wealth": float(self._portfolios.state.wealth[0])}

    def step(self, action: NDArray[Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Fill a target and hold it for a bar; ``info`` is that of ``PortfolioVectorEnv``, as plain numbers."""
        if self._ended:
            raise gym.error.ResetNeeded("the episode has ended: call reset() before step()")
        observation, reward, terminated, truncated, info = self._portfolios.step(np.asarray(action)[None])
        self._ended = bool(terminated[0] or truncated[0])
        last = info.pop("final_obs", [_first(observation)])[0]
        info.pop("_final_obs", None)
        info.pop("final_state", None)
        facts = {name: value[0].item() for name, value in info.items()}
        return last, float(reward[0]), bool(terminated[0]), bool(truncated[0]), facts


def _first(observation: dict[str, Any]) -> dict[str, Any]:
    return {name: value[0] for name, value in observation.items()}
