"""Rewards in units of their own recent past: opt-in, `train.reward_normalization`.

Welford's recurrence gives mean and deviation of a stream in one pass, but a window must also forget, and a downdate in
floating point is a subtraction whose error stays for good: after a million of them, at an offset of 1e8, nothing of a
deviation of 1 is left. So the window's sum and sum of squares are kept exactly. A double is an integer times a power
of two, and so are sums of doubles and of their squares: held as integers, what leaves the window is subtracted without
an error, each reward costs the same, and mean and deviation depend on what is in the window and on nothing else.

References
----------
Welford (1962), Note on a method for calculating corrected sums of squares and products.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.config import RewardNormalizationConfig

EPSILON = 1e-8
LARGEST = 1e150  # rewards beyond it, whose squares are no double, are passed over
_UNIT = 1074  # the smallest double is 2**-1074: every finite one is a whole number of these
Rewards = TypeVar("Rewards", float, NDArray[Any], Tensor)


class RewardNormalizer:
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
        """What ``normalize`` turns into a reward that it did not clip."""
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
