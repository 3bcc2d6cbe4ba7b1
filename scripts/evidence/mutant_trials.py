"""Run tests on a mutant: in a process forked from one that has the libraries loaded, where the mutant is imported."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

__all__ = ["KILLED", "SURVIVED", "TIMED_OUT", "Trial", "load_libraries", "run_tests"]

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


def run_tests(root: Path, tests: Sequence[str], path: str = "", source: bytes = b"", timeout: float = 600.0) -> Trial:
    """Run tests in a forked process until one fails.

    Parameters
    ----------
    root : Path
        Of the repository.
    tests : sequence of str
        Files, from there; in this order.
    path : str
        Of the file to mutate, from there; none when left out.
    source : bytes
        What is imported in its place.
    timeout : float
        Seconds by the clock after which the process is ended.

    Raises
    ------
    RuntimeError
        If the tests cannot be run at all.
    """
    receiver, sender = os.pipe()
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _run_in_child(root, tests, path, source, sender)
    os.close(sender)
    try:
        ready, _, _ = select.select([receiver], [], [], timeout)
        message = os.read(receiver, 4096).decode() if ready else ""
    finally:
        os.close(receiver)
        os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    seconds = round(time.monotonic() - began, 1)
    if not ready:
        return Trial(TIMED_OUT, "", seconds)
    code, _, by = message.partition(" ")
    if not path and (not code or int(code) >= INTERRUPTED):
        raise RuntimeError(f"pytest could not run {' '.join(tests)}: exit status {code or status}")
    if not code:  # it crashed, or ended itself
        return Trial(KILLED, f"exit status {status}", seconds)
    return Trial(SURVIVED if int(code) == 0 else KILLED, by, seconds)


def _run_in_child(root: Path, tests: Sequence[str], path: str, source: bytes, sender: int) -> None:
    """Become a process group of its own, run the tests, and send pytest's status and the first failure."""
    os.setpgid(0, 0)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    os.chdir(root)
    sys.path.insert(0, str(root))
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]  # what the parent has imported is not the mutant
    if path:
        _import_instead(root / path, ".".join(Path(path).with_suffix("").parts), source)
    order = _InOrder(root, tests)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:faulthandler", "-o", "addopts="]
    code = pytest.main([*options, "--import-mode=importlib", *tests], plugins=[order])
    os.write(sender, f"{int(code)} {order.failed}".encode()[:4096])
    os._exit(0)


class _InOrder:
    """Runs tests in the order of their files, and keeps the first that failed."""

    def __init__(self, root: Path, tests: Sequence[str]) -> None:
        self.places = {str(root / test): place for place, test in enumerate(tests)}
        self.failed = ""

    def pytest_sessionstart(self) -> None:
        """Let hypothesis stop at the first example that fails, without shrinking it."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", parent=settings.default, phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Sort by the places of the files."""
        items.sort(key=lambda item: self.places.get(str(item.path), len(self.places)))

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
    """Import other source for a module; functions for numba run as plain Python, whose caches know files alone."""
    name = name.removesuffix(".__init__")
    sys.meta_path.insert(0, _Instead(name, path, source))
    if b"compiled_function" in source:
        import numba

        numba.config.DISABLE_JIT = True  # type: ignore[attr-defined]
