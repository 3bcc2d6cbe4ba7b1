"""Which tests to run on a mutant: those that execute its lines, quick ones and those of its module first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from scripts.evidence.mutants import Mutant

__all__ = ["DESELECTED", "ROOMS", "TracedTest", "chosen_tests", "mutated_paths", "room_tests", "runs_compiled"]

#: Room -> folders of its tests; of the second kind those count that import from the room.
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "ledger": (("tests/ledger",), ("tests/env",)),
    "env": (("tests/env",), ()),
    "evaluation/statistics": ((), ("tests/evaluation",)),
    "guard": (("tests/guard",), ()),
}
#: Their processes are slow to start; and a file that is tested by processes alone.
LEFT_OUT = ("test_browser.py", "test_reward_queue.py", "reward_queue.py")
#: A test that trains for minutes when it is traced, by the start of its node id.
DESELECTED = "tests/env/test_sb3.py::test_a_market_where_one_asset_always_wins_is_solved"
QUICK = 0.3  # seconds
MOST_SECONDS = 40.0  # of the tests of a mutant, as traced


@dataclass(frozen=True)
class TracedTest:
    """A test that was run on the original.

    Attributes
    ----------
    name : str
        pytest's node id.
    passed : bool
    seconds : float
        By the clock, with setting up.
    lines : mapping
        File, from the root of the repository -> its lines that the test executed.
    """

    name: str
    passed: bool
    seconds: float
    lines: Mapping[str, Sequence[int]]


def mutated_paths(root: Path, room: str) -> list[Path]:
    """Source files of a room."""
    return [path for path in sorted((root / "finflow" / room).rglob("*.py")) if path.name not in LEFT_OUT]


def room_tests(root: Path, room: str) -> list[str]:
    """Files of tests of a room, from the root."""
    own, shared = ROOMS[room]
    imported = f"finflow.{room.replace('/', '.')}"
    paths = [path for folder in (*own, *shared) for path in sorted((root / folder).rglob("test_*.py"))]
    names = [path.relative_to(root).as_posix() for path in paths if path.name not in LEFT_OUT]
    return [name for name in names if name.startswith(own) or imported in (root / name).read_text("utf-8")]


def runs_compiled(root: Path, path: str) -> bool:
    """Return True where numba compiles functions of a file, or functions beside it that import from the file.

    The code that numba keeps on disk knows of the file's time alone, not of a mutant: such a file runs as plain Python.
    """
    module = _module(path)
    for other in sorted((root / path).parent.glob("*.py")):
        source = other.read_text("utf-8")
        if "@compiled_function" in source and (other == root / path or f"from {module} import" in source):
            return True
    return False


def chosen_tests(root: Path, mutant: Mutant, tests: Sequence[TracedTest]) -> list[TracedTest]:
    """Tests that execute a line of the mutant, in the order in which to run them.

    Where none does, as with a line that is executed when the module is imported: tests that execute any line of its
    file, and where there are none, all. Tests that would take too long together are left out from the end.

    Parameters
    ----------
    root : Path
        Of the repository.
    mutant : Mutant
    tests : sequence of TracedTest
        Of its room.
    """
    passed = [test for test in tests if test.passed]
    changed = set(range(mutant.line, mutant.line + mutant.before.count("\n") + 1))
    hits = [test for test in passed if not changed.isdisjoint(test.lines.get(mutant.path, ()))]
    hits = hits or [test for test in passed if test.lines.get(mutant.path)] or passed
    total: dict[str, float] = {}
    for test in hits:
        total[_file(test)] = total.get(_file(test), 0.0) + test.seconds
    nearest = {name for name in total if re.search(rf"{re.escape(_module(mutant.path))}\b", (root / name).read_text())}
    in_order = sorted(
        hits,
        key=lambda test: (
            test.seconds > QUICK,
            _file(test) not in nearest,
            total[_file(test)],
            _file(test),
            test.seconds,
        ),
    )
    until = list(accumulate(test.seconds for test in in_order))
    return [test for test, seconds in zip(in_order, until, strict=True) if seconds <= MOST_SECONDS] or in_order[:1]


def _file(test: TracedTest) -> str:
    return test.name.partition("::")[0]


def _module(path: str) -> str:
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")
