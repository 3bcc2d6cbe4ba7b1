"""Progress of tasks: reported by the processes that run them, and shown in one display by the one that waits for them.

On a terminal: a bar for all tasks and one for each that is running. Elsewhere: a line when a task begins or ends, and
every few seconds one with the progress of the others.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, Task as RichTask, TextColumn

from finflow.cores import report
from finflow.errors import FinflowError, OutputError
from finflow.files import describe_lack
from finflow.training.logs.progress_display import Fact, ProgressDisplay, described, duration
from finflow.training.phases.stopping import request_stop

R = TypeVar("R")
Send = Callable[[str, Any], None]
"""Takes reports of the running task: ``progress`` and a mapping, or ``line`` and a text."""
INTERVAL = 0.5  # seconds between two reports of progress
LINE_INTERVAL = 10.0  # seconds between plain lines of progress

_reporter: Reporter | None = None


def task_progress() -> ProgressDisplay | None:
    """Display for a task's function, which shows its progress among that of all tasks.

    None where the task runs in the process that was started by the user, whose terminal is its own.
    """
    return _reporter


def perform(shared: Mapping[str, Any], function: Callable[..., R], arguments: Mapping[str, Any]) -> R:
    """Call a task's function in a process of its own; what it prints is sent, and so is its progress.

    Raises the task's own FinflowError, and an OutputError for a file, package or memory that this machine lacks; for
    any other a RuntimeError, in words: an exception of a library need not survive the way to another process.
    """
    global _reporter
    if multiprocessing.parent_process() is not None:  # of this machine, and asked by SIGTERM to stop
        signal.signal(signal.SIGTERM, lambda number, frame: request_stop())
    _reporter = Reporter(report)
    try:
        with redirect_stdout(_LineSender(report)):
            return function(**shared, **arguments)
    except Exception as error:
        if isinstance(error, FinflowError):
            raise
        if (lack := describe_lack(error)) is not None:
            raise OutputError(lack) from error
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    finally:
        _reporter = None


def task_folder(kind: str) -> TemporaryDirectory[str]:
    """A temporary folder for a task, removed after the block."""
    return TemporaryDirectory(prefix=f"finflow-{kind}-{os.getpid()}-")


class Reporter(ProgressDisplay):
    """Display that shows nothing here, and sends the progress to another process."""

    def __init__(self, send: Send) -> None:
        super().__init__(stream=NullStream())
        self._send = send
        self._sent = float("-inf")

    def start_phase(self, name: str, total: int, done: int = 0) -> None:
        super().start_phase(name, total, done)
        self._report()

    def advance(self, n: int = 1, **facts: Fact) -> None:
        super().advance(n, **facts)
        if time.monotonic() - self._sent >= INTERVAL:
            self._report()

    def message(self, text: str) -> None:
        self._send("line", text)

    def _report(self) -> None:
        task = self._task
        if task is not None:
            self._sent = time.monotonic()
            done, facts = int(task.completed), dict(task.fields["facts"])
            self._send("progress", {"phase": task.description, "done": done, "total": task.total, "facts": facts})


class NullStream(io.StringIO):
    """Text stream that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)


class _LineSender(io.StringIO):
    """Text stream that sends whole lines."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        self._partial = ""

    def write(self, text: str) -> int:
        *whole, self._partial = (self._partial + text).split("\n")
        for line in whole:
            if line.strip():
                self._send("line", line)
        return len(text)


class TaskDisplay:
    """Progress of tasks that run side by side, until it is closed."""

    def __init__(self, kind: str, total: int, live: bool = True, of_tasks: bool = True) -> None:
        self.kind, self.total, self.of_tasks = kind, total, of_tasks
        self._stream, self._last_line = sys.stdout, time.monotonic()
        self._running: dict[str, RichTask] = {}
        self._ended: set[str] = set()
        console = Console(file=self._stream, highlight=False, markup=False)
        self._live = live and self._stream.isatty() and not console.is_dumb_terminal
        self._bar = Progress(
            *(TextColumn("{task.description}", markup=False), BarColumn(30)),
            TextColumn("{task.fields[facts]}", markup=False),
            console=console,
            refresh_per_second=4,
            transient=True,
            get_time=time.monotonic,
            disable=not self._live,
        )
        self._all = self._bar.add_task(kind, total=total, facts=self._count)
        self._bar.start()

    def close(self) -> None:
        """Take the bars from the terminal."""
        self._bar.stop()

    @property
    def _count(self) -> str:
        return f"{len(self._ended)} of {self.total}"

    def update(self, name: str, kind: str, content: Any) -> None:
        """Show what is reported of a task: ``begin`` and where, ``lost`` and why, or as of `Send`."""
        if kind == "begin":
            self.begin(name, content)
        elif kind == "lost":
            self._bar.remove_task(self._running.pop(name).id)
            self.task_line(name, f"{content}; it is done again")
        elif kind == "line":
            self.task_line(name, str(content))
        elif name in self._running:
            self._progress(self._running[name], content)

    def begin(self, name: str, where: str = "") -> None:
        if name in self._ended:  # a report that comes late
            return
        if name in self._running:
            self.update(name, "lost", f"its process or node died; it is on {where} now")
        self._bar.add_task(name, total=None, facts="", phase="")
        self._running[name] = self._bar.tasks[-1]
        self.task_line(name, f"begun on {where}" if where else "begun", quiet_when_live=True)

    def task_line(self, name: str, text: str, quiet_when_live: bool = False) -> None:
        if self.of_tasks:  # else their outcomes are printed elsewhere
            self.line(f"{name}: {text}", quiet_when_live)

    def line(self, text: str, quiet_when_live: bool = False) -> None:
        """Show a line that stays."""
        if not self._live:
            print(text, file=self._stream, flush=True)
        elif not quiet_when_live:
            self._bar.console.print(text, soft_wrap=True)

    def end(self, name: str) -> None:
        task, took = self._running.pop(name, None), ""
        if task is not None:
            self._bar.remove_task(task.id)
            took = f" in {duration(task.elapsed or 0.0)}"
        self._ended.add(name)
        self.task_line(name, f"done{took} ({self._count})")
        self._bar.update(self._all, completed=len(self._ended), facts=self._count)

    def _progress(self, task: RichTask, content: Mapping[str, Any]) -> None:
        phase, done, total = str(content["phase"]), int(content["done"]), int(content["total"])
        shown = "  ".join([phase, f"{done:,} of {total:,}", *described(content["facts"])])
        self._bar.update(task.id, total=total, completed=done, facts=shown, phase=phase)
        now = time.monotonic()
        if not self._live and now - self._last_line >= LINE_INTERVAL:
            self._last_line = now
            begun = [one for one in self._running.values() if one.fields["phase"]]
            parts = [f"{one.description}: {one.fields['phase']} {one.percentage:.0f} %" for one in begun]
            self.line("; ".join([f"{self.kind} {self._count}", *parts]))


def this_host() -> str:
    """Name of this machine since it was started, and of the processes that can be seen on it."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def start_time_of(pid: int) -> str | None:
    """Start time of a process of this machine; None where there is none, or where the system has no ``/proc``."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
        return None if status[0] in ("Z", "X") else status[19]
    return None
