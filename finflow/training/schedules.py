"""Coefficients that change as training goes on, as pure functions of the update."""

from __future__ import annotations

import math

from finflow.config import EntropyScheduleConfig


def entropy_coefficient(schedule: EntropyScheduleConfig, update: int) -> float:
    """Entropy coefficient at an update, held at its final value after the last step.

    Linear ``i - (i - f) t/T``; cosine ``f + (i - f) (1 + cos(pi t/T)) / 2``; exponential ``i exp(ln(f/i) t/T)``.
    """
    initial, final = schedule.initial, schedule.final
    progress = min(update / schedule.steps, 1.0)
    if schedule.kind == "linear":
        return initial - (initial - final) * progress
    if schedule.kind == "cosine":
        return final + (initial - final) * (1.0 + math.cos(math.pi * progress)) / 2.0
    return initial * math.exp(math.log(final / initial) * progress)


def between(start: float, end: float, progress: float) -> float:
    """Linear from ``start`` at progress 0 to ``end`` at progress 1."""
    return start + (end - start) * min(max(progress, 0.0), 1.0)
