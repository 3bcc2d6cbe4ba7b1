"""Rewards in units of their recent past: ``(r - mean) / (std + epsilon)`` over a window of the last rewards.

A reward that enters and one that leaves move mean and squares in constant time (Welford 1962). Both are computed anew
from the window after as many rewards as it holds, and where most of the squares have left it: rounding would stay.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.arrays import FloatArray
from finflow.config import RewardNormalizationConfig
from finflow.errors import ConfigError

LARGEST = 1e150  # rewards beyond it are skipped: their squares overflow a double
DRIFT = 1e-4  # share of the largest sum of squares below which what is left of it is mostly rounding
Rewards = TypeVar("Rewards", float, NDArray[Any], Tensor)


@dataclass(frozen=True)
class RewardNormalizerConfig:
    """Settings of a reward normaliser.

    Attributes
    ----------
    window_size : int
        Rewards whose mean and deviation are taken.
    epsilon : float
        Added to the deviation.
    clip_range : tuple of float
        Least and greatest normalised reward.
    warmup : int
        Rewards stay as they are until so many were seen.
    shift : bool
        Whether the mean is subtracted. It changes the objective where the length of an episode depends on the actions:
        of a reward that is always 1 nothing is left. Without, rewards are divided by the deviation alone.
    scale : bool
        Whether rewards are divided by the deviation.
    form : str
        Of `AdvancedPPOTrainer`: ``returns``, a `ReturnScale`, or ``windowed``, a `RewardNormalizer`.
    """

    window_size: int = 1000
    epsilon: float = 1e-8
    clip_range: tuple[float, float] = (-10.0, 10.0)
    warmup: int = 30
    shift: bool = field(default=True, kw_only=True)
    scale: bool = field(default=True, kw_only=True)
    form: Literal["returns", "windowed"] = field(default="returns", kw_only=True)

    def __post_init__(self) -> None:
        if self.window_size < 2:
            raise ConfigError(f"the window of a reward normaliser holds at least 2 rewards, not {self.window_size}")
        if not 0.0 <= self.epsilon < math.inf:
            raise ConfigError(f"the epsilon of a reward normaliser is a number of at least 0, not {self.epsilon}")
        if self.warmup < 0 or self.form not in ("returns", "windowed"):
            raise ConfigError(f"warmup is at least 0, and form returns or windowed, not {self.warmup}, {self.form!r}")
        if len(self.clip_range) != 2 or not self.clip_range[0] < self.clip_range[1]:
            raise ConfigError(f"rewards are clipped to a range (least, greatest), not {self.clip_range}")

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make the settings of a preset.

        ``default``; ``stable``, 5000 rewards and +-5; ``fast``, 500 rewards and +-10; ``off``, rewards as they are, and
        their statistics alone.
        """
        if name not in _PRESETS:
            raise ConfigError(f"a reward normaliser's preset is {', '.join(_PRESETS)}, not {name!r}")
        return cls(**_PRESETS[name])


_PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "stable": {"window_size": 5000, "clip_range": (-5.0, 5.0), "form": "windowed"},
    "fast": {"window_size": 500, "clip_range": (-10.0, 10.0), "form": "windowed"},
    "off": {"shift": False, "scale": False, "clip_range": (-math.inf, math.inf), "form": "windowed"},
}


