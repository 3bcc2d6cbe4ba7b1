"""The checkpoints of one run: best, latest and the newest numbered ones, each one file, each written whole."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from finflow.errors import OutputError
from finflow.tensor_file import write_tensors

BEST, LATEST, PRETRAINED = "checkpoint_best", "checkpoint_latest", "checkpoint_pretrained"
SUFFIX = ".safetensors"
MODELS = "models"


@dataclass(frozen=True)
class CheckpointFolder:
    """Writes and finds the checkpoints of a run, in its ``models`` folder.

    The newest ``max_checkpoints`` numbered ones stay.
    """

    folder: Path
    max_checkpoints: int = 5
    save_best: bool = True
    save_latest: bool = True

    def save(self, update: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write a checkpoint as the latest and under its number, then drop the oldest numbered ones."""
        names = ([LATEST] if self.save_latest else []) + ([numbered(update)] if self.max_checkpoints else [])
        self._write(names, tensors, state)
        for path in self.numbered()[self.max_checkpoints :]:
            with suppress(OSError):  # an extra checkpoint does no harm
                path.unlink(missing_ok=True)

    def save_as(self, name: str, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write a checkpoint under a name of its own; the best only where the run keeps one."""
        if name != BEST or self.save_best:
            self._write([name], tensors, state)

    def sweep(self) -> None:
        """Remove what a killed process left of a file that it was writing."""
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)

    def numbered(self) -> list[Path]:
        """Numbered checkpoints, the newest first."""
        return sorted(self.folder.glob(f"checkpoint_[0-9]*{SUFFIX}"), reverse=True)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}{SUFFIX}"

    def _write(self, names: list[str], tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Write one file under several names: the others are hard links to it, or copies where there are none."""
        if not names:
            return
        first = self.path(names[0])
        write_tensors(first, tensors, state)
        for name in names[1:]:
            temporary = self.folder / f".{name}.{os.getpid()}.tmp"
            try:
                temporary.unlink(missing_ok=True)
                os.link(first, temporary)
                os.replace(temporary, self.path(name))
            except OSError:  # a file system without hard links
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
                write_tensors(self.path(name), tensors, state)


Snapshot = tuple[Mapping[str, Tensor], Mapping[str, Any]]


class CheckpointWriter:
    """Writes the checkpoints of a run that goes on learning where one of them cannot be written.

    A failure is announced, and what was to be written under a name of its own is kept for the next attempt. The latest
    is not written before that: so it never speaks of a best checkpoint that is not on the disk.

    ``say``: takes each announcement, one line. ``make_durable``: has on the disk what checkpoints refer to; called
    before each of them is written.

    Attributes
    ----------
    failure : str or None
        Why the newest checkpoint is not on the disk.
    """

    def __init__(self, folder: CheckpointFolder, say: Callable[[str], None], make_durable: Callable[[], None]) -> None:
        self.folder = folder
        self._make_durable = make_durable
        self.failure: str | None = None
        self._say = say
        self._waiting: dict[str, Snapshot] = {}
        self._written: int | None = None

    def save(self, update: int, snapshot: Callable[[], Snapshot]) -> None:
        """Write what waits, then the latest and a numbered checkpoint."""
        try:
            self._make_durable()
            for name in list(self._waiting):
                self.folder.save_as(name, *self._waiting[name])
                del self._waiting[name]
            self.folder.save(update, *snapshot())
        except OutputError as error:
            self._announce(str(error))
            return
        if self.failure is not None:
            self._say(f"checkpoints can be written again: that of update {update} is on the disk")
        self.failure, self._written = None, update

    def save_as(self, name: str, snapshot: Snapshot) -> None:
        """Write a checkpoint under a name of its own, or keep it for the next attempt."""
        self._waiting.pop(name, None)
        try:
            self._make_durable()
            self.folder.save_as(name, *snapshot)
        except OutputError as error:
            self._waiting[name] = snapshot
            self._announce(str(error))

    def require_written(self) -> None:
        """Raise an OutputError where the last attempt to write failed."""
        if self.failure is not None:
            raise OutputError(f"the end of this run could not be written: {self.failure}{self._held()}")

    def _announce(self, problem: str) -> None:
        self.failure = problem
        self._say(f"{problem}{self._held()}; training goes on, and the next checkpoint tries again")

    def _held(self) -> str:
        return "" if self._written is None else f" (the newest on the disk is that of update {self._written})"


def numbered(update: int) -> str:
    """Name of the checkpoint of an update; names sort as numbers do."""
    return f"checkpoint_{update:09d}"
