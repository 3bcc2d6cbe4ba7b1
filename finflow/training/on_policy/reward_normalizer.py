"""Normalisation of rewards in a loop of one's own, with its settings as a value and presets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from finflow.errors import ConfigError
from finflow.training.data import rewards as reward_units


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
    shift : bool
        Whether the mean is taken off. It changes the objective where the length of an episode depends on the actions:
        of a reward that is always 1 nothing is left. Without, rewards are divided by the deviation alone.
    scale : bool
        Whether rewards are divided by the deviation.
    """

    window_size: int = 1000
    epsilon: float = 1e-8
    clip_range: tuple[float, float] = (-10.0, 10.0)
    shift: bool = True
    scale: bool = True

    def __post_init__(self) -> None:
        """Check the values."""
        if self.window_size < 2:
            raise ConfigError(f"the window of a reward normaliser holds at least 2 rewards, not {self.window_size}")
        if not 0.0 <= self.epsilon < math.inf:
            raise ConfigError(f"the epsilon of a reward normaliser is a number of at least 0, not {self.epsilon}")
        if len(self.clip_range) != 2 or not self.clip_range[0] < self.clip_range[1]:
            raise ConfigError(f"rewards are clipped to a range (least, greatest), not {self.clip_range}")

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make the settings of a preset.

        Parameters
        ----------
        name : str
            ``default``; ``stable``, 5000 rewards and +-5; ``fast``, 500 rewards and +-10; ``off``, rewards as they are,
            and their statistics alone.
        """
        if name not in _PRESETS:
            raise ConfigError(f"a reward normaliser's preset is {', '.join(_PRESETS)}, not {name!r}")
        return cls(**_PRESETS[name])


_PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "stable": {"window_size": 5000, "clip_range": (-5.0, 5.0)},
    "fast": {"window_size": 500, "clip_range": (-10.0, 10.0)},
    "off": {"shift": False, "scale": False, "clip_range": (-math.inf, math.inf)},
}


class RewardNormalizer:
    """``clip((r - mean) / (std + epsilon))`` over the last rewards, the one to normalise among them.

    A reward that is not a number is not remembered, and stays as it is.

    Parameters
    ----------
    config : RewardNormalizerConfig, optional

    Examples
    --------
    >>> normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=3))
    >>> [round(normalizer.normalize(reward), 3) for reward in (1.0, 2.0, 3.0, 4.0)]
    [0.0, 1.0, 1.225, 1.225]
    """

    def __init__(self, config: RewardNormalizerConfig | None = None) -> None:
        self.config = config or RewardNormalizerConfig()
        self._window = reward_units.RollingNormalizer(self.config.window_size, warmup=0)

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make a normaliser with the settings of a preset: ``default``, ``stable`` or ``fast``."""
        return cls(RewardNormalizerConfig.preset(name))

    def normalize(self, reward: float) -> float:
        """Remember a reward, and return it normalised."""
        return float(self.normalize_batch([reward])[0])

    def normalize_batch(self, rewards: Iterable[float] | NDArray[Any] | Tensor) -> NDArray[np.float64]:
        """Remember rewards in their order, and return all of them normalised by the window after the last.

        Parameters
        ----------
        rewards : array_like, any shape

        Returns
        -------
        array, the same shape
        """
        given = np.asarray(rewards if isinstance(rewards, np.ndarray | Tensor) else list(rewards), dtype=np.float64)
        self._window.update(given)
        statistics = self._window.get_statistics()
        mean = statistics["mean"] if self.config.shift else 0.0
        std = statistics["std"] + self.config.epsilon
        if not self.config.scale or (not self.config.shift and statistics["std"] == 0.0):
            std = 1.0  # rewards that are all the same say nothing of their scale
        with np.errstate(invalid="ignore", divide="ignore"):
            normalised: NDArray[np.float64] = np.clip((given - mean) / std, *self.config.clip_range)
        return normalised

    def get_statistics(self) -> dict[str, float]:
        """``mean`` and ``std`` of the window, ``count`` of all rewards ever seen, ``buffer_size`` of those in it."""
        return self._window.get_statistics()

    def reset(self) -> None:
        """Forget every reward."""
        self._window.reset()

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the window and the count."""
        return self._window.capture()

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore the window and the count."""
        self._window.restore(tensors, state)
