"""States and transitions as tensors: all that learners and networks read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


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
