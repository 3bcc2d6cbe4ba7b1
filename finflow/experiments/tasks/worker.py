"""A task in the process that runs it: its function is called, and its progress and prints are sent to the parent."""

from __future__ import annotations

import io
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

from finflow.errors import FinflowError, OutputError
from finflow.files import words
from finflow.training.logs.progress_display import Fact, ProgressDisplay

__all__ = ["NullStream", "Reporter", "Send", "run_reporting", "task_folder", "task_progress"]

R = TypeVar("R")
Send = Callable[[str, Any], None]
"""Takes reports of the task under way: ``progress`` and a mapping, or ``say`` and a line."""
INTERVAL = 0.5  # seconds between two reports of progress

_reporter: Reporter | None = None


def task_progress() -> ProgressDisplay | None:
    """Display for a task's function, which shows its progress among that of all tasks.

    None where the task runs in the process that was started by the user, whose terminal is its own.
    """
    return _reporter


def run_reporting(function: Callable[..., R], arguments: Mapping[str, Any], send: Send) -> R:
    """Call a task's function in a process of its own; what it prints is sent, and so is its progress.

    Raises
    ------
    FinflowError
        The task's own; an `OutputError` for a file or package that this machine lacks.
    MemoryError, RuntimeError
        For any other, in words: an exception of a library need not survive the way to another process.
    """
    global _reporter
    _reporter = Reporter(send)
    try:
        with redirect_stdout(_LineSender(send)):
            return function(**arguments)
    except FinflowError:
        raise
    except OSError as error:
        raise OutputError(words(error)) from error
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("finflow"):
            place = f"{sys.executable} on {platform.node()}"
            raise OutputError(f"the package {error.name} is not installed for {place}") from error
        kind = MemoryError if "MemoryError" in type(error).__name__ else RuntimeError
        raise kind(f"{type(error).__name__}: {error}") from error
    finally:
        _reporter = None


@contextmanager
def task_folder(kind: str) -> Iterator[Path]:
    """A temporary folder for a task, gone with the block. What killed processes of this machine left goes first."""
    host = platform.node()
    for left in Path(tempfile.gettempdir()).glob(f"finflow-{kind}-[0-9]*-{host}-*"):
        process = left.name.removeprefix(f"finflow-{kind}-").partition("-")[0]
        if process.isdigit() and _is_gone(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"finflow-{kind}-{os.getpid()}-{host}-") as folder:
        yield Path(folder)


def _is_gone(process: int) -> bool:
    if os.name != "posix":  # there, to ask a process is to end it
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


class Reporter(ProgressDisplay):
    """Display that shows nothing here, and sends the progress to another process."""

    def __init__(self, send: Send) -> None:
        super().__init__(stream=NullStream())
        self._send = send
        self._sent = float("-inf")

    def start_phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase."""
        super().start_phase(name, total, done)
        self._report()

    def advance(self, n: int = 1, **facts: Fact) -> None:
        """Count ``n`` more steps."""
        super().advance(n, **facts)
        if time.monotonic() - self._sent >= INTERVAL:
            self._report()

    def message(self, text: str) -> None:
        """Have one line shown."""
        self._send("say", text)

    def _report(self) -> None:
        phase = self._phase
        if phase is not None:
            self._sent = time.monotonic()
            content = {"phase": phase.name, "done": phase.done, "total": phase.total, "facts": dict(phase.facts)}
            self._send("progress", content)


class NullStream(io.StringIO):
    """Text stream that keeps nothing."""

    def write(self, text: str) -> int:
        """Forget the text."""
        return len(text)


class _LineSender(io.StringIO):
    """Text stream that sends whole lines."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self._begun = ""

    def write(self, text: str) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            if line.strip():
                self._send("say", line)
        return len(text)
