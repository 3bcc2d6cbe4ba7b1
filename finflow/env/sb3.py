"""The vector environment as Stable-Baselines3's algorithms take it. Nothing else in finflow needs that package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

try:
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
except ImportError:
    raise ImportError("finflow.env.sb3 needs the package stable-baselines3: pip install stable-baselines3") from None

from finflow.env.vector_env import PortfolioVectorEnv

_BATCHED = {"bar": "bars", "weights": "weights"}  # options of one portfolio, and of all


class SB3VecEnv(VecEnv):
    """All portfolios of a vector environment, stepped together, behind Stable-Baselines3's interface.

    Both start a new episode in the step that ends one; they differ in the place of its last observation. Here it is
    ``infos[i]["terminal_observation"]``, and ``infos[i]["TimeLimit.truncated"]`` is True where the episode reached its
    length and was not ruined, so that its last value is bootstrapped.
    """

    def __init__(self, portfolios: PortfolioVectorEnv) -> None:
        self.portfolios = portfolios
        self._actions: Any = None
        super().__init__(portfolios.num_envs, portfolios.single_observation_space, portfolios.single_action_space)

    def reset(self) -> VecEnvObs:
        """Start every episode, once with the options of ``set_options`` and the seed of ``seed``.

        One generator draws all starts, so of the seeds that Stable-Baselines3 counts upwards the first one decides.
        """
        observation, _ = self.portfolios.reset(seed=self._seeds[0], options=_batched(self._options))
        self.reset_infos = [{} for _ in range(self.num_envs)]
        self._reset_seeds()
        self._reset_options()
        return observation

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Fill the targets and hold them for a bar."""
        observation, reward, terminated, truncated, info = self.portfolios.step(self._actions)
        last, _, _ = (info.pop(name, None) for name in ("final_obs", "_final_obs", "final_state"))
        info["TimeLimit.truncated"] = truncated
        rows = zip(*(values.tolist() for values in info.values()), strict=True)
        infos = [dict(zip(info, row, strict=True)) for row in rows]
        done = terminated | truncated
        for i in np.flatnonzero(done):
            infos[i]["terminal_observation"] = last[i]
        return observation, reward.astype(np.float32), done, infos

    def close(self) -> None:
        self.portfolios.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the vector environment, once for each portfolio."""
        return [getattr(self.portfolios, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the vector environment, which all its portfolios share."""
        if len(set(self._get_indices(indices))) < self.num_envs:
            raise ValueError(f"{attr_name} is shared by all portfolios and cannot be set for some of them")
        setattr(self.portfolios, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Refuse: the portfolios step together, so none has methods of its own."""
        raise AttributeError(f"no portfolio has a method {method_name} of its own: call SB3VecEnv.portfolios instead")

    def env_is_wrapped(self, wrapper_class: Any, indices: VecEnvIndices = None) -> list[bool]:
        """No portfolio is wrapped alone."""
        return [False for _ in self._get_indices(indices)]


def _batched(options: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Options of each portfolio as those of all of them."""
    given = {name for one in options for name in one}
    partial = sorted(name for name in given if not all(name in one for one in options))
    if partial:
        raise ValueError(f"the option {partial[0]} must be given for every portfolio or for none")
    return {_BATCHED.get(name, name): np.array([one[name] for one in options]) for name in sorted(given)}
