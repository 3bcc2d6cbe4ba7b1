"""Schedule of the entropy coefficient, with its settings as a value of their own and presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from finflow.errors import ConfigError
from finflow.training.phases.schedules import EntropySchedule


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
    decay_share : float or None
        Share of a training that the decay takes (0.5 to 0.8 is usual): `over` then sets the steps. 100,000 steps reach
        nowhere in a run of 15,750 updates.
    """

    initial_entropy: float = 0.01
    final_entropy: float = 0.001
    decay_steps: int = 100_000
    schedule_type: Literal["linear", "cosine", "exponential"] = "linear"
    decay_share: float | None = None

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make the settings of a preset: ``default``, ``fast`` or ``stable``.

        Raises
        ------
        ConfigError
            For another name.
        """
        if name not in _PRESETS:
            raise ConfigError(f"an entropy schedule's preset is {', '.join(_PRESETS)}, not {name!r}")
        return cls(**_PRESETS[name])

    def over(self, steps: int) -> Self:
        """The settings for a training of so many steps: the same, where no share of it is given."""
        if self.decay_share is None:
            return self
        if not 0.0 < self.decay_share <= 1.0:
            raise ConfigError(f"the share of the training for the entropy's decay is in 0..1, not {self.decay_share}")
        length = max(round(self.decay_share * steps), 1)
        return type(self)(self.initial_entropy, self.final_entropy, length, self.schedule_type, self.decay_share)


_PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "fast": {"initial_entropy": 0.02, "final_entropy": 0.0001, "decay_steps": 50_000, "schedule_type": "exponential"},
    "stable": {"initial_entropy": 0.01, "final_entropy": 0.005, "decay_steps": 150_000, "schedule_type": "cosine"},
}


class EntropyScheduler(EntropySchedule):
    """Schedule of the entropy coefficient: `step`, `get_info` and `reset`.

    Parameters
    ----------
    config : EntropyScheduleConfig, optional

    Raises
    ------
    ConfigError
        For settings that make no schedule.

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
        settings = self.config
        try:
            super().__init__(
                settings.schedule_type, settings.initial_entropy, settings.final_entropy, settings.decay_steps
            )
        except (ValueError, TypeError) as error:
            raise ConfigError(f"the entropy schedule cannot be: {error}") from None

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make a scheduler with the settings of a preset: ``default``, ``fast`` or ``stable``."""
        return cls(EntropyScheduleConfig.preset(name))

    def advance(self, steps: int) -> float:
        """Take several steps; returns the coefficient from then on."""
        self.taken += steps
        return self.value
