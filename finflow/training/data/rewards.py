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
from finflow.training.data.reward_constraint import RewardConstraint
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
    growth : Tensor or None, (bars, assets)
        Where episodes have some of the assets alone, and the reference is of these: what each asset grows over the bar
        after a decision, and not a number where it is not listed at its end.
    members : Tensor or None, (pool, n)
        Assets of each sub-universe.
    whole_spread : bool
        Whether the spread that critics learn is of the whole reward, reference included, as risk measures need it.
    reference_weight : float
        Factor of the log return in the reward.
    other_reference : Tensor or None, (bars,)
        Where episodes have some of the assets alone: the part of the reference that comes from other rewards than the
        built-in one, over all assets.
    constraint : RewardConstraint or None
        Where one reward has a limit, once the online phase has begun.
    """

    scale: float
    reference: Tensor
    normalizer: RollingNormalizer | None = None
    growth: Tensor | None = None
    members: Tensor | None = None
    whole_spread: bool = False
    reference_weight: float = 1.0
    other_reference: Tensor | None = None
    constraint: RewardConstraint | None = None

    @classmethod
    def of(cls, process: DecisionProcess, scale: float, reference: str, device: torch.device) -> RewardUnits:
        """The units of a process, for ``train.reward_reference``.

        Of a chosen reward the reference is what holding equal weight is rewarded with, without a trade.

        Ruin ends the rewards of a portfolio, but not those of the reference: the shortfall after ruin is left out.
        """
        fill = process.env.fill
        earned = np.zeros(len(process.growth))
        weight = 1.0 if process.reward is None else process.reward.log_return_weight
        if reference != "equal-weight":
            return cls(scale, torch.from_numpy(earned).float().to(device))
        earned[:-1] = process.of_panels(lambda panel: equal_weight_log_returns(panel, fill))[1:]
        other_reference = None if process.reward is None else equal_weight_rewards(process)
        if other_reference is not None:
            earned = weight * earned + other_reference
        units = cls(scale, torch.from_numpy(earned).float().to(device), reference_weight=weight)
        if process.members is None or weight == 0.0:
            return units
        growth = np.full(process.listed.shape, np.nan)
        listed = process.of_panels(lambda panel: panel.listed)
        growth[:-1] = np.where(listed[1:], process.growth[1:, :-1], np.nan)
        members = torch.from_numpy(process.members).to(device)
        kept = None if other_reference is None else torch.from_numpy(other_reference).float().to(device)
        return units._replace(growth=torch.from_numpy(growth).float().to(device), members=members, other_reference=kept)

    def earned(self, bars: Tensor, universe: Tensor | None = None) -> Tensor:
        """Reward of the reference for decisions at ``bars``, (batch,): of the episode's own assets."""
        if universe is None or self.growth is None or self.members is None:
            return self.reference[bars]
        inside = self.growth[bars.unsqueeze(1), self.members[universe]]
        known = inside.isfinite()
        count = known.sum(dim=1)
        mean = inside.nan_to_num(nan=0.0).sum(dim=1) / count.clamp(min=1)
        earned = self.reference_weight * torch.where(count > 0, mean, torch.ones_like(mean)).log()
        return earned if self.other_reference is None else earned + self.other_reference[bars]

    def scaled(
        self, rewards: Tensor, bars: Tensor, universe: Tensor | None = None, constrained: Tensor | None = None
    ) -> Tensor:
        """Raw rewards of decisions at ``bars``, each (batch,), in these units, with the reward that has a limit."""
        excess = rewards - self.earned(bars, universe)
        if self.constraint is not None and constrained is not None:
            excess = self.constraint.combined(excess, constrained)
        scaled = excess / self.scale
        return scaled if self.normalizer is None else self.normalizer.normalize(scaled)

    def unscaled(self, reward: float) -> float:
        """A reward in these units, in excess of the reference, as a daily log return; clipping cannot be undone."""
        return self.scale * (reward if self.normalizer is None else self.normalizer.denormalize(reward))

    def references(self, bars: Tensor, universe: Tensor | None = None) -> Tensor | None:
        """Scaled reference of decisions at ``bars``, (batch,); None where spreads are without it."""
        return self.earned(bars, universe) / self.scale if self.whole_spread else None

    def remember(
        self,
        rewards: NDArray[np.float64],
        bars: NDArray[np.integer[Any]],
        universe: NDArray[np.integer[Any]] | None = None,
    ) -> None:
        """Update the normaliser with raw rewards of decisions at ``bars``, each (n,)."""
        if self.normalizer is not None:
            places = torch.as_tensor(bars, dtype=torch.int64, device=self.reference.device)
            drawn = None
            if universe is not None:
                drawn = torch.as_tensor(universe, dtype=torch.int64, device=self.reference.device)
            earned = self.earned(places, drawn)
            self.normalizer.update((rewards - earned.double().cpu().numpy()) / self.scale)
