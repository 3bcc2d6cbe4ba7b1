"""Schedules of coefficients: pure formulas, and a schedule that counts its own steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol, Self

from torch import Tensor


class ScheduleKeys(Protocol):
    """A section of the configuration that describes a schedule."""

    @property
    def kind(self) -> str:
        """linear, cosine or exponential."""
        ...

    @property
    def initial(self) -> float:
        """Value before the first step."""
        ...

    @property
    def final(self) -> float:
        """Value after the last one."""
        ...

    @property
    def steps(self) -> int:
        """T."""
        ...


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


class EntropySchedule:
    """Schedule of the entropy coefficient or of the target entropy.

    Parameters
    ----------
    kind : str
        ``linear``, ``cosine`` or ``exponential``.
    initial, final : float
        Positive.
    steps : int
        T, from ``initial`` to ``final``.

    Examples
    --------
    >>> schedule = EntropySchedule("linear", 0.01, 0.001, steps=9)
    >>> schedule.step()
    0.009
    >>> schedule.get_info()["remaining_steps"]
    8
    """

    def __init__(self, kind: str, initial: float, final: float, steps: int) -> None:
        if kind not in ("linear", "cosine", "exponential"):
            raise ValueError(f"a schedule is linear, cosine or exponential, not {kind!r}")
        if not (0.0 < initial < math.inf and 0.0 < final < math.inf and steps >= 1):
            raise ValueError("a schedule goes between positive values, in at least one step")
        self.kind = kind
        self.initial = initial
        self.final = final
        self.steps = steps
        self.taken = 0

    @classmethod
    def of(cls, keys: ScheduleKeys) -> Self:
        """The schedule of a section of the configuration."""
        return cls(keys.kind, keys.initial, keys.final, keys.steps)

    @property
    def value(self) -> float:
        """Current coefficient."""
        return scheduled(self.kind, self.initial, self.final, self.taken / self.steps)

    def step(self) -> float:
        """Take one step; returns the coefficient from then on."""
        self.taken += 1
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
