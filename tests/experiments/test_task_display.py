"""One display for many tasks: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from finflow.experiments import task_progress
from finflow.experiments.task_progress import TaskDisplay

HALF = {"phase": "offline", "done": 50, "total": 100, "facts": {"sharpe": 0.41}}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_elsewhere_lines_say_what_begins_and_ends_and_now_and_then_how_far_the_others_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(task_progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with TaskDisplay("trainings", 2) as overview:
        overview.begin("seed 0")
        overview.begin("seed 1", "a node")
        overview.update("seed 0", "progress", HALF)
        now[0] = 11.0
        overview.update("seed 1", "progress", {**HALF, "done": 10})
        overview.update("seed 1", "line", "the learning rate is halved")
        overview.update("seed 0", "lost", "its process was killed (SIGKILL)")
        now[0] = 42.0
        overview.end("seed 1")
    assert capsys.readouterr().out.splitlines() == [
        "seed 0: begun",
        "seed 1: begun on a node",
        "trainings 0 of 2; seed 0: offline 50 %; seed 1: offline 10 %",
        "seed 1: the learning rate is halved",
        "seed 0: its process was killed (SIGKILL); it is done again",
        "seed 1: done in 42 s (1 of 2)",
    ]


def test_a_terminal_has_a_bar_for_all_and_a_line_for_each_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    with TaskDisplay("trainings", 2) as overview:
        overview.begin("seed 0")
        overview.update("seed 0", "progress", HALF)
        overview.begin("seed 1")
        shown = [(task.description, task.completed, task.total) for task in overview._bar.tasks]
        overview.end("seed 0")
        left = [task.description for task in overview._bar.tasks]
    assert shown == [("trainings", 0, 2), ("seed 0", 50, 100), ("seed 1", 0, None)]
    assert left == ["trainings", "seed 1"]
    assert "validation Sharpe 0.41" in stream.getvalue()
    assert "seed 0: begun" not in stream.getvalue()
