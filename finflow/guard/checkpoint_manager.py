"""Checkpoints and rollback for a user's training loop over any torch modules.

Snapshots are kept in memory for a rollback, and written to a folder as safetensors with a JSON state inside,
atomically; nothing is ever unpickled.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finflow.config import RollbackConfig
from finflow.errors import CheckpointError
from finflow.guard.checkpoint_folder import BEST, CheckpointFolder, capture, restore
from finflow.guard.rollback import RollbackManager
from finflow.tensor_file import read_tensors


@dataclass(frozen=True)
class CheckpointMetrics:
    """Figures of a training at one check; those that are None are not compared.

    Attributes
    ----------
    loss : float
        Compared with its recent values.
    reward : float
        Chooses the best checkpoint.
    kl : float, optional
        Of the policy from the one before, nats per free dimension of the action.
    """

    loss: float
    reward: float
    kl: float | None = None
    entropy: float | None = None
    value_loss: float | None = None
    policy_loss: float | None = None
    explained_variance: float | None = None


@dataclass
class _Loop:
    network: nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Any


class CheckpointManager:
    """Checkpoints of a training loop, and rollback to one of them.

    Parameters
    ----------
    config : RollbackConfig, optional
        Interval, thresholds and mode; ``strict`` thresholds by default. ``RollbackConfig(preset="conservative",
        mode="strict")`` has other values.
    folder : str or Path, optional
        Where checkpoints are written; in memory alone where it is None.

    Examples
    --------
    >>> manager = CheckpointManager(folder=None)
    >>> network = nn.Linear(2, 1)
    >>> manager.save_checkpoint(0, network, None, None, CheckpointMetrics(loss=1.0, reward=3.0))
    >>> manager.should_rollback(CheckpointMetrics(loss=float("nan"), reward=3.0))
    (True, 'the loss is not a finite number')
    >>> manager.rollback(network, None, None)
    0
    """

    SAVED = ("manager", "last_saved", "step")

    def __init__(self, config: RollbackConfig | None = None, folder: str | Path | None = "checkpoints") -> None:
        given = config or RollbackConfig(mode="strict")
        self.manager = RollbackManager(given.model_copy(update={"probation": 0}))
        self.folder = None if folder is None else CheckpointFolder(Path(folder), given.max_checkpoints)
        self.last_saved: int | None = None
        self.step = 0
        self.config = self.manager.config

    @property
    def suspicious(self) -> bool:
        """True while a signal is beyond its limit, and a second check has not confirmed it."""
        return any(self.manager.triggers.suspects.values())

    def should_save_checkpoint(self, step: int) -> bool:
        """Return True where a checkpoint is due: once in each interval, and not while a signal is beyond its limit."""
        self.step = step
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
        """Keep the state of a loop as a checkpoint.

        Parameters
        ----------
        scheduler : object, optional
            With ``state_dict`` and ``load_state_dict``, or ``capture`` and ``restore``.

        Raises
        ------
        OutputError
            If the folder cannot be written; the checkpoint is then kept in memory.
        """
        self.save_state(step, *capture(_Loop(network, optimizer, scheduler)), metrics)

    def save_state(
        self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], metrics: CheckpointMetrics
    ) -> None:
        """Keep a captured state as a checkpoint; the best and the latest are separate files."""
        self.step = self.last_saved = step
        score = metrics.reward if math.isfinite(metrics.reward) else None
        self.manager.save(step, tensors, state, score)
        self.manager.advance(step, alarmed=False)
        first = self.manager.snapshots[0]
        if self.manager.best is None and first.score is not None:  # healthy from the beginning, so it never becomes it
            self.manager.best = first
        if self.folder is None:
            return
        known = {name: value for name, value in asdict(metrics).items() if value is not None and math.isfinite(value)}
        content = {"step": step, "metrics": known, "state": state}
        self.folder.save(step, tensors, content)
        if self.manager.best is not None and self.manager.best.update == step:
            self.folder.save_as(BEST, tensors, content)

    def should_rollback(self, metrics: CheckpointMetrics) -> tuple[bool, str]:
        """Compare the figures of a check with their past and the thresholds.

        Returns
        -------
        should : bool
        reason : str
            Empty where there is none.
        """
        for name, value in asdict(metrics).items():
            if value is not None and not math.isfinite(value):
                return True, f"the {name.replace('_', ' ')} is not a finite number"
        return self.manager.should_rollback(metrics.loss, metrics.reward, metrics.kl, metrics.policy_loss)

    def rollback(self, network: nn.Module, optimizer: torch.optim.Optimizer | None, scheduler: Any) -> int:
        """Restore the last checkpoint, or at a retry an older one; returns its step.

        Raises
        ------
        CheckpointError
            If there is none, or it does not fit.
        """
        step, tensors, state = self.rollback_state()
        restore(_Loop(network, optimizer, scheduler), tensors, state)
        return step

    def rollback_state(self) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
        """Step, tensors and state of the checkpoint to roll back to; counts as a rollback."""
        if self.manager.last_healthy is None:
            raise CheckpointError("there is no checkpoint to go back to: save one before the loop begins")
        snapshot = self.manager.take(self.step)
        self.last_saved = snapshot.update
        return snapshot.update, snapshot.tensors, snapshot.state

    def load_best_checkpoint(
        self, network: nn.Module, optimizer: torch.optim.Optimizer | None = None, scheduler: Any = None
    ) -> int:
        """Restore the checkpoint with the highest reward, from memory or else from the folder; returns its step.

        Parameters
        ----------
        optimizer, scheduler : optional
            As saved; those that are not given are left as they are.

        Raises
        ------
        CheckpointError
            If there is none, or it does not fit.
        """
        best = self.manager.best
        if best is not None:
            step, tensors, state = best.update, best.tensors, best.state
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


def read_loop_state(path: Path) -> tuple[int, dict[str, Tensor], dict[str, Any]]:
    """Step, tensors and state of a checkpoint file.

    Raises
    ------
    CheckpointError
        If it is missing, damaged, or not of a training loop.
    """
    tensors, content = read_tensors(path)
    step, state = content.get("step"), content.get("state")
    if type(step) is not int or not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a checkpoint of a training loop; its state has no step")
    return step, tensors, state
