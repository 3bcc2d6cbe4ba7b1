"""Progress of many tasks in one display.

On a terminal: a bar for all of them and one for each that is under way. Elsewhere: a line when a task begins or ends,
and every few seconds one with the progress of the others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.progress import Task as Row

from finflow.training.logs.progress_display import described, duration

__all__ = ["TaskDisplay"]


class TaskDisplay:
    """Progress of tasks that run side by side.

    Parameters
    ----------
    kind : str
        Name of the tasks, in the plural: trainings.
    total : int or None
        Number of tasks, where it is known.
    live
        Draw on a terminal; false where each task draws there itself.
    stream
        Where to show it, standard output when left out.
    interval
        Seconds between plain lines.
    clock
        Seconds, monotonic.
    """

    def __init__(
        self,
        kind: str = "tasks",
        total: int | None = None,
        *,
        live: bool = True,
        stream: TextIO | None = None,
        interval: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kind, self.total = kind, total
        self._stream = sys.stdout if stream is None else stream
        self._interval, self._clock = interval, clock
        self._begun: dict[str, float] = {}
        self._news: dict[str, str] = {}
        self._ended = 0
        self._last_line = clock()
        self._rows: dict[str, TaskID] = {}
        self._live: Progress | None = None
        console = Console(file=self._stream, highlight=False, markup=False)
        if live and self._stream.isatty() and not console.is_dumb_terminal:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(30))
            facts = TextColumn("{task.fields[facts]}", markup=False)
            self._live = Progress(*columns, facts, console=console, refresh_per_second=4, transient=True)
            self._all = self._live.add_task(kind, total=total, facts=self._count)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def rows(self) -> list[Row]:
        """Rows on a terminal: one for all tasks, and one for each that is under way."""
        return [] if self._live is None else list(self._live.tasks)

    @property
    def _count(self) -> str:
        return f"{self._ended} of {self.total}" if self.total is not None else f"{self._ended} done"

    def begin(self, name: str, where: str = "") -> None:
        """Show that a task has begun."""
        self._begun[name] = self._clock()
        self.say(name, f"begun{where}", quiet_when_live=True)
        if self._live is not None and name not in self._rows:
            self._rows[name] = self._live.add_task(name, total=None, facts="")

    def news(self, name: str, kind: str, content: Any) -> None:
        """Show a report of a task: see `worker.Send`."""
        if kind == "say":
            self.say(name, str(content))
        elif name in self._begun:
            self._progress(name, content)

    def say(self, name: str, text: str, quiet_when_live: bool = False) -> None:
        """Show a line that stays, about a task."""
        self.line(f"{name}: {text}", quiet_when_live)

    def line(self, text: str, quiet_when_live: bool = False) -> None:
        """Show a line that stays."""
        if self._live is None:
            print(text, file=self._stream, flush=True)
        elif not quiet_when_live:
            self._live.console.print(text, soft_wrap=True)

    def again(self, name: str, why: str) -> None:
        """Show that a task's process is gone, and that the task waits for another."""
        self._forget(name)
        self.say(name, f"{why}; it is done again")

    def end(self, name: str) -> None:
        """Show that a task has ended."""
        began = self._forget(name)
        self._ended += 1
        took = "" if began is None else f" in {duration(self._clock() - began)}"
        self.say(name, f"done{took} ({self._count})")
        if self._live is not None:
            self._live.update(self._all, completed=self._ended, facts=self._count)

    def _progress(self, name: str, content: Mapping[str, Any]) -> None:
        phase, done, total = str(content["phase"]), int(content["done"]), int(content["total"])
        facts = described(content["facts"])
        self._news[name] = f"{name}: {phase} {100 * done / total if total else 100:.0f} %"
        if self._live is not None and name in self._rows:
            shown = "  ".join([phase, f"{done:,} of {total:,}", *facts])
            self._live.update(self._rows[name], total=total, completed=done, facts=shown)
        now = self._clock()
        if self._live is None and now - self._last_line >= self._interval:
            self._last_line = now
            self.line("; ".join([f"{self.kind} {self._count}", *self._news.values()]))

    def _forget(self, name: str) -> float | None:
        self._news.pop(name, None)
        if self._live is not None and name in self._rows:
            self._live.remove_task(self._rows.pop(name))
        return self._begun.pop(name, None)
