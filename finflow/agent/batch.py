"""What the learners read: tensors, and nothing that knows where they came from."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class States(NamedTuple):
    """What is known at a decision; the tensors of the environment's observation.

    Attributes
    ----------
    assets : Tensor, (batch, assets, F + 1)
        Features of each asset; the last is 1 where the asset is listed.
    market : Tensor, (batch, M)
    portfolio : Tensor, (batch, K + 3)
        Weights, cash last, then the state of the reward.
    complete : bool
        Whether every asset is known to be listed in all of the states, so that a mean over assets needs no mask.
    """

    assets: Tensor
    market: Tensor
    portfolio: Tensor
    complete: bool = False

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
        """Which assets may be held, bool (batch, assets)."""
        return self.assets[:, :, -1] > 0.5

    def rows(self, start: int, stop: int) -> States:
        """Some of the states, as views."""
        return States(self.assets[start:stop], self.market[start:stop], self.portfolio[start:stop], self.complete)


class Batch(NamedTuple):
    """Transitions. Rewards are in units of the fixed scale stored with the dataset.

    Attributes
    ----------
    both : States
        The states, then the next states: (2 * batch, ...), encoded in one call.
    actions : Tensor, (batch, K)
    rewards : Tensor, (batch,)
    terminated : Tensor, (batch,)
        1 at ruin; truncation is not termination and leaves no mark here.
    next_actions : Tensor, (batch, K)
        The behaviour's own next decision (offline data only).
    families : Tensor, (batch,)
        Index of the behaviour's family; 5 and over belong to none of the experts.
    calibrations : Tensor, (batch,)
        Fitted value of the behaviour at the state.
    """

    both: States
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    next_actions: Tensor
    families: Tensor
    calibrations: Tensor

    @property
    def states(self) -> States:
        """The states, (batch, ...)."""
        return self.both.rows(0, len(self.rewards))

    @property
    def next_states(self) -> States:
        """The next states, (batch, ...)."""
        return self.both.rows(len(self.rewards), 2 * len(self.rewards))
