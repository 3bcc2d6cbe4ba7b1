"""Progress of a run on the terminal and in plain lines.

On a terminal: one live line with phase, bar, steps/s, time left and the last facts (validation Sharpe). Elsewhere, and
in console.log: plain lines when a phase starts and ends, and at most one every few seconds between.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

Fact = float | int | str | None

_WORDS = {"sharpe": "validation Sharpe"}
_RATE_WINDOW = 30.0  # seconds that the speed is measured over
_REDRAW = 0.2  # seconds between two drawings of the live line


@dataclass
class _Phase:
    name: str
    total: int
    done: int
    started: float
    done_before: int
    facts: dict[str, Fact] = field(default_factory=dict)
    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def sample(self, now: float) -> None:
        self.samples.append((now, self.done))
        while len(self.samples) > 2 and now - self.samples[1][0] >= _RATE_WINDOW:
            self.samples.popleft()

    @property
    def rate(self) -> float | None:
        """Steps a second over the last half minute; None before it is known."""
        (then, before), (now, done) = self.samples[0], self.samples[-1]
        return (done - before) / (now - then) if now > then and done > before else None

    def describe(self) -> str:
        parts = []
        if (rate := self.rate) is not None:
            parts.append(f"{rate:,.0f} steps/s" if rate >= 10 else f"{rate:.1f} steps/s")
            parts.append(f"{duration((self.total - self.done) / rate)} left")
        return "  ".join([*parts, *described(self.facts)])


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
        self._console_log = console_log
        self._interval = interval
        self._clock = clock
        self._phase: _Phase | None = None
        self._last_line = self._last_draw = float("-inf")
        self._live: Progress | None = None
        self._task: TaskID | None = None
        console = Console(file=self._stream, highlight=False, markup=False)
        if self._stream.isatty() and not console.is_dumb_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.percentage:>3.0f} %"))
            facts = TextColumn("{task.fields[facts]}", markup=False)
            self._live = Progress(*columns, facts, console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.end_phase()
        if self._live is not None:
            self._live.stop()

    def write_to(self, console_log: Callable[[str], None]) -> None:
        self._console_log = console_log

    def start_phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase of `total` steps, `done` of which were made before (by the run that is resumed)."""
        self.end_phase()
        now = self._clock()
        self._phase = _Phase(name, total, done, started=now, done_before=done)
        self._phase.sample(now)
        self._last_line = now
        self._line(f"{name}: {total:,} steps" + (f", {done:,} done before" if done else ""))
        if self._live is not None:
            self._task = self._live.add_task(name, total=total, completed=done, facts="")
            self._live.refresh()

    def advance(self, n: int = 1, **facts: Fact) -> None:
        """Count `n` more steps; facts are shown until replaced."""
        phase = self._phase
        if phase is None:
            raise ValueError("advance() before start_phase()")
        phase.done += n
        phase.facts.update({name: value for name, value in facts.items() if value is not None})
        now = self._clock()
        if now - phase.samples[-1][0] >= _REDRAW:
            phase.sample(now)
        if now - self._last_line >= self._interval:
            self._last_line = now
            share = 100 * phase.done / phase.total if phase.total else 100.0
            line = f"{phase.name}: {phase.done:,} of {phase.total:,}  {share:.0f} %  {phase.describe()}"
            self._line(line.rstrip(), quiet_when_live=True)
        if self._live is not None and self._task is not None and now - self._last_draw >= _REDRAW:
            self._last_draw = now
            self._live.update(self._task, completed=phase.done, facts=phase.describe(), refresh=True)

    def message(self, text: str) -> None:
        self._line(text)

    def note(self, text: str) -> None:
        """Show one line that stays, unless others share the display."""
        self._line(text)

    def end_phase(self) -> None:
        """Finish the phase, if one is under way, and say how long it took."""
        phase, self._phase = self._phase, None
        if phase is None:
            return
        if self._live is not None and self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
        seconds = self._clock() - phase.started
        made = phase.done - phase.done_before
        facts = "".join(f", {_WORDS.get(name, name)} {_figure(value)}" for name, value in phase.facts.items())
        speed = f", {made / seconds:,.0f} steps/s" if seconds > 0 and made >= 10 * seconds else ""
        self._line(f"{phase.name}: {made:,} steps in {duration(seconds)}{speed}{facts}")

    def _line(self, text: str, quiet_when_live: bool = False) -> None:
        if self._live is None:
            print(text, file=self._stream, flush=True)
        elif not quiet_when_live:
            self._live.console.print(text, soft_wrap=True)
        if self._console_log is not None:
            self._console_log(text)


def described(facts: Mapping[str, Fact]) -> list[str]:
    """Facts in words: ``validation Sharpe 0.41``."""
    return [f"{_WORDS.get(name, name.replace('_', ' '))} {_figure(value)}" for name, value in facts.items()]


def duration(seconds: float) -> str:
    """Seconds in words: ``9.5 s``, ``42 s``, ``1:05 min``, ``2:03 h``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def _figure(value: Fact) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
