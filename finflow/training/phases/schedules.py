"""Schedules of coefficients: pure formulas, and a schedule that counts its own steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from torch import Tensor

from finflow import config as sections
from finflow.errors import ConfigError


def scheduled(kind: str, initial: float, final: float, progress: float) -> float:
    """Value of a schedule at progress ``p = t/T``, held at ``final`` after the last step.

    Linear ``i - (i - f) p``; cosine ``f + (i - f) (1 + cos(pi p)) / 2``; exponential ``i exp(ln(f/i) p)``.
    """
    if progress >= 1.0:
        return final
    if kind == "linear":
        return initial - (initial - final) * progress
    if kind == "cosine":
        return final + (initial - final) * (1.0 + math.cos(math.pi * progress)) / 2.0
    return initial * math.exp(math.log(final / initial) * progress)


def between(start: float, end: float, progress: float) -> float:
    """Linear from ``start`` at progress 0 to ``end`` at progress 1."""
    return start + (end - start) * min(max(progress, 0.0), 1.0)


@dataclass(frozen=True)
class EntropyScheduleConfig:
    """Settings of an entropy schedule.

    Attributes
    ----------
    initial_entropy, final_entropy : float
        Coefficient at the beginning and at the end, above 0.
    decay_steps : int
        Steps from the one to the other. A step is a gradient update where finflow trains.
    schedule_type : str
        ``linear``, ``cosine`` or ``exponential``.
    """

    initial_entropy: float = 0.01
    final_entropy: float = 0.001
    decay_steps: int = 100_000
    schedule_type: Literal["linear", "cosine", "exponential"] = "linear"

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make the settings of a preset: ``default``, ``fast`` or ``stable``; raises ConfigError for another name."""
        if name not in _PRESETS:
            raise ConfigError(f"an entropy schedule's preset is {', '.join(_PRESETS)}, not {name!r}")
        return cls(**_PRESETS[name])


_PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "fast": {"initial_entropy": 0.02, "final_entropy": 0.0001, "decay_steps": 50_000, "schedule_type": "exponential"},
    "stable": {"initial_entropy": 0.01, "final_entropy": 0.005, "decay_steps": 150_000, "schedule_type": "cosine"},
}


class EntropyScheduler:
    """Schedule of the entropy coefficient or of the target entropy.

    Raises ConfigError for settings that make no schedule.

    Examples
    --------
    >>> scheduler = EntropyScheduler(EntropyScheduleConfig(decay_steps=9))
    >>> scheduler.step()
    0.009000000000000001
    >>> scheduler.get_info()["remaining_steps"]
    8
    """

    def __init__(self, config: EntropyScheduleConfig | None = None) -> None:
        self.config = settings = config or EntropyScheduleConfig()
        self.kind, self.steps = settings.schedule_type, settings.decay_steps
        self.initial, self.final = settings.initial_entropy, settings.final_entropy
        self.taken = 0
        if self.kind not in ("linear", "cosine", "exponential"):
            raise ConfigError(f"an entropy schedule is linear, cosine or exponential, not {self.kind!r}")
        if not (0.0 < self.initial < math.inf and 0.0 < self.final < math.inf and self.steps >= 1):
            raise ConfigError("an entropy schedule goes between positive values, in at least one step")

    @classmethod
    def of(cls, keys: sections.EntropyScheduleConfig | sections.TargetEntropyScheduleConfig, total: int) -> Self:
        """The schedule of a section of the configuration; over ``total`` updates, those of the phase, by default."""
        return cls(EntropyScheduleConfig(keys.initial, keys.final, keys.steps or max(total, 1), keys.kind))

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make a scheduler with the settings of a preset: ``default``, ``fast`` or ``stable``."""
        return cls(EntropyScheduleConfig.preset(name))

    @property
    def value(self) -> float:
        """Current coefficient."""
        return scheduled(self.kind, self.initial, self.final, self.taken / self.steps)

    def step(self) -> float:
        """Take one step; returns the coefficient from then on."""
        return self.advance(1)

    def advance(self, steps: int) -> float:
        """Take several steps; returns the coefficient from then on."""
        self.taken += steps
        return self.value

    def get_info(self) -> dict[str, float]:
        """``progress`` in 0..1, ``current_entropy`` (the coefficient) and ``remaining_steps``."""
        return {
            "progress": min(self.taken / self.steps, 1.0),
            "current_entropy": self.value,
            "remaining_steps": max(self.steps - self.taken, 0),
        }

    def reset(self) -> None:
        """Return to the beginning."""
        self.taken = 0

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the steps taken; the rest is configuration."""
        return {}, {"taken": self.taken}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore the steps taken."""
        taken = state["taken"]
        if type(taken) is not int or taken < 0:
            raise ValueError("the steps taken are no count")
        self.taken = taken
