"""Trackers of a run: TensorBoard event files, and on request a run of Weights & Biases (`output.log_with: wandb`).

The package of the latter is an extra. Its own environment variables decide where a run goes: `WANDB_MODE=offline` keeps
it on this machine, `WANDB_PROJECT` and `WANDB_ENTITY` name its place.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finflow.config import Config, values_by_key
from finflow.errors import ConfigError, OutputError, one_line
from finflow.guard.signals import LEVELS

if TYPE_CHECKING:  # slow to load
    from torch.utils.tensorboard import SummaryWriter

Hyperparameters = Mapping[str, float | int | str]


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

    TensorBoard discards the points of earlier files from ``purge_step`` on.
    """

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder, self._open = folder, SummaryWriter
        _hide_failed_event_writes()
        with naming_failed_writes(folder / "events.out.tfevents"):
            self._writer: SummaryWriter | None = self._open(str(folder), purge_step=purge_step)

    def add(self, step: int, curves: Mapping[str, float]) -> None:
        def write(writer: SummaryWriter) -> None:
            for name, value in curves.items():
                writer.add_scalar(name, value, step)

        self._write(write)

    def add_event(self, step: int, level: str, signal: str, message: str) -> None:
        """An event of the guard: a marker as high as its level, and its words."""
        height = float(1 + LEVELS.index(level))
        self._write(lambda writer: writer.add_scalar(f"guard_events/{signal}", height, step))
        self._write(lambda writer: writer.add_text(f"guard/{signal}", f"{level}: {message}", step))

    def add_result(self, step: int, hyperparameters: Hyperparameters, metrics: Mapping[str, float]) -> None:
        """A row of TensorBoard's HPARAMS page: hyperparameters, and metrics as ``hparams/name``."""
        from torch.utils.tensorboard.summary import hparams

        named = {f"hparams/{name}": value for name, value in metrics.items()}

        def write(writer: SummaryWriter) -> None:
            for summary in hparams(dict(hyperparameters), named):  # type: ignore[no-untyped-call]
                writer._get_file_writer().add_summary(summary, step)  # type: ignore[no-untyped-call]

        self._write(write)
        self.add(step, named)

    def close(self) -> None:
        """Close the file; safe to call twice."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):
                writer.close()

    def _write(self, add: Callable[[SummaryWriter], object]) -> None:
        try:
            if self._writer is None:
                self._writer = self._open(str(self._folder))
            add(self._writer)
            self._writer.flush()
        except OSError:
            self.close()


@cache
def _hide_failed_event_writes() -> None:
    """Keep the thread of a SummaryWriter from printing a traceback for a failed write, which `flush` raises as well."""
    shown = threading.excepthook

    def show(failure: threading.ExceptHookArgs) -> None:
        if not (isinstance(failure.exc_value, OSError) and type(failure.thread).__module__.startswith("tensorboard.")):
            shown(failure)

    threading.excepthook = show


def check_tracker(config: Config) -> None:
    """Refuse a tracker whose package is not installed, before anything is done.

    Raises ConfigError: naming the extra.
    """
    if config.output.log_with == "wandb":
        try:
            importlib.import_module("wandb")
        except ImportError:
            raise ConfigError(
                "output.log_with = wandb needs the package wandb, which is not installed: pip install 'finflow[wandb]'"
            ) from None


class WandbRun:
    """A run of Weights & Biases; a failure of the service ends the tracking, and never the training.

    Raises OutputError if the run cannot begin.
    """

    def __init__(self, config: Config, folder: Path, report: Callable[[str], None]) -> None:
        self._report = report
        try:
            self._run: Any = importlib.import_module("wandb").init(
                project=os.environ.get("WANDB_PROJECT", "finflow"),
                id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],
                name=folder.name,
                group=folder.parent.name or None,
                dir=str(folder),
                config={
                    key: value if isinstance(value, bool | float | int | str | None) else str(value)
                    for key, value in values_by_key(config).items()
                },
                resume="allow",
            )
        except Exception as error:
            raise OutputError(
                f"Weights & Biases did not start ({one_line(error)}); log in with wandb login, set "
                "WANDB_MODE=offline, or leave --log-with out"
            ) from error
        atexit.register(self.close)  # before the package's own exit, after which a run cannot be finished any more

    def add(self, step: int, curves: Mapping[str, float]) -> None:
        self._do(lambda run: run.log(dict(curves), step=step))

    def add_event(self, step: int, level: str, signal: str, message: str) -> None:
        """An event of the guard, as text under ``guard/signal``."""
        self._do(lambda run: run.log({f"guard/{signal}": f"{level}: {message}"}, step=step))

    def add_result(self, step: int, hyperparameters: Hyperparameters, metrics: Mapping[str, float]) -> None:
        """Final metrics, in the summary of the run; its configuration has the hyperparameters."""
        self._do(lambda run: run.summary.update({f"test/{name}": value for name, value in metrics.items()}))

    def close(self) -> None:
        """Finish the run; safe to call twice."""
        atexit.unregister(self.close)
        self._do(lambda run: run.finish())
        self._run = None

    def _do(self, call: Callable[[Any], object]) -> None:
        if self._run is None:
            return
        try:
            call(self._run)
        except Exception as error:
            self._run = None
            self._report(f"Weights & Biases failed, and is left out from here on: {one_line(error)}")


Tracker = EventFiles | WandbRun
"""Receives what a run logs: metrics, events of the guard, and the final result."""