class RewardNormalizer:
    """``clip((r - mean) / (std + epsilon))`` over the last rewards.

    A reward that is not a number is not remembered, and stays as it is.

    References
    ----------
    Welford (1962), Note on a Method for Calculating Corrected Sums of Squares and Products.

    Examples
    --------
    >>> normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=3, warmup=1))
    >>> [round(normalizer.normalize(reward), 3) for reward in (1.0, 2.0, 3.0, 4.0)]
    [0.0, 1.0, 1.225, 1.225]
    """

    def __init__(self, config: RewardNormalizerConfig | None = None) -> None:
        self.config = config or RewardNormalizerConfig()
        self.reset()

    @classmethod
    def of(cls, keys: RewardNormalizationConfig) -> Self:
        clip = (-keys.clip, keys.clip)
        return cls(RewardNormalizerConfig(keys.window_size, clip_range=clip, shift=keys.shift, warmup=keys.warmup))

    def normalize(self, reward: float) -> float:
        """Remember a reward, and return it normalised."""
        return float(self.normalize_batch([reward])[0])

    def normalize_batch(self, rewards: Sequence[float] | NDArray[Any] | Tensor) -> FloatArray:
        """Remember rewards in their order, and return all of them normalised by the window after the last."""
        given = np.asarray(rewards, dtype=np.float64)
        self.update(given)
        return self.apply(given)

    def apply(self, rewards: Rewards) -> Rewards:
        """Rewards in units of the window, without remembering them; as they are during the warm-up."""
        if (units := self._units()) is None:
            return rewards
        with np.errstate(invalid="ignore", divide="ignore"):
            scaled = (rewards - units[0]) / units[1]
        if isinstance(scaled, Tensor):
            return scaled.clamp(*self.config.clip_range)
        clipped = np.clip(scaled, *self.config.clip_range)
        return clipped if isinstance(rewards, np.ndarray) else float(clipped)

    def denormalize(self, reward: float) -> float:
        """Inverse of `apply` for a reward that was not clipped."""
        units = self._units()
        return reward if units is None else reward * units[1] + units[0]

    def _units(self) -> tuple[float, float] | None:
        """Mean to subtract and number to divide by; None during the warm-up."""
        config, (mean, std) = self.config, self._statistics()
        if self._count < max(config.warmup, 1):
            return None
        nothing = std + (config.epsilon if config.shift else 0.0) == 0.0  # equal rewards have no scale
        without_scale = not config.scale or nothing
        return mean if config.shift else 0.0, 1.0 if without_scale else std + config.epsilon

    def reset(self) -> None:
        """Forget every reward."""
        self._window: deque[float] = deque(maxlen=self.config.window_size)
        self._count = self._since = 0
        self._origin = self._mean = self._squares = self._largest = 0.0  # the mean is about the origin

    def update(self, rewards: float | Iterable[float] | NDArray[Any] | Tensor) -> None:
        """Remember one reward, or several in order, and drop the oldest; NaN, infinite and absurd ones are skipped."""
        given = np.asarray(rewards, dtype=np.float64).ravel()
        for reward in given[np.abs(given) < LARGEST].tolist():
            self._remember(reward)

    def _remember(self, reward: float) -> None:
        if not self._window:
            self._origin = reward
        before, full = self._mean, len(self._window) == self.config.window_size
        new = reward - self._origin
        old = self._window[0] - self._origin if full else before
        self._window.append(reward)
        self._count += 1
        self._since += 1
        self._mean += (new - old) / len(self._window)
        self._squares += (new - old) * (new - self._mean + old - before)
        self._largest = max(self._largest, self._squares)
        if self._since >= self.config.window_size or self._squares < DRIFT * self._largest:
            self._recompute()

    def _recompute(self) -> None:
        """Mean about the oldest reward, and sum of squares, from the window; of equal rewards exactly zero."""
        self._origin = self._window[0]
        rest = np.array(self._window) - self._origin
        self._mean, self._squares = float(rest.mean()), float(np.square(rest - rest.mean()).sum())
        self._since, self._largest = 0, self._squares

    def get_statistics(self) -> dict[str, float]:
        """``mean`` and ``std`` of the window, ``count`` of all rewards ever seen, ``buffer_size`` of those in it."""
        mean, std = self._statistics()
        return {"mean": mean, "std": std, "count": self._count, "buffer_size": len(self._window)}

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        moments = [self._origin, self._mean, self._squares, self._largest]
        parts = {"window": list(self._window), "moments": moments}
        tensors = {name: torch.tensor(part, dtype=torch.float64) for name, part in parts.items()}
        return tensors, {"count": self._count, "since": self._since}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore them; of a longer window the newest rewards are taken."""
        window, moments, count, since = tensors["window"], tensors["moments"], state["count"], state["since"]
        for given in (window, moments):
            if given.ndim != 1 or given.dtype != torch.float64 or not bool(given.isfinite().all()):
                raise ValueError("the window holds no rewards")
        if type(count) is not int or type(since) is not int or not 0 <= since <= count or count < len(window):
            raise ValueError("the counts of rewards do not fit the window")
        self.reset()
        self._window.extend(window.tolist())
        self._count, self._since = count, since
        self._origin, self._mean, self._squares, self._largest = moments.tolist()
        if len(window) > self.config.window_size:
            self._recompute()

    def _statistics(self) -> tuple[float, float]:
        """Mean and population deviation of the window; both 0 where it is empty."""
        return self._origin + self._mean, math.sqrt(max(self._squares, 0.0) / max(len(self._window), 1))


class ReturnScale:
    """Scale of a task's rewards: ``clip(r / sqrt(var + epsilon))``, of the discounted returns of all episodes so far.

    The mean is not subtracted, so that a constant reward stays one.

    References
    ----------
    Raffin et al. (2021), Stable-Baselines3, ``VecNormalize``; Chan, Golub and LeVeque (1983), eq. 2.1, for the moments.
    """

    SAVED = ("count", "mean", "squares")

    def __init__(self, config: RewardNormalizerConfig) -> None:
        if (config.window_size, config.shift, config.scale) != (1000, True, True):
            raise ConfigError('window_size, shift and scale belong to the windowed form: add form="windowed"')
        self.config = config
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def normalize_batch(self, rewards: FloatArray, returns: FloatArray) -> FloatArray:
        """Remember discounted ``returns``, as many as rewards, and return the rewards in units of their deviation."""
        count, mean = self.count + returns.size, float(returns.mean())
        away = mean - self.mean
        self.squares += float(np.square(returns - mean).sum()) + away**2 * self.count * returns.size / count
        self.mean += away * returns.size / count
        self.count = count
        if count < self.config.warmup:
            return rewards
        scale = math.sqrt(self.squares / count + self.config.epsilon) or 1.0
        return np.clip(rewards / scale, *self.config.clip_range)

    def get_statistics(self) -> dict[str, float]:
        """``mean`` and ``std`` of the returns, ``count`` of all, ``buffer_size``, which is 0: none is kept."""
        std = math.sqrt(self.squares / max(self.count, 1))
        return {"mean": self.mean, "std": std, "count": self.count, "buffer_size": 0}


def task_normalizer(config: RewardNormalizerConfig | None) -> RewardNormalizer | ReturnScale:
    """Units of a task's rewards; without settings those are as they are, and have statistics alone."""
    config = config or RewardNormalizerConfig.preset("off")
    if config.form == "returns":
        return ReturnScale(config)
    if config.shift and config.scale:
        warnings.warn('form="windowed" subtracts the mean: a constant reward vanishes (shift=False)', stacklevel=3)
    return RewardNormalizer(config)
