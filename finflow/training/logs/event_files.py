"""TensorBoard event files of a run, and the interface of whatever else follows a run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from finflow.errors import OutputError
from finflow.guard.signals import LEVELS

Value = float | int | str | bool | None
Hyperparameters = Mapping[str, float | int | str]


class Tracker(Protocol):
    """Receives what a run logs: TensorBoard's event files, or a service."""

    def add(self, step: int, phase: str, row: Mapping[str, Value]) -> None:
        """The numbers of a row of metrics, each as a curve ``phase/name``."""

    def add_event(self, step: int, level: str, signal: str, message: str) -> None:
        """An event of the guard."""

    def add_result(self, step: int, hyperparameters: Hyperparameters, metrics: Mapping[str, float]) -> None:
        """Hyperparameters and final metrics."""

    def close(self) -> None:
        """End; safe to call twice."""


@contextmanager
def naming_failed_writes(path: Path) -> Iterator[None]:
    """Turn an OSError into an OutputError that names the file."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror or error}; free the space or the rights, "
            "or name another folder with output.logs_dir"
        ) from error


class EventFiles:
    """TensorBoard event files; each point is on the disk when a method returns.

    After a write that failed, the next point opens a new file; the points between are in metrics.jsonl alone.

    Parameters
    ----------
    folder
        Of the files.
    purge_step
        Points of earlier files from this step on are discarded by TensorBoard; None keeps all.
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        self._folder = folder
        _hide_failed_event_writes()
        with naming_failed_writes(folder / "events.out.tfevents"):
            self._writer: SummaryWriter | None = SummaryWriter(str(folder), purge_step=purge_step)

    def add(self, step: int, phase: str, row: Mapping[str, Value]) -> None:
        """The numbers of a row of metrics, each as a curve ``phase/name``."""
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, float | int)}
        numbers.pop("update", None)

        def write(writer: SummaryWriter) -> None:
            for name, value in numbers.items():
                writer.add_scalar(f"{phase}/{name}", value, step)

        self._write(write)

    def add_event(self, step: int, level: str, signal: str, message: str) -> None:
        """An event of the guard: a marker as high as its level, and its words."""
        height = float(1 + LEVELS.index(level))
        self._write(lambda writer: writer.add_scalar(f"guard_events/{signal}", height, step))
        self._write(lambda writer: writer.add_text(f"guard/{signal}", f"{level}: {message}", step))

    def add_result(self, step: int, hyperparameters: Hyperparameters, metrics: Mapping[str, float]) -> None:
        """A row of TensorBoard's HPARAMS page: hyperparameters, and metrics as ``hparams/name``."""
        named = {f"hparams/{name}": value for name, value in metrics.items()}

        def write(writer: SummaryWriter) -> None:
            for summary in hparams(dict(hyperparameters), named):  # type: ignore[no-untyped-call]
                writer._get_file_writer().add_summary(summary, step)  # type: ignore[no-untyped-call]
            for name, value in named.items():
                writer.add_scalar(name, value, step)

        self._write(write)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):
                writer.close()

    def _write(self, add: Callable[[SummaryWriter], object]) -> None:
        """Add points and flush them; a failure closes the file."""
        try:
            if self._writer is None:
                self._writer = SummaryWriter(str(self._folder))
            add(self._writer)
            self._writer.flush()
        except OSError:
            self.close()


def _hide_failed_event_writes() -> None:
    """Keep the thread of a SummaryWriter from printing a traceback for a failed write, which `flush` raises as well."""
    shown = threading.excepthook
    if getattr(shown, "hides_event_writes", False):
        return

    def show(failure: threading.ExceptHookArgs) -> None:
        if not (isinstance(failure.exc_value, OSError) and type(failure.thread).__module__.startswith("tensorboard.")):
            shown(failure)

    show.hides_event_writes = True  # type: ignore[attr-defined]
    threading.excepthook = show
