"""Progress of a run on the terminal and in plain lines.

On a terminal: one live line with phase, bar, steps/s, time left and the last facts (validation Sharpe). Elsewhere, and
in console.log: plain lines when a phase starts and ends, and at most one every few seconds between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, Task, TextColumn

Fact = float | int | str | None

_WORDS = {"sharpe": "validation Sharpe"}
_RATE_WINDOW = 30.0  # seconds that the speed is measured over
_REDRAW = 0.2  # seconds between two drawings of the live line
_FEWEST = 10  # reports of a phase before a remaining time is shown
_MOST_REPORTS = 512  # that are kept; of more, every second one
_AGREEMENT = 2.0  # factor between speeds beyond which none of them tells what comes


class ProgressDisplay:
    """Progress of phases that follow one another.

    Examples
    --------
    >>> with ProgressDisplay() as progress:
    ...     progress.start_phase("offline", total=6300)
    ...     progress.advance(50, sharpe=0.41)
    ...     progress.end_phase()
    """

    def __init__(
        self,
        console_log: Callable[[str], None] | None = None,
        *,
        stream: TextIO | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stdout if stream is None else stream
        self.console_log, self._interval, self._clock = console_log, interval, clock
        self._task: Task | None = None
        self._last_line = self._last_draw = float("-inf")
        self._reports: list[tuple[float, float]] = []  # of the phase: time, and steps that are done
        console = Console(file=self._stream, highlight=False, markup=False)
        self._live = self._stream.isatty() and not console.is_dumb_terminal
        columns = (TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.percentage:>3.0f} %"))
        self._bar = Progress(
            *columns,
            TextColumn("{task.fields[shown]}", markup=False),
            console=console,
            auto_refresh=False,
            speed_estimate_period=_RATE_WINDOW,
            transient=True,
            get_time=clock,
            disable=not self._live,
        )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end_phase()
        self._bar.stop()

    def start_phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase of `total` steps, `done` of which were made before (by the run that is resumed)."""
        self.end_phase()
        self._last_line = self._clock()
        self.note(f"{name}: {total:,} steps" + (f", {done:,} done before" if done else ""))
        self._bar.add_task(name, total=total, completed=done, shown="", facts={}, done_before=done)
        self._task = self._bar.tasks[-1]
        self._bar.advance(self._task.id, 0)  # the speed is measured from here on
        self._reports = [(self._clock(), float(done))]

    def advance(self, n: int = 1, **facts: Fact) -> None:
        """Count `n` more steps; facts are shown until replaced."""
        task = self._task
        if task is None:
            raise ValueError("advance() before start_phase()")
        self._bar.advance(task.id, n)
        task.fields["facts"] |= {name: value for name, value in facts.items() if value is not None}
        now, total = self._clock(), task.total or 0.0
        if len(self._reports) > _MOST_REPORTS:
            del self._reports[1::2]
        self._reports.append((now, task.completed))
        if now - self._last_line >= self._interval:
            self._last_line = now
            line = f"{task.description}: {task.completed:,.0f} of {total:,.0f}  {task.percentage:.0f} %"
            self.note(f"{line}  {self._words(task)}".rstrip(), quiet_when_live=True)
        if self._live and now - self._last_draw >= _REDRAW:
            self._last_draw = now
            self._bar.update(task.id, shown=self._words(task), refresh=True)

    def _words(self, task: Task) -> str:
        """Speed over the last half minute, once it is known, time left and facts of a phase."""
        parts, rate, left = [], task.speed or 0.0, remaining_seconds(self._reports, task.total or 0.0)
        if rate > 0.0:
            parts.append(f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.1f} steps/s")
        if left is not None:
            parts.append(f"{duration(left)} left")
        return "  ".join([*parts, *described(task.fields["facts"])])

    @property
    def total(self) -> int:
        """Steps of the phase; 0 between phases."""
        return 0 if self._task is None else int(self._task.total or 0)

    def share(self, done: int) -> float:
        """Share of the phase that is over when so many of its steps are done."""
        return done / self._task.total if self._task is not None and self._task.total else 1.0

    def message(self, text: str) -> None:
        self.note(text)

    def end_phase(self) -> None:
        """Finish the phase, if one is under way, and say how long it took."""
        task, self._task = self._task, None
        if task is None:
            return
        self._bar.remove_task(task.id)
        seconds, made = task.elapsed or 0.0, int(task.completed) - task.fields["done_before"]
        facts = "".join(f", {words}" for words in described(task.fields["facts"]))
        speed = f", {made / seconds:,.0f} steps/s" if seconds > 0 and made >= 10 * seconds else ""
        self.note(f"{task.description}: {made:,} steps in {duration(seconds)}{speed}{facts}")

    def note(self, text: str, quiet_when_live: bool = False) -> None:
        """Show one line that stays, unless others share the display."""
        if not self._live:
            print(text, file=self._stream, flush=True)
        elif not quiet_when_live:
            self._bar.console.print(text, soft_wrap=True)
        if self.console_log is not None:
            self.console_log(text)


def remaining_seconds(reports: Sequence[tuple[float, float]], total: float) -> float | None:
    """Seconds that a phase still takes, by the speed of its last quarter so far; None where that is not known.

    ``reports``: times, and the steps that were done then. The first steps may be slower than all that follow, so the
    speeds of the last quarter of the time, the last half and the whole must agree within a factor of two.
    """
    (now, done), speeds = reports[-1], []
    elapsed = now - reports[0][0]
    if len(reports) <= _FEWEST:
        return None
    for share in (0.25, 0.5, 1.0):
        since, then = next(one for one in reports if one[0] >= now - share * elapsed)
        speeds.append((done - then) / (now - since) if now > since else 0.0)
    return (total - done) / speeds[0] if 0.0 < max(speeds) <= _AGREEMENT * min(speeds) else None


def described(facts: Mapping[str, Fact]) -> list[str]:
    """Facts in words: ``validation Sharpe 0.41``."""
    figures = {name: f"{value:.2f}" if isinstance(value, float) else str(value) for name, value in facts.items()}
    return [f"{_WORDS.get(name, name.replace('_', ' '))} {figure}" for name, figure in figures.items()]


def duration(seconds: float) -> str:
    """Seconds in words: ``9.5 s``, ``42 s``, ``1:05 min``, ``2:03 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"
