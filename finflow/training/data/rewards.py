"""Units that learners see rewards in: in excess of a reference, over one fixed scale; normalised if asked for.

Portfolios of one bar meet the same market, and most of what they earn in it is no merit of theirs. The reference is
what equal weight earned over the same bar: no action changes it, so that taking it away changes no comparison between
actions and no best policy, and takes most of the noise out of what critics learn from.

`train.reward_normalization` puts rewards in units of their own recent past.

Welford's recurrence gives mean and deviation of a stream in one pass, but a window must also forget, and a downdate in
floating point is a subtraction whose error stays for good: after a million of them, at an offset of 1e8, nothing of a
deviation of 1 is left. So the window's sum and sum of squares are kept exactly. A double is an integer times a power
of two, and so are sums of doubles and of their squares: held as integers, what leaves the window is subtracted without
an error, each reward costs the same, and mean and deviation depend on what is in the window and on nothing else.

References
----------
Dietterich, Trimponias and Chen (2018), Discovering and Removing Exogenous State Variables and Rewards for
Reinforcement Learning, theorem 1.
Welford (1962), Note on a method for calculating corrected sums of squares and products.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.config import RewardNormalizationConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_log_returns
from finflow.training.data.reward_choice import equal_weight_rewards
from finflow.training.data.reward_constraint import RewardConstraint

EPSILON = 1e-8
LARGEST = 1e150  # rewards beyond it, whose squares are no double, are passed over
_UNIT = 1074  # the smallest double is 2**-1074: every finite one is a whole number of these
Rewards = TypeVar("Rewards", float, NDArray[Any], Tensor)


class RollingNormalizer:
    """``(r - mean) / (std + 1e-8)`` over the last rewards, clipped.

    Parameters
    ----------
    window_size : int
        Rewards remembered.
    clip : float
        Normalised rewards lie in (-clip, clip).
    warmup : int
        Nothing is normalised before so many rewards were seen.
    shift : bool
        Whether the mean is taken off; without, rewards are scaled alone, which leaves the objective what it was.
    """

    def __init__(self, window_size: int = 1000, clip: float = 10.0, warmup: int = 100, shift: bool = True) -> None:
        if window_size < 2 or not clip > 0.0 or warmup < 0:
            raise ValueError("a window has room for two rewards, clipping a positive limit, and a warm-up a length")
        self.window_size = window_size
        self.clip = clip
        self.warmup = warmup
        self.shift = shift
        self.reset()

    @classmethod
    def of(cls, keys: RewardNormalizationConfig) -> Self:
        """The normaliser of a section of the configuration."""
        return cls(keys.window_size, keys.clip, keys.warmup, keys.shift)

    def reset(self) -> None:
        """Forget every reward."""
        self._window: deque[int] = deque()  # in units of 2**-1074
        self._sum = self._squares = self._count = 0
        self._moments: tuple[float, float] | None = None

    def update(self, rewards: float | Iterable[float] | NDArray[Any] | Tensor) -> None:
        """Remember one reward, or several in their order; the oldest leave. Not a number, or absurd, is passed over."""
        for reward in np.asarray(rewards, dtype=np.float64).ravel().tolist():
            if not abs(reward) < LARGEST:
                continue
            numerator, denominator = reward.as_integer_ratio()
            units = numerator << (_UNIT + 1 - denominator.bit_length())
            self._window.append(units)
            self._sum += units
            self._squares += units * units
            self._count += 1
            if len(self._window) > self.window_size:
                gone = self._window.popleft()
                self._sum -= gone
                self._squares -= gone * gone
        self._moments = None

    def normalize(self, rewards: Rewards) -> Rewards:
        """One reward, or an array or tensor of them, in units of the window; as they are during the warm-up.

        What is not a number stays so, for whoever watches over learning.
        """
        if self._count < max(self.warmup, 1):
            return rewards
        mean, std = self._statistics()
        scaled = (rewards - (mean if self.shift else 0.0)) / (std + EPSILON)
        if isinstance(scaled, Tensor):
            return scaled.clamp(-self.clip, self.clip)
        clipped = np.clip(scaled, -self.clip, self.clip)
        return clipped if isinstance(rewards, np.ndarray) else float(clipped)

    def denormalize(self, reward: float) -> float:
        """Inverse of ``normalize`` for a reward that was not clipped."""
        if self._count < max(self.warmup, 1):
            return reward
        mean, std = self._statistics()
        return reward * (std + EPSILON) + (mean if self.shift else 0.0)

    def get_statistics(self) -> dict[str, float]:
        """``mean`` and ``std`` of the window, ``count`` of all rewards ever seen, ``buffer_size`` of those in it."""
        mean, std = self._statistics()
        return {"mean": mean, "std": std, "count": self._count, "buffer_size": len(self._window)}

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The window and the count."""
        window = torch.tensor([_value(units) for units in self._window], dtype=torch.float64)
        return {"window": window}, {"count": self._count}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from there; of a longer window the newest rewards are taken."""
        window, count = tensors["window"], state["count"]
        if window.ndim != 1 or window.dtype != torch.float64 or not bool(window.isfinite().all()):
            raise ValueError("the window holds no rewards")
        if type(count) is not int or count < len(window):
            raise ValueError("the count of rewards is none")
        self.reset()
        self.update(window[-self.window_size :])
        self._count = count

    def _statistics(self) -> tuple[float, float]:
        """Mean and population deviation of the window, each rounded once; computed when they are asked for."""
        if self._moments is None:
            size = len(self._window)
            if size == 0:
                return 0.0, 0.0
            spread = (size * self._squares - self._sum * self._sum) / (size * size << 2 * _UNIT)  # rounded once
            self._moments = _value(self._sum, size), math.sqrt(spread)
        return self._moments


def _value(units: int, divisor: int = 1) -> float:
    """The double that is nearest to so many units over a divisor."""
    return units / (divisor << _UNIT)


class RewardUnits(NamedTuple):
    """Conversion of raw rewards into those that learners see.

    Attributes
    ----------
    scale : float
        The deviation of the behaviour's rewards, stored with the dataset.
    reference : Tensor, (bars,)
        Taken from the reward of a decision at each bar; zeros where there is no reference.
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
    beside : Tensor or None, (bars,)
        Where episodes have some of the assets alone: the reference of rewards other than the built-in one, of all.
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
    beside: Tensor | None = None
    constraint: RewardConstraint | None = None

    @classmethod
    def of(cls, process: DecisionProcess, scale: float, reference: str, device: torch.device) -> RewardUnits:
        """The units of a process, for ``train.reward_reference``.

        Of a chosen reward the reference is what holding equal weight is rewarded with, without a trade.

        Ruin ends the rewards of a portfolio, but not those of the reference: that a ruined one should also fall behind
        for ever is left out of account. It has lost nearly everything in one step as it is.
        """
        fill = process.env.fill
        earned = np.zeros(len(process.growth))
        weight = 1.0 if process.reward is None else process.reward.log_return_weight
        if reference != "equal-weight":
            return cls(scale, torch.from_numpy(earned).float().to(device))
        earned[:-1] = process.of_panels(lambda panel: equal_weight_log_returns(panel, fill))[1:]
        beside = None if process.reward is None else equal_weight_rewards(process)
        if beside is not None:
            earned = weight * earned + beside
        units = cls(scale, torch.from_numpy(earned).float().to(device), reference_weight=weight)
        if process.members is None or weight == 0.0:
            return units
        growth = np.full(process.listed.shape, np.nan)
        listed = process.of_panels(lambda panel: panel.listed)
        growth[:-1] = np.where(listed[1:], process.growth[1:, :-1], np.nan)
        members = torch.from_numpy(process.members).to(device)
        kept = None if beside is None else torch.from_numpy(beside).float().to(device)
        return units._replace(growth=torch.from_numpy(growth).float().to(device), members=members, beside=kept)

    def earned(self, bars: Tensor, universe: Tensor | None = None) -> Tensor:
        """Reward of the reference for decisions at ``bars``, (batch,): of the episode's own assets."""
        if universe is None or self.growth is None or self.members is None:
            return self.reference[bars]
        inside = self.growth[bars.unsqueeze(1), self.members[universe]]
        known = inside.isfinite()
        count = known.sum(dim=1)
        mean = inside.nan_to_num(nan=0.0).sum(dim=1) / count.clamp(min=1)
        earned = self.reference_weight * torch.where(count > 0, mean, torch.ones_like(mean)).log()
        return earned if self.beside is None else earned + self.beside[bars]

    def scaled(
        self, rewards: Tensor, bars: Tensor, universe: Tensor | None = None, constrained: Tensor | None = None
    ) -> Tensor:
        """Raw rewards of decisions at ``bars``, each (batch,), in these units, with the reward that has a limit."""
        excess = rewards - self.earned(bars, universe)
        if self.constraint is not None and constrained is not None:
            excess = self.constraint.combined(excess, constrained)
        found = excess / self.scale
        return found if self.normalizer is None else self.normalizer.normalize(found)

    def unscaled(self, reward: float) -> float:
        """A reward in these units, in excess of the reference, as a daily log return; clipping cannot be undone."""
        return self.scale * (reward if self.normalizer is None else self.normalizer.denormalize(reward))

    def references(self, bars: Tensor, universe: Tensor | None = None) -> Tensor | None:
        """Amount taken from the rewards of decisions at ``bars``, (batch,), scaled; None where spreads go without."""
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
