"""A run of Weights & Biases in addition to TensorBoard's files (`output.log_with: wandb`).

The package is an extra. Its own environment variables decide where a run goes: `WANDB_MODE=offline` keeps it on this
machine, `WANDB_PROJECT` and `WANDB_ENTITY` name its place.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from finflow.config import Config, leaves
from finflow.errors import ConfigError, OutputError
from finflow.training.logs.event_files import Hyperparameters, Tracker, Value

PROJECT = "finflow"


def check_tracker(config: Config) -> None:
    """Refuse a tracker whose package is not installed, before anything is done.

    Raises
    ------
    ConfigError
        Naming the extra.
    """
    if config.output.log_with == "wandb":
        _wandb()


def open_tracker(config: Config, folder: Path, report: Callable[[str], None]) -> Tracker | None:
    """Begin or resume the configured tracker of a run folder; None with TensorBoard alone.

    Parameters
    ----------
    folder : Path
        The run folder; its path names the run, so that a resumed training continues the same one.
    report : callable
        Takes a line for the user, where the tracker fails later on.

    Raises
    ------
    ConfigError
        If the package is not installed.
    OutputError
        If the run cannot begin.
    """
    return WandbRun(config, folder, report) if config.output.log_with == "wandb" else None


class WandbRun:
    """A run of Weights & Biases; a failure of the service ends the tracking, and never the training.

    Parameters
    ----------
    report : callable
        As in `open_tracker`.
    """

    def __init__(self, config: Config, folder: Path, report: Callable[[str], None]) -> None:
        self._report = report
        wandb = _wandb()
        try:
            self._run: Any = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],
                name=folder.name,
                group=folder.parent.name or None,
                dir=str(folder),
                config={key: _plain(value) for key, value in leaves(config).items()},
                resume="allow",
            )
        except Exception as error:
            raise OutputError(
                f"Weights & Biases did not start ({_first_line(error)}); log in with wandb login, set "
                "WANDB_MODE=offline, or leave --log-with out"
            ) from error
        atexit.register(self.close)  # before the package's own exit, after which a run cannot be finished any more

    def add(self, step: int, phase: str, row: Mapping[str, Value]) -> None:
        """The numbers of a row of metrics, each as a curve ``phase/name``."""
        numbers = {
            f"{phase}/{name}": float(value)
            for name, value in row.items()
            if isinstance(value, float | int) and name != "update"
        }
        self._do(lambda run: run.log(numbers, step=step))

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
        """Call the service; the first failure is reported and ends the tracking."""
        if self._run is None:
            return
        try:
            call(self._run)
        except Exception as error:
            self._run = None
            self._report(f"Weights & Biases failed, and is left out from here on: {_first_line(error)}")


def _wandb() -> Any:
    """The package, imported when it is needed."""
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise ConfigError(
            "output.log_with = wandb needs the package wandb, which is not installed: pip install 'finflow[wandb]'"
        ) from None


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | float | int | str) else str(value)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
