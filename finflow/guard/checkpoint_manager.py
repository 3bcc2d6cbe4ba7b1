"""Checkpoints and rollback for a user's training loop over any torch modules.

A checkpoint is provisional until a later check finds nothing wrong, so that a loop may save first and check then.
Snapshots are kept in memory for a rollback, and written to a folder, atomically; nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finflow.errors import CheckpointError, ConfigError
from finflow.guard.checkpoint_folder import BEST, LATEST, CheckpointFolder, capture, numbered, restore
from finflow.guard.checkpoint_settings import CheckpointConfig, CheckpointMetrics, renamed
from finflow.guard.rollback import RollbackManager, Snapshot
from finflow.tensor_file import read_tensors

UNLIMITED = 1_000_000  # files are removed with the checkpoints in memory
State = tuple[int, dict[str, Tensor], dict[str, Any]]
"""Step, tensors and state of a checkpoint."""


@dataclass
class _Loop:
    network: nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Any


@renamed(folder="CheckpointManager(CheckpointConfig(checkpoint_dir=...))")
class CheckpointManager:
    """Checkpoints of a training loop, and rollback to the newest healthy one.

    A checkpoint is provisional until a later `should_rollback` has answered False, and is discarded, with its files,
    where it answers True. The first one is healthy at once, unless its own figures are at fault. In a loop that never
    checks, each is taken for the best by its reward alone. ``last_reason`` is that of the last rollback.

    Examples
    --------
    >>> manager = CheckpointManager(CheckpointConfig(checkpoint_dir=None))
    >>> network, figures = nn.Linear(2, 1), {"kl_divergence": 0.01, "mean_reward": 3.0, "explained_variance": 0.5}
    >>> manager.save_checkpoint(0, network, None, None, CheckpointMetrics(0, 0.0, 0.1, 0.9, **figures))
    >>> should, reason = manager.should_rollback(CheckpointMetrics(1, 1.0, float("nan"), 0.9, **figures))
    >>> reason, manager.rollback(network, None, None, reason=reason)
    ('the policy loss is not a finite number', 0)
    """

    SAVED = ("manager", "last_saved", "checked", "confirmed", "failed", "last_reason")

    def __init__(self, config: CheckpointConfig) -> None:
        if not isinstance(config, CheckpointConfig):
            raise ConfigError(f"a manager takes CheckpointConfig(checkpoint_dir, ...), not {type(config).__name__}")
        self.config, folder = config, config.checkpoint_dir
        self.manager = RollbackManager(config.keys)
        self.folder = None if folder is None else CheckpointFolder(Path(folder), max_checkpoints=UNLIMITED)
        self.last_saved: int | None = None
        self.failed: int | None = None  # step of the check that failed last
        self.checked, self.confirmed, self.last_reason = False, True, ""

    @property
    def suspicious(self) -> bool:
        """True while a signal is beyond its limit, and a second check has not confirmed it."""
        return any(self.manager.triggers.suspects.values())

    def should_save_checkpoint(self, step: int) -> bool:
        """Return True where a checkpoint is due: once in each interval, and not while a signal is beyond its limit."""
        if self.suspicious:
            return False
        interval = self.config.save_interval
        return step % interval == 0 if self.last_saved is None else step // interval > self.last_saved // interval

    def save_checkpoint(
        self,
        step: int,
        network: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        scheduler: Any,
        metrics: CheckpointMetrics,
    ) -> None:
        """Keep the state of a loop as a checkpoint; one with weights that are not finite is not kept.

        ``scheduler``, where there is one, has ``state_dict`` and ``load_state_dict``, or ``capture`` and ``restore``.
        Raises OutputError if the folder cannot be written; the checkpoint is then kept in memory.
        """
        masks = {f"network/{name}" for name, buffer in network.named_buffers() if not bool(buffer.isnan().any())}
        self.save_state(step, *capture(_Loop(network, optimizer, scheduler)), metrics, masks)

    def save_state(
        self,
        step: int,
        tensors: dict[str, Tensor],
        state: dict[str, Any],
        metrics: CheckpointMetrics,
        masks: Collection[str] = (),
    ) -> None:
        """Keep a captured state as a checkpoint, of which only ``masks`` may be infinite."""
        if not all(name in masks or bool(tensor.isfinite().all()) for name, tensor in tensors.items()):
            return
        known = {name: value for name, value in asdict(metrics).items() if value is not None and math.isfinite(value)}
        content, before = {"step": step, "metrics": known, "state": state}, list(self.manager.snapshots)
        self.manager.save(step, tensors, content, known.get("mean_reward"))
        self.last_saved, newest = step, self.manager.snapshots[-1]
        newest.healthy = newest.healthy and not metrics.fault(self.config.rollback_on_kl_threshold)
        if newest.healthy or not self.checked:
            self.manager.prefer(newest)
        if self.folder is not None:
            self.folder.save(step, tensors, content)
        self._remove(before)
        if self._best is newest:
            self._write(BEST, newest)

    def should_rollback(self, metrics: CheckpointMetrics) -> tuple[bool, str]:
        """Compare the figures of a step with their past and the thresholds; returns the answer, and its reason."""
        reason = metrics.fault()
        if not reason:
            _, reason = self.manager.should_rollback(metrics.loss, metrics.mean_reward, metrics.kl_divergence)
        self.checked = True
        if reason:
            self.failed = metrics.step
            self._drop([one for one in self.manager.snapshots if not one.healthy])
        elif not self.suspicious:
            self.confirm()
        return bool(reason), reason

    def confirm(self) -> None:
        """Take all checkpoints for healthy: nothing is wrong after the last of them."""
        best, before = self._best, list(self.manager.snapshots)
        self.confirmed, self.failed = True, None
        self.manager.confirm()
        self._remove(before)
        if self._best is not best:
            self._write(BEST, self._best)

    def rollback(
        self, network: nn.Module, optimizer: torch.optim.Optimizer | None, scheduler: Any, reason: str = ""
    ) -> int:
        """Restore the newest healthy checkpoint, or an older one where no check has passed since; returns its step.

        Raises CheckpointError if there is none, or it does not fit.
        """
        step, tensors, state = self.rollback_state(reason, older=not self.confirmed)
        restore(_Loop(network, optimizer, scheduler), tensors, state)
        return step

    def rollback_state(self, reason: str, older: bool) -> State:
        """The checkpoint to roll back to: an ``older`` one, or the newest; counts as a rollback."""
        if self.manager.last_healthy is None:
            raise CheckpointError("there is no healthy checkpoint to go back to: save one with finite weights first")
        before = list(self.manager.snapshots)
        snapshot = self.manager.take(before[-1].update if self.failed is None else self.failed, older)
        self._drop([one for one in before if not any(one is kept for kept in self.manager.snapshots)])
        self.last_saved, self.confirmed, self.last_reason = snapshot.update, False, reason
        return snapshot.update, snapshot.tensors, snapshot.state["state"]

    def load_best_checkpoint(
        self, network: nn.Module, optimizer: torch.optim.Optimizer | None = None, scheduler: Any = None
    ) -> int:
        """Restore the checkpoint with the highest reward, from memory or else from the folder; returns its step.

        An optimizer or scheduler that is not given is left as it is. Raises CheckpointError if there is none, or it
        does not fit.
        """
        if (best := self._best) is not None:
            step, tensors, state = best.update, best.tensors, best.state["state"]
        elif self.folder is not None and self.folder.path(BEST).is_file():
            step, tensors, state = read_loop_state(self.folder.path(BEST))
        else:
            raise CheckpointError("there is no best checkpoint: none was saved with a reward")
        modules = _Loop(network, optimizer, scheduler)
        absent = [name for name in ("optimizer", "scheduler") if getattr(modules, name) is None]
        restore(modules, tensors, state, begin_afresh=absent)
        return step

    def get_statistics(self) -> dict[str, float | int | None]:
        """Number of checkpoints in memory, the best among them, and the rollbacks so far."""
        return self.manager.get_statistics()

    @property
    def _best(self) -> Snapshot | None:
        best = self.manager.best
        return None if best is None or best.score is None else best

    def _drop(self, gone: list[Snapshot]) -> None:
        """Discard checkpoints, and their files; the latest is then the newest of those that stay."""
        best = self._best
        self.manager.forget(gone)
        if not gone:
            return
        self._remove(gone)
        self._write(LATEST, self.manager.snapshots[-1] if self.manager.snapshots else None)
        if self._best is not best:
            self._write(BEST, self._best)

    def _remove(self, before: list[Snapshot]) -> None:
        """Remove the numbered files of those that are not kept any more."""
        kept = {one.update: one for one in self.manager.snapshots}
        for one in before if self.folder is not None else ():
            if kept.get(one.update) is not one:
                self._write(numbered(one.update), kept.get(one.update))

    def _write(self, name: str, one: Snapshot | None) -> None:
        """Write a checkpoint under a name of its own, or remove that file where there is none."""
        if self.folder is not None and one is not None:
            self.folder.save_as(name, one.tensors, one.state)
        elif self.folder is not None:
            self.folder.path(name).unlink(missing_ok=True)


def read_loop_state(path: Path) -> State:
    """Read a checkpoint file; a CheckpointError if it is missing, damaged, or not of a training loop."""
    tensors, content = read_tensors(path)
    step, state = content.get("step"), content.get("state")
    if type(step) is not int or not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a checkpoint of a training loop; its state has no step")
    return step, tensors, state
