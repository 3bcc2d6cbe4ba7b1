"""Units of the learners' rewards: in excess of a reference, over one fixed scale; normalised on request.

Portfolios of one bar share the return of the market. The reference is the return of equal weight over the same bar: no
action changes it, so subtracting it changes no comparison between actions and no best policy, and removes most of the
noise from the critics' targets.

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

from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_log_returns
from finflow.training.data.reward_choice import equal_weight_rewards
from finflow.training.data.reward_normalizer import RollingNormalizer


class RewardUnits(NamedTuple):
    """Conversion of raw rewards into those that learners see.

    Attributes
    ----------
    scale : float
        The deviation of the behaviour's rewards, stored with the dataset.
    reference : Tensor, (bars,)
        Subtracted from the reward of a decision at each bar; zeros where there is no reference.
    normalizer : RollingNormalizer or None
        With ``train.reward_normalization``.
    whole_spread : bool
        Whether the spread that critics learn is of the whole reward, reference included, as risk measures need it.
    """

    scale: float
    reference: Tensor
    normalizer: RollingNormalizer | None = None
    whole_spread: bool = False

    @classmethod
    def of(cls, process: DecisionProcess, scale: float, reference: str, device: torch.device) -> RewardUnits:
        """The units of a process, for ``train.reward_reference``.

        Of a chosen reward the reference is what holding equal weight is rewarded with, without a trade.

        Ruin ends the rewards of a portfolio, but not those of the reference: the shortfall after ruin is left out.
        """
        earned = np.zeros(len(process.growth))
        if reference == "equal-weight":
            earned[:-1] = equal_weight_log_returns(process.panel, process.env.fill)[1:]
            if process.reward is not None:
                earned = process.reward.log_return_weight * earned + equal_weight_rewards(process)
        return cls(scale, torch.from_numpy(earned).float().to(device))

    def scaled(self, rewards: Tensor, bars: Tensor) -> Tensor:
        """Raw rewards of decisions at ``bars``, each (batch,), in these units."""
        scaled = (rewards - self.reference[bars]) / self.scale
        return scaled if self.normalizer is None else self.normalizer.normalize(scaled)

    def unscaled(self, reward: float) -> float:
        """A reward in these units, in excess of the reference, as a daily log return; clipping cannot be undone."""
        return self.scale * (reward if self.normalizer is None else self.normalizer.denormalize(reward))

    def references(self, bars: Tensor) -> Tensor | None:
        """Scaled reference of decisions at ``bars``, (batch,); None where spreads are without it."""
        return self.reference[bars] / self.scale if self.whole_spread else None

    def remember(self, rewards: NDArray[np.float64], bars: NDArray[np.integer[Any]]) -> None:
        """Update the normaliser with raw rewards of decisions at ``bars``, each (n,)."""
        if self.normalizer is not None:
            places = torch.as_tensor(bars, dtype=torch.int64, device=self.reference.device)
            self.normalizer.update((rewards - self.reference[places].double().cpu().numpy()) / self.scale)
