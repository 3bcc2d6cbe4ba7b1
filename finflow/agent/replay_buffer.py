"""Memory of transitions for training loops around `BCell.update_sac`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from finflow.agent.batch import Batch, States
from finflow.errors import ConfigError

NO_FAMILY = 6  # of decisions that are no behaviour family's
PARTS = ("assets", "market", "portfolio")


class ReplayBuffer:
    """The last transitions of one or several environments, drawn from uniformly.

    Parameters
    ----------
    capacity : int
        Transitions kept; the oldest go when it is full.
    reward_scale : float
        Deviation of a reward, by which rewards are divided when drawn: critics, temperature and the guard's limits are
        meant for rewards of about 1, and a day's log return is about 0.01.
    seed : int
        Of the draws.
    device : str or torch.device
        That batches are made on.

    Examples
    --------
    >>> buffer = ReplayBuffer(capacity=1000)
    >>> observation = {"assets": np.ones((2, 4)), "market": np.zeros(3), "portfolio": np.zeros(6)}
    >>> buffer.push(observation, [0.5, 0.3, 0.2], 0.01, observation, terminated=False, truncated=False)
    >>> len(buffer), buffer.sample(8).actions.shape
    (1, torch.Size([8, 3]))
    """

    def __init__(
        self, capacity: int, reward_scale: float = 1.0, seed: int = 0, device: str | torch.device = "cpu"
    ) -> None:
        if capacity < 1:
            raise ConfigError(f"the capacity of a replay buffer is at least 1 transition, not {capacity}")
        if not 0.0 < reward_scale < float("inf"):
            raise ConfigError(f"the scale of rewards is a number above 0, not {reward_scale}")
        self.capacity = capacity
        self.reward_scale = reward_scale
        self.device = torch.device(device)
        self._rng = np.random.default_rng(seed)
        self._columns: dict[str, NDArray[np.float32]] = {}
        self._written = 0

    def __len__(self) -> int:
        return min(self._written, self.capacity)

    def push(
        self,
        observation: Mapping[str, Any],
        action: ArrayLike,
        reward: ArrayLike,
        next_observation: Mapping[str, Any],
        terminated: ArrayLike,
        truncated: ArrayLike,
    ) -> None:
        """Remember one transition, or one of each portfolio of a vector environment.

        Parameters
        ----------
        observation, next_observation : mapping of arrays
            ``assets``, ``market`` and ``portfolio`` of the environment. The second is what the step led to, even
            where the episode ended there; a vector environment has it in ``info["final_obs"]`` then.
        action : array, (K,) or (N, K)
            Target weights, cash last.
        reward : float or array, (N,)
        terminated : bool or array, (N,)
            Ruin: nothing is expected beyond it.
        truncated : bool or array, (N,)
            The end of an episode by its length, beyond which values look. It changes nothing that is learned.

        Raises
        ------
        ConfigError
            If shapes differ from each other or from those pushed before.
        """
        single = np.ndim(observation["market"]) == 1
        rows = {f"now/{name}": observation[name] for name in PARTS}
        rows |= {f"next/{name}": next_observation[name] for name in PARTS}
        rows |= {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
        arrays = {name: np.asarray(value, dtype=np.float32) for name, value in rows.items()}
        arrays = {name: array[None] if single else array for name, array in arrays.items()}
        self._check(arrays)
        if not self._columns:
            shapes = {name: (self.capacity, *array.shape[1:]) for name, array in arrays.items()}
            self._columns = {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}
        count = len(arrays["reward"])
        places = (self._written + np.arange(count)) % self.capacity
        for name, array in arrays.items():
            self._columns[name][places] = array
        self._written += count

    def sample(self, n: int) -> Batch:
        """Draw n transitions with replacement, as `BCell.update_sac` takes them; a ConfigError where there are none.

        The behaviour's next action and values, which the agent's own transitions lack, are zero, or no lower bound in
        CQL.
        """
        if not len(self):
            raise ConfigError("the replay buffer is empty: push transitions before a batch is drawn")
        drawn = self._rng.integers(len(self), size=n)
        columns = {name: torch.as_tensor(column[drawn], device=self.device) for name, column in self._columns.items()}
        assets, market, portfolio = (torch.cat([columns[f"now/{name}"], columns[f"next/{name}"]]) for name in PARTS)
        rewards = columns["reward"] / self.reward_scale
        nothing = torch.zeros_like(rewards)
        return Batch(
            both=States(assets, market, portfolio, complete=bool((assets[..., -1] > 0.5).all())),
            actions=columns["action"],
            rewards=rewards,
            terminated=columns["terminated"],
            next_actions=torch.zeros_like(columns["action"]),
            families=torch.full_like(rewards, NO_FAMILY, dtype=torch.int64),
            calibrations=torch.full_like(rewards, float("-inf")),
            behaviour_returns=nothing,
        )

    def _check(self, arrays: Mapping[str, NDArray[np.float32]]) -> None:
        lengths = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
        for part in PARTS:
            if arrays[f"now/{part}"].shape != arrays[f"next/{part}"].shape:
                raise ConfigError(f"both observations have {part} of one shape")
        weights = arrays["now/assets"].shape[-2] + 1
        if len(lengths) != 1 or arrays["action"].shape[1:] != (weights,):
            raise ConfigError(
                f"an action has {weights} weights, assets and cash, and every part of a transition as many rows as the "
                f"observation; these are {arrays['action'].shape} and {sorted(lengths)}"
            )
        for name, array in arrays.items():
            if self._columns and self._columns[name].shape[1:] != array.shape[1:]:
                raise ConfigError(
                    f"{name} has the shape {array.shape[1:]}, and {self._columns[name].shape[1:]} in the transitions "
                    "before"
                )
            if len(array) > self.capacity:
                raise ConfigError(f"{len(array)} transitions at once do not fit a capacity of {self.capacity}")
