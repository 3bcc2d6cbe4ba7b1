"""The units that learners see rewards in: in excess of a reference, over one fixed scale.

Portfolios of one bar meet the same market, and most of what they earn in it is no merit of theirs. The reference is
what equal weight earned over the same bar: no action changes it, so that taking it away changes no comparison between
actions and no best policy, and takes most of the noise out of what critics learn from.

References
----------
Dietterich, Trimponias and Chen (2018), Discovering and Removing Exogenous State Variables and Rewards for
Reinforcement Learning, theorem 1.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.env.decision import DecisionProcess, equal_weight_log_returns
from finflow.training.normalization import RewardNormalizer


class RewardUnits(NamedTuple):
    """What turns raw rewards into those that learners see.

    Attributes
    ----------
    scale : float
        The deviation of the behaviour's rewards, stored with the dataset.
    reference : Tensor, (bars,)
        Taken from the reward of a decision at each bar; zeros where there is no reference.
    normalizer : RewardNormalizer or None
        With ``train.reward_normalization``.
    whole_spread : bool
        Whether the spread that critics learn is of the whole reward, reference included, as risk measures need it.
    """

    scale: float
    reference: Tensor
    normalizer: RewardNormalizer | None = None
    whole_spread: bool = False

    @classmethod
    def of(cls, process: DecisionProcess, scale: float, reference: str, device: torch.device) -> RewardUnits:
        """The units of a process, for ``train.reward_reference``.

        Ruin ends the rewards of a portfolio, but not those of the reference: that a ruined one should also fall behind
        for ever is left out of account. It has lost nearly everything in one step as it is.
        """
        earned = np.zeros(process.panel.n_bars)
        if reference == "equal-weight":
            earned[:-1] = equal_weight_log_returns(process.panel, process.env.fill)[1:]
        return cls(scale, torch.from_numpy(earned).float().to(device))

    def scaled(self, rewards: Tensor, bars: Tensor) -> Tensor:
        """Raw rewards of decisions at ``bars``, each (batch,), in these units."""
        found = (rewards - self.reference[bars]) / self.scale
        return found if self.normalizer is None else self.normalizer.normalize(found)

    def references(self, bars: Tensor) -> Tensor | None:
        """What is taken from the rewards of decisions at ``bars``, (batch,), scaled; None where spreads go without."""
        return self.reference[bars] / self.scale if self.whole_spread else None

    def remember(self, rewards: NDArray[np.float64], bars: NDArray[np.integer[Any]]) -> None:
        """Have the normaliser see raw rewards of decisions at ``bars``, each (n,)."""
        if self.normalizer is not None:
            earned = self.reference[torch.as_tensor(bars, dtype=torch.int64, device=self.reference.device)]
            self.normalizer.update((rewards - earned.double().cpu().numpy()) / self.scale)
