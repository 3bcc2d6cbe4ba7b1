"""Run tests on a mutant: in a process forked from one that has the libraries loaded, where the mutant is imported."""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from scripts.evidence.line_tracer import LineTracer
from scripts.evidence.mutant_tests import DESELECTED, TracedTest

__all__ = ["KILLED", "SURVIVED", "TIMED_OUT", "Trial", "load_libraries", "run_tests", "trace_tests"]

KILLED, SURVIVED, TIMED_OUT = "killed", "survived", "timed out"
LIBRARIES = (
    "hypothesis",
    "numba",
    "pandas",
    "pydantic",
    "pytest",
    "scipy.stats",
    "torch",
    "gymnasium",
    "safetensors.torch",
)
PLAIN = "finflow.ledger."  # whose compiled functions can run as plain Python
OWN = ("finflow", "scripts", "tests")
INTERRUPTED = 2  # pytest's statuses from here on mean that tests did not run


@dataclass(frozen=True)
class Trial:
    """Result of running tests on a mutant.

    Attributes
    ----------
    status : str
        `KILLED`, `SURVIVED` or `TIMED_OUT`.
    by : str
        The first test that failed; empty where none did.
    seconds : float
        By the clock.
    """

    status: str
    by: str
    seconds: float


def load_libraries() -> None:
    """Import the libraries that every trial needs; finflow and the tests are imported in each trial."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in LIBRARIES:
        importlib.import_module(name)


def run_tests(
    root: Path,
    tests: Sequence[str],
    path: str = "",
    source: bytes = b"",
    timeout: float = 600.0,
    compiled: bool = True,
) -> Trial:
    """Run tests in a forked process until one fails.

    Parameters
    ----------
    root : Path
        Of the repository.
    tests : sequence of str
        pytest's node ids, or files, from there; in this order.
    path : str
        Of the file to mutate, from there; none when left out.
    source : bytes
        What is imported in its place.
    timeout : float
        Seconds by the clock after which the process is ended.
    compiled : bool
        False to run the ledger's functions for numba as plain Python.

    Raises
    ------
    RuntimeError
        If the tests cannot be run at all.
    """

    def run() -> str:
        _load_anew(root, compiled)
        if path:
            _import_instead(root / path, ".".join(Path(path).with_suffix("").parts), source)
        order = _InOrder(tests)
        return f"{_run_pytest(tests, order, '-x')} {order.failed}"

    message, status, seconds = _forked(run, timeout)
    if message is None:
        return Trial(TIMED_OUT, "", seconds)
    code, _, by = message.partition(" ")
    if not path and (not code or int(code) >= INTERRUPTED):
        raise RuntimeError(f"pytest could not run {' '.join(tests)}: exit status {code or status}")
    if not code:  # it crashed, or ended itself
        return Trial(KILLED, f"exit status {status}", seconds)
    return Trial(SURVIVED if int(code) == 0 else KILLED, by, seconds)


def trace_tests(root: Path, files: Sequence[str], sources: Sequence[Path], compiled: bool = True) -> list[TracedTest]:
    """Run all tests of some files on the original, in a forked process, and note which lines each executes.

    Parameters
    ----------
    root : Path
        Of the repository.
    files : sequence of str
        Of tests, from there.
    sources : sequence of Path
        Files of which lines are noted.
    compiled : bool
        False to run the ledger's functions for numba as plain Python.

    Raises
    ------
    RuntimeError
        If the tests cannot be run.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "traced.json"

        def run() -> str:
            _load_anew(root, compiled)
            tracer = LineTracer(root, sources, whole=not compiled)
            code = _run_pytest(files, tracer)
            kept.write_text(json.dumps([asdict(test) for test in tracer.tests()]))
            return str(code)

        code, status, _ = _forked(run, timeout=3600.0)
        if not code or int(code) >= INTERRUPTED:
            raise RuntimeError(f"pytest could not run {' '.join(files)}: exit status {code or status}")
        return [TracedTest(**test) for test in json.loads(kept.read_text())]


def _forked(run: Callable[[], str], timeout: float) -> tuple[str | None, int, float]:
    """Run a function in a forked process: what it returned (None if it took too long), exit status, and seconds."""
    receiver, sender = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _answer(run, sender)
    os.close(sender)
    try:
        ready, _, _ = select.select([receiver], [], [], timeout)
        message = os.read(receiver, 4096).decode() if ready else None
    finally:
        os.close(receiver)
        with contextlib.suppress(ProcessLookupError):  # it has ended before it became a group
            os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return message, status, round(time.monotonic() - began, 1)


def _answer(run: Callable[[], str], sender: int) -> None:
    """Become a process group of its own, run silently, send the result, and end."""
    os.setpgid(0, 0)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    try:
        os.write(sender, run().encode()[:4096])
    finally:
        os._exit(0)


def _load_anew(root: Path, compiled: bool) -> None:
    """Forget what the parent has imported of this package, so that the mutant is imported."""
    os.chdir(root)
    sys.path.insert(0, str(root))
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]
    if not compiled:
        from finflow import compiled_function

        njit = compiled_function.__dict__["njit"]

        def compile_others(**options: Any) -> Callable[[Any], Any]:
            compile_ = njit(**options)
            return lambda function: function if str(function.__module__).startswith(PLAIN) else compile_(function)

        compiled_function.__dict__["njit"] = compile_others


def _run_pytest(tests: Sequence[str], plugin: object, *options: str) -> int:
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    general = [
        "-q",
        f"--deselect={DESELECTED}",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:faulthandler",
        "-o",
        "addopts=",
    ]
    return int(pytest.main([*options, *general, "--import-mode=importlib", *files], plugins=[_NoShrinking(), plugin]))


class _NoShrinking:
    """Lets hypothesis stop at the first example that fails, without shrinking it."""

    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", parent=settings.default, phases=phases)
        settings.load_profile("mutants")


class _InOrder:
    """Runs the tests that are asked for, in their order, and keeps the first that failed."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.places = {test: place for place, test in enumerate(tests)}
        self.failed = ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Sort tests by their places; all remain where none is known, as where a mutant changed their names."""

        def place(item: Any) -> int | None:
            return self.places.get(item.nodeid, self.places.get(item.nodeid.partition("::")[0]))

        known = [(found, item) for item in items if (found := place(item)) is not None]
        items[:] = [item for _, item in sorted(known, key=lambda one: one[0])] or items

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note a failure."""
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        """Note a module that cannot be imported."""
        if report.failed and not self.failed:
            self.failed = report.nodeid


class _Instead(importlib.abc.MetaPathFinder):
    """Finds one module, with other source."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(
        self, fullname: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Spec of the module; None of any other."""
        if fullname != self.name:
            return None
        loader = _Loader(fullname, str(self.path), self.source)
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        """The other source, compiled; nothing is read from or written to caches."""
        return compile(self.source, self.path, "exec")


def _import_instead(path: Path, name: str, source: bytes) -> None:
    """Import other source for a module."""
    sys.meta_path.insert(0, _Instead(name.removesuffix(".__init__"), path, source))
