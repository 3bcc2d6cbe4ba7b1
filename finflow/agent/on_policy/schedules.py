"""Schedules of coefficients, which count their own steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Self

from finflow.config import EntropyAnnealing, TargetEntropyAnnealing
from finflow.errors import ConfigError

KINDS = ("linear", "cosine", "exponential")


@dataclass(frozen=True)
class EntropyScheduleConfig:
    """Settings of an entropy schedule; a ConfigError for those that make none.

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

    def __post_init__(self) -> None:
        if self.schedule_type not in KINDS:
            raise ConfigError(f"an entropy schedule is linear, cosine or exponential, not {self.schedule_type!r}")
        ends = (self.initial_entropy, self.final_entropy)
        if not all(0.0 < end < math.inf for end in ends) or self.decay_steps < 1:
            raise ConfigError("an entropy schedule goes between positive values, in at least one step")

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make the settings of a preset: ``default``, ``fast`` or ``stable``; raises ConfigError for another name."""
        if name not in _PRESETS:
            raise ConfigError(f"an entropy schedule's preset is {', '.join(_PRESETS)}, not {name!r}")
        return cls(*_PRESETS[name])


_PRESETS: dict[str, tuple[Any, ...]] = {
    "default": (),
    "fast": (0.02, 0.0001, 50_000, "exponential"),
    "stable": (0.01, 0.005, 150_000, "cosine"),
}


class EntropyScheduler:
    """Schedule of the entropy coefficient or of the target entropy.

    Examples
    --------
    >>> scheduler = EntropyScheduler(EntropyScheduleConfig(decay_steps=9))
    >>> scheduler.step()
    0.009000000000000001
    >>> scheduler.get_info()["remaining_steps"]
    8
    """

    def __init__(self, config: EntropyScheduleConfig | None = None) -> None:
        self.config = config or EntropyScheduleConfig()
        self.taken = 0

    @classmethod
    def of(cls, keys: EntropyAnnealing | TargetEntropyAnnealing, total: int) -> Self:
        """The schedule of a section of the configuration; over ``total`` updates, those of the phase, by default."""
        return cls(EntropyScheduleConfig(keys.initial, keys.final, keys.steps or max(total, 1), keys.kind))

    @property
    def _progress(self) -> float:
        return self.taken / self.config.decay_steps

    @property
    def value(self) -> float:
        """Current value at progress ``p = t/T``, held at the final one after the last step.

        Linear ``i - (i - f) p``; cosine ``f + (i - f) (1 + cos(pi p)) / 2``; exponential ``i exp(ln(f/i) p)``.
        """
        kind, progress = self.config.schedule_type, self._progress
        initial, final = self.config.initial_entropy, self.config.final_entropy
        if progress >= 1.0:
            return final
        if kind == "linear":
            return initial - (initial - final) * progress
        if kind == "cosine":
            return final + (initial - final) * (1.0 + math.cos(math.pi * progress)) / 2.0
        return initial * math.exp(math.log(final / initial) * progress)

    def step(self, steps: int = 1) -> float:
        """Take one step, or several; returns the coefficient from then on."""
        self.taken += steps
        return self.value

    def get_info(self) -> dict[str, float]:
        """``progress`` in 0..1, ``current_entropy`` (the coefficient) and ``remaining_steps``."""
        return {
            "progress": min(self._progress, 1.0),
            "current_entropy": self.value,
            "remaining_steps": max(self.config.decay_steps - self.taken, 0),
        }

    def reset(self) -> None:
        """Return to the beginning."""
        self.taken = 0
