"""Log files of a run: metrics.jsonl, events.jsonl, TensorBoard event files and console.log.

`metrics.jsonl`, and `events.jsonl` for alarms and responses of the guard, hold one JSON object a line with sorted keys
and no times, so that equal runs write equal bytes. A checkpoint stores `RunLog.position()`; a resumed run opens its log
at that position, which cuts off the rows written after the checkpoint and has TensorBoard discard their points, so that
no update is counted twice. `console.log` has times, and a resumed run only adds to it.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, supported_activities

from finflow.errors import CheckpointError, OutputError
from finflow.files import lock_file
from finflow.json_text import parse_json
from finflow.training.logs.trackers import EventFiles, Tracker, naming_failed_writes

Value = float | int | str | bool | None

METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
CONSOLE = "console.log"
PROFILED, SPAN = 20, 5  # first update of a trace, after the caches are warm, and updates in it


class RunLog:
    """The log files of one run folder.

    What is logged goes to the ``trackers`` too, which are closed with the log.

    ``branch_from``: another run folder, whose rows up to `resume_at` are copied into this one first.

    Raises OutputError: A file cannot be written: the folder is read-only, the disk is full, another process is training
    there; CheckpointError: metrics.jsonl is shorter than the checkpoint says, so it is not the one of that run.
    """

    def __init__(
        self, folder: Path, resume_at: Mapping[str, int] | None = None, branch_from: Path | None = None
    ) -> None:
        self.folder = Path(folder)
        position = dict(resume_at or {})
        self._step = position.get("step", -1)
        source = branch_from or self.folder
        kept = {name: _kept_rows(source / name, position.get(name, 0)) for name in (METRICS, EVENTS)}
        with naming_failed_writes(self.folder / CONSOLE):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._console = (self.folder / CONSOLE).open("a", encoding="utf-8")
        if not lock_file(self._console, wait=False, of_process=True):
            self._console.close()
            raise OutputError(f"another process is training in {folder}; wait for it, or stop it first")
        self._files: dict[str, IO[bytes]] = {}
        for name, rows in kept.items():
            with naming_failed_writes(self.folder / name):
                if branch_from is not None:
                    (self.folder / name).write_bytes(rows)
                file = self._files[name] = (self.folder / name).open("ab", buffering=0)
                file.truncate(len(rows))
                file.seek(0, os.SEEK_END)
        self._waiting = dict.fromkeys(kept, b"")
        events = EventFiles(self.folder, None if resume_at is None else self._step + 1)
        self.trackers: list[Tracker] = [events]
        if branch_from is not None:  # TensorBoard shows the curves that led here
            for line in kept[METRICS].splitlines():
                row = _row_of(line, source / METRICS)
                events.add(int(row["update"]), _curves(row))

    def record(self, phase: str, update: int, values: Mapping[str, Any]) -> None:
        """Write one row of metrics: to metrics.jsonl, and its numbers as curves "phase/name" to the trackers.

        ``update`` counts gradient updates since the start of the run, over both phases, and never falls. Values are
        numbers of Python, NumPy or torch, text or None; NaN and infinities become null.
        """
        row = self._append(METRICS, {**values, "phase": phase, "update": update})
        for tracker in self.trackers:
            tracker.add(update, _curves(row))
        self._step = update

    def event(self, row: Mapping[str, Any]) -> None:
        """Write one event of the guard: to events.jsonl, and as a marker and a text to TensorBoard."""
        self._append(EVENTS, row)
        for tracker in self.trackers:
            tracker.add_event(int(row["update"]), str(row["level"]), str(row["signal"]), str(row["message"]))

    def result(self, hyperparameters: Mapping[str, Any], metrics: Mapping[str, float]) -> None:
        """Pass the finite final metrics of a run to TensorBoard's table of hyperparameters, and to other trackers."""
        known = {
            key: value if isinstance(value, float | int | str) else str(value) for key, value in hyperparameters.items()
        }
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for tracker in self.trackers:
            tracker.add_result(max(self._step, 0), known, finite)

    def console(self, text: str) -> None:
        with suppress(OSError):
            self._console.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {' '.join(text.split())}\n")
            self._console.flush()

    def position(self) -> dict[str, int]:
        """Position of the logs, with the rows that wait for room on the disk."""
        places = {name: file.tell() + len(self._waiting[name]) for name, file in self._files.items()}
        return {**places, "step": self._step}

    def make_durable(self) -> None:
        """Flush every row to the disk, before a checkpoint that stores the position.

        Raises OutputError if a row cannot be written; it stays queued.
        """
        for name, file in self._files.items():
            with naming_failed_writes(self.folder / name):
                self._write_waiting(name)
                os.fsync(file.fileno())

    def _append(self, name: str, row: Mapping[str, Any]) -> dict[str, Value]:
        """Write a row as a line of JSON; returns its plain values."""
        values = {key: _plain(value) for key, value in row.items()}
        self._waiting[name] += f"{json.dumps(values, sort_keys=True, allow_nan=False)}\n".encode()
        with suppress(OSError):  # a full disk stops no training: the row waits, and make_durable() raises
            self._write_waiting(name)
        return values

    def _write_waiting(self, name: str) -> None:
        while waiting := self._waiting[name]:
            self._waiting[name] = waiting[self._files[name].write(waiting) :]

    def close(self) -> None:
        """Close the files; safe to call twice."""
        for name in self._files:
            with suppress(OSError, ValueError):
                self._write_waiting(name)
        for close in (
            *(tracker.close for tracker in self.trackers),  # first: they report failures on the console
            *(file.close for file in self._files.values()),
            self._console.close,
        ):
            with suppress(OSError):  # every write was flushed and checked when it was made
                close()


