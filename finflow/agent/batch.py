"""States and transitions as tensors, all that learners and networks read, and a memory of transitions for own loops."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from finflow.errors import ConfigError, refuse


class States(NamedTuple):
    """The environment's observations at a batch of decisions.

    Portfolios of one bar may share a row of the market, which is then encoded once: rows come in groups of equal size,
    row b of the portfolios in group b // (batch / groups).
    """

    assets: Tensor  # (groups, assets, F + 1): features of each asset; the last is 1 where the asset is listed
    market: Tensor  # (groups, M)
    portfolio: Tensor  # (batch, K + 3): weights, cash last, then the state of the reward
    complete: bool = False  # true where every asset is known to be listed, so that a mean over assets needs no mask

    @property
    def weights(self) -> Tensor:
        """Observed weights, (batch, K)."""
        return self.portfolio[:, : self.assets.shape[1] + 1]

    @property
    def reward_state(self) -> Tensor:
        """Observed state of the reward, (batch, 3)."""
        return self.portfolio[:, self.assets.shape[1] + 1 :]

    @property
    def listed(self) -> Tensor:
        """True for assets that may be held, bool (groups, assets)."""
        return self.assets[:, :, -1] > 0.5

    @property
    def group_size(self) -> int:
        """Portfolios that share a row of the market."""
        return len(self.portfolio) // len(self.market)

    def groups(self, start: int, stop: int) -> States:
        size = self.group_size
        portfolio = self.portfolio[start * size : stop * size]
        return States(self.assets[start:stop], self.market[start:stop], portfolio, self.complete)


OWN = 2  # place of the policy's own among a state's actions


class Choices(NamedTuple):
    """Actions of each state whose outcomes on the same prices are known: prices do not react to trades."""

    actions: Tensor  # (batch, P, K): the action of the transition first
    rewards: Tensor  # (batch, P)
    terminated: Tensor  # (batch, P)
    next_states: States  # of all actions, (batch * P, ...): the P of a state share a row of the market


class Batch(NamedTuple):
    """Transitions. Rewards are in units of the fixed scale stored with the dataset."""

    both: States  # the states, then the next states: (2 * batch, ...), in groups of one size, encoded in one call
    actions: Tensor  # (batch, K): of the transition
    rewards: Tensor  # (batch,): scaled
    terminated: Tensor  # (batch,): 1 at ruin, while truncation leaves no mark
    next_actions: Tensor  # (batch, K): the behaviour's own (offline data only)
    families: Tensor  # (batch,): index of the behaviour's family; 5 and over belong to none of the experts
    calibrations: Tensor  # (batch,): fitted value of the behaviour at the state (online only)
    behaviour_returns: Tensor  # (batch,): the behaviour's lambda-return from the state (offline data only)
    references: Tensor | None = None  # (batch,): what rewards are in excess of, where quantiles are of the whole return
    named: Tensor | None = None  # (groups, 5, K): portfolios of the families' rules, means over each one's variants
    choices: Choices | None = None  # further actions of each state (``bcell.counterfactual``), if any

    def with_reference(self, targets: Tensor) -> Tensor:
        """Add to targets (batch,) the reference that the rewards are in excess of, where there is one."""
        return targets if self.references is None else targets + self.references

    @property
    def outcomes(self) -> Choices:
        """The choices; without any, those of the transitions themselves, one a state."""
        if self.choices is not None:
            return self.choices
        return Choices(
            self.actions.unsqueeze(1), self.rewards.unsqueeze(1), self.terminated.unsqueeze(1), self.next_states
        )

    @property
    def states(self) -> States:
        return self.both.groups(0, len(self.both.market) // 2)

    @property
    def next_states(self) -> States:
        groups = len(self.both.market)
        return self.both.groups(groups // 2, groups)


def repeat_groups(rows: Tensor, states: States) -> Tensor:
    """Repeat rows of groups for each portfolio: (groups, ...) to (batch, ...)."""
    return rows if states.group_size == 1 else rows.repeat_interleave(states.group_size, dim=0)


def states_of(observation: Mapping[str, Any], device: torch.device) -> States:
    """Convert an observation of the environment, single or batched, to states."""
    batched = np.ndim(observation["market"]) == 2
    arrays = (np.asarray(observation[name], dtype=np.float32) for name in ("assets", "market", "portfolio"))
    assets, market, portfolio = (torch.as_tensor(array if batched else array[None], device=device) for array in arrays)
    return States(assets, market, portfolio, complete=bool((np.asarray(observation["assets"])[..., -1] > 0.5).all()))


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
        refuse(capacity < 1, f"the capacity of a replay buffer is at least 1 transition, not {capacity}", ConfigError)
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
        truncated: ArrayLike | None = None,
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
        truncated : bool or array, (N,), optional
            The end of an episode by its length, beyond which values look. It changes nothing that is learned. Where it
            is left out, the fifth argument is ``done``, and a warning says once that it is taken for termination.

        Raises
        ------
        ConfigError
            If shapes differ from each other or from those pushed before.
        """
        if truncated is None:
            if not self._written:
                warnings.warn("done is taken for termination: an end by length is passed as truncated", stacklevel=2)
            truncated = np.zeros_like(np.asarray(terminated))
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
        refuse(not len(self), "the replay buffer is empty: push transitions before a batch is drawn", ConfigError)
        drawn = self._rng.integers(len(self), size=n)
        columns = {name: torch.as_tensor(column[drawn], device=self.device) for name, column in self._columns.items()}
        assets, market, portfolio = (torch.cat([columns[f"now/{name}"], columns[f"next/{name}"]]) for name in PARTS)
        rewards = columns["reward"] / self.reward_scale
        return Batch(
            both=States(assets, market, portfolio, complete=bool((assets[..., -1] > 0.5).all())),
            actions=columns["action"],
            rewards=rewards,
            terminated=columns["terminated"],
            next_actions=torch.zeros_like(columns["action"]),
            families=torch.full_like(rewards, NO_FAMILY, dtype=torch.int64),
            calibrations=torch.full_like(rewards, float("-inf")),
            behaviour_returns=torch.zeros_like(rewards),
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
