"""The guard's own state in a training: a field of the state that it guards, saved and resumed with it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

from torch import Tensor

from finflow.config import GuardConfig
from finflow.guard.rollback import RollbackManager
from finflow.guard.stability import StabilityMonitor


class Watch:
    """Monitor, snapshots, and what was measured since the last look.

    Parameters
    ----------
    config : GuardConfig
    gamma : float

    Attributes
    ----------
    block : dict of list
        Losses and rewards since the last look.
    score : float or None
        The last validation value, which tells the best snapshot.
    pending : list of dict
        Alarms that the next update answers.
    """

    def __init__(self, config: GuardConfig, gamma: float) -> None:
        self.enabled = config.enabled
        self.monitor = StabilityMonitor(config.stability, gamma)
        self.manager = RollbackManager(config.rollback)
        self.block: dict[str, list[float]] = {}
        self.score: float | None = None
        self.pending: list[dict[str, Any]] = []

    def note(self, name: str, value: float) -> None:
        """Remember a figure until the next look."""
        self.block.setdefault(name, []).append(value)

    def collect(self) -> dict[str, float]:
        """Medians of losses and the mean of rewards since the last look; begins anew."""
        found = {name: fmean(kept) if name == "reward" else median(kept) for name, kept in self.block.items() if kept}
        self.block = {}
        return found

    def capture(self) -> tuple[dict[str, Tensor], Any]:
        """All of it; nothing where the guard is off."""
        if not self.enabled:
            return {}, None
        tensors, manager = self.manager.capture()
        return tensors, {
            "monitor": self.monitor.state(),
            "manager": manager,
            "block": {name: list(values) for name, values in self.block.items()},
            "score": self.score,
            "pending": list(self.pending),
        }

    def restore(self, tensors: Mapping[str, Tensor], state: Any) -> None:
        """Go on from it; from nothing where the guard is off, or was."""
        if not self.enabled or state is None:
            return
        self.monitor.load(state["monitor"])
        self.manager.restore(tensors, state["manager"])
        self.block = {name: list(values) for name, values in state["block"].items()}
        self.score, self.pending = state["score"], list(state["pending"])