class UpdateProfiler:
    """A torch profiler trace of a few updates of each phase."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: profile | None = None
        self._until = 0

    def after_update(self, phase: str, count: int, total: int) -> None:
        """Start or stop the profiler, ``count`` updates into a phase of ``total``; earlier in a short one.

        Raises OutputError if the trace cannot be written.
        """
        path = self.folder / f"trace_{phase}.json"
        if self._running is None and max(min(PROFILED, total - SPAN), 1) <= count < total and not path.exists():
            self._until = count + SPAN
            activities = {ProfilerActivity.CPU, ProfilerActivity.CUDA} & set(supported_activities())  # type: ignore[no-untyped-call]
            all_threads = _ExperimentalConfig(profile_all_threads=True)
            self._running = profile(activities=activities, experimental_config=all_threads)
            self._running.start()
        elif self._running is not None and count >= min(self._until, total):
            self._running.stop()
            try:
                self._running.export_chrome_trace(str(path))
            except (OSError, RuntimeError) as error:
                raise OutputError(f"cannot write {path}: {error}") from error
            self._running = None


def _kept_rows(path: Path, size: int) -> bytes:
    kept = path.read_bytes()[:size] if size and path.is_file() else b""
    if len(kept) < size or (size and not kept.endswith(b"\n")):
        raise CheckpointError(
            f"{path} holds {len(kept)} of the {size} bytes written before the checkpoint: it was changed since, "
            "so the run cannot be resumed"
        )
    return kept


def _curves(row: Mapping[str, Value]) -> dict[str, float]:
    """The numbers of a row of metrics, each the point of a curve ``phase/name``."""
    numbers = {name: float(value) for name, value in row.items() if isinstance(value, float | int) and name != "update"}
    return {f"{row['phase']}/{name}": value for name, value in numbers.items()}


def _row_of(line: bytes, path: Path) -> dict[str, Any]:
    try:
        row = dict(parse_json(line))
        return row | {"update": int(row["update"]), "phase": str(row["phase"])}
    except (ValueError, LookupError, TypeError, OverflowError):
        raise CheckpointError(f"{path} was changed since it was written, so the run cannot be branched from") from None


def _plain(value: Any) -> Value:
    """A JSON value of a Python, NumPy or torch scalar; None for what is not a finite number."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, float | int | str | bool):
        return value
    raise TypeError(f"a row holds numbers and text, not {type(value).__name__}")
