"""Which lines of some files each test executes: a plugin for pytest on the standard library's tracing."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from scripts.evidence.mutant_tests import TracedTest

__all__ = ["LineTracer"]

Lines = set[tuple[str, int]]


class LineTracer:
    """Notes the lines of functions alone: those of modules and classes are executed once, whichever test is first.

    What a fixture executes counts for all tests that use it, and what importing a file of tests executes for all tests
    of the file.

    Parameters
    ----------
    root : Path
        Of the repository.
    sources : sequence of Path
        Files of which lines are noted.
    whole : bool
        Note all lines of a function that is called: quick where loops run as plain Python.
    """

    def __init__(self, root: Path, sources: Sequence[Path], whole: bool = False) -> None:
        self._whole = whole
        self._sources = {str(path): path.relative_to(root).as_posix() for path in sources}
        self._hits: Lines = set()
        self._of_file: dict[str, Lines] = {}
        self._of_fixture: dict[str, Lines] = {}
        self._of_test: dict[str, Lines] = {}
        self._fixtures: dict[str, list[str]] = {}
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    def tests(self) -> list[TracedTest]:
        """All tests that were run."""
        return [
            TracedTest(name, name not in self._failed, round(seconds, 4), self._lines(name))
            for name, seconds in self._seconds.items()
        ]

    def _lines(self, name: str) -> dict[str, list[int]]:
        hits = self._of_test.get(name, set()) | self._of_file.get(name.partition("::")[0], set())
        hits = hits.union(*(self._of_fixture.get(fixture, set()) for fixture in self._fixtures.get(name, ())))
        found: dict[str, list[int]] = {}
        for path, line in sorted(hits):
            found.setdefault(path, []).append(line)
        return found

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        path = self._sources.get(frame.f_code.co_filename)
        if path is None or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return None
        if self._whole:
            self._hits.update((path, line) for _, _, line in frame.f_code.co_lines() if line is not None)
            return None
        if event in ("call", "line"):
            self._hits.add((path, frame.f_lineno))
        return self._trace

    def _follow(self, kept: Lines) -> Iterator[None]:
        """Note lines in ``kept`` while the generator is held."""
        outer, self._hits = self._hits, kept
        previous = sys.gettrace()
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        yield
        sys.settrace(previous)
        threading.settrace(previous)
        self._hits = outer

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """Follow the import of a file of tests."""
        yield from self._follow(self._of_file.setdefault(collector.nodeid.partition("::")[0], set()))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        """Follow a fixture."""
        yield from self._follow(self._of_fixture.setdefault(fixturedef.argname, set()))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        """Follow a test."""
        self._fixtures[item.nodeid] = list(item.fixturenames)
        yield from self._follow(self._of_test.setdefault(item.nodeid, set()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how long a test took, and whether it failed."""
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self._failed.add(report.nodeid)
