"""Where a task is done: its function is called, and how far it is goes home, as well as what comes of it."""

from __future__ import annotations

import io
import os
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from finflow.errors import FinflowError, OutputError
from finflow.files import words
from finflow.training.logs.progress_display import Fact, ProgressDisplay

__all__ = ["Reply", "Send", "perform", "task_folder", "task_progress"]

Reply = dict[str, Any]
"""What came of a task: ``kind`` is ``done``, ``error``, ``fault`` or ``stopped``; all of it plain values."""
Send = Callable[[str, Any], None]
"""Takes news of the task that is being done: ``progress`` and a mapping, or ``say`` and a line."""
EVERY = 0.5  # seconds between two reports of progress

_reporter: Reporter | None = None


def task_progress() -> ProgressDisplay | None:
    """For a task's function: a display that shows its progress among that of all tasks.

    None where the task is done in the process that was started by the user, whose terminal is its own.
    """
    return _reporter


def perform(function: Callable[..., Any], arguments: Mapping[str, Any], send: Send) -> Reply:
    """Call a task's function in a process of its own; what it prints is sent, and so is its progress."""
    global _reporter
    _reporter = Reporter(send)
    try:
        with redirect_stdout(_Lines(send)):
            return {"kind": "done", "result": function(**arguments)}
    except KeyboardInterrupt:
        return {"kind": "stopped"}
    except FinflowError as error:
        return {"kind": "error", "class": type(error).__name__, "said": str(error)}
    except OSError as error:
        return {"kind": "error", "class": OutputError.__name__, "said": words(error)}
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("finflow"):
            said = f"the package {error.name} is not installed for {sys.executable} on {platform.node()}"
            return {"kind": "error", "class": OutputError.__name__, "said": said}
        said = f"{type(error).__name__}: {error}"
        return {"kind": "fault", "class": type(error).__name__, "said": said, "traceback": traceback.format_exc()}
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
    """Shows nothing here, and sends home what there is to show."""

    def __init__(self, send: Send) -> None:
        super().__init__(stream=_Nowhere())
        self._send = send
        self._name, self._total, self._done = "", 0, 0
        self._facts: dict[str, Fact] = {}
        self._sent = float("-inf")

    def start_phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase."""
        super().start_phase(name, total, done)
        self._name, self._total, self._done, self._facts = name, total, done, {}
        self._report()

    def advance(self, n: int = 1, **facts: Fact) -> None:
        """Count ``n`` more steps."""
        super().advance(n, **facts)
        self._done += n
        self._facts.update({name: value for name, value in facts.items() if value is not None})
        if time.monotonic() - self._sent >= EVERY:
            self._report()

    def message(self, text: str) -> None:
        """Have one line shown."""
        super().message(text)
        self._send("say", text)

    def _report(self) -> None:
        self._sent = time.monotonic()
        self._send("progress", {"phase": self._name, "done": self._done, "total": self._total, "facts": self._facts})


class _Nowhere(io.StringIO):
    """Takes text and forgets it."""

    def write(self, text: str) -> int:
        return len(text)


class _Lines(io.StringIO):
    """Sends whole lines."""

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
