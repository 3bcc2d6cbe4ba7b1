"""The evidence on mutants: where faults fit, that a test notices one, and that results are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from finflow.errors import EvidenceError
from scripts.evidence.mutant_tests import ROOMS, TracedTest, chosen_tests, room_tests, runs_compiled
from scripts.evidence.mutant_trials import KILLED, SURVIVED, TIMED_OUT, Trial
from scripts.evidence.mutants import Mutant, candidates, essence, mutated
from scripts.evidence.mutation import Trials, judgements, mutation_tables, sample_mutants

ROOT = Path(__file__).resolve().parents[2]
SOURCE = '''"""Text 1 < 2."""
__all__ = ["f"]


def f(a: int = 3, b: "1 < 2" = -1) -> int:
    """Text."""
    if a < b and not b:
        raise ValueError("a + b", 5)
    a += 1
    print(f"{a + b}")
    return max(a, b) + g(a, b)
'''


def _candidates(folder: Path, source: str = SOURCE) -> list[Mutant]:
    path = folder / "module.py"
    path.write_text(source)
    return candidates(path, folder)


def test_faults_fit_where_something_is_decided_and_nowhere_else(tmp_path: Path) -> None:
    found = {(one.before, one.after) for one in _candidates(tmp_path)}
    condition = "a < b and not b"
    assert found == {
        ("3", "4"),
        ("-1", "0"),
        ("1", "2"),
        (condition, "(a < b or not b)"),
        (condition, "(not (a < b and (not b)))"),
        ("a < b", "(a <= b)"),
        ("not b", "(b)"),
        ('raise ValueError("a + b", 5)', "pass"),
        ("a += 1", "pass"),
        ("a += 1", "a -= 1"),
        ('print(f"{a + b}")', "pass"),
        ("return max(a, b) + g(a, b)", "return None"),
        ("max(a, b) + g(a, b)", "(max(a, b) - g(a, b))"),
        ("g(a, b)", "g(b, a)"),
    }


def test_a_mutant_differs_in_its_place_alone(tmp_path: Path) -> None:
    found = _candidates(tmp_path, "É = 'é'; a = 1 < 2\n")
    assert {one.place.partition("a = ")[2] for one in found} == {"«1» < 2", "«1 < 2»", "1 < «2»"}
    for one in found:
        source = (tmp_path / "module.py").read_bytes()
        assert source[one.start : one.stop].decode() == one.before
        assert mutated(one, source) == source[: one.start] + one.after.encode() + source[one.stop :]


def test_mutants_of_the_same_text_are_numbered_and_docstrings_are_not_of_the_essence(tmp_path: Path) -> None:
    source = 'def f():\n    """One."""\n    return 1\n\n\ndef g():  # two\n    return f(1, 1)\n'
    found = _candidates(tmp_path, source)
    assert not [one for one in found if one.kind == "arguments"]  # f(1, 1) is the same either way
    found = _candidates(tmp_path, 2 * source)
    assert [(one.line, one.twin) for one in found if one.before == "return 1"] == [(3, 0), (10, 1)]
    assert essence(source.encode()) == essence(source.replace("One", "Two").replace("# two", "# one").encode())
    assert essence(source.encode()) != essence(source.replace("1", "2").encode())


def test_the_sample_is_the_same_each_time_and_of_every_room() -> None:
    first, second = sample_mutants(ROOT, 60), sample_mutants(ROOT, 80)
    for (count, few), (same, more) in zip(first.values(), second.values(), strict=True):
        assert count == same
        assert set(few) <= set(more)
    assert first == sample_mutants(ROOT, 60)
    assert sum(len(drawn) for _, drawn in first.values()) == 60
    for room, (count, drawn) in first.items():
        assert count > 500
        assert drawn
        assert all(one.path.startswith(f"finflow/{room}/") for one in drawn)
        assert all((ROOT / test).is_file() for test in room_tests(ROOT, room))


def test_tests_run_on_the_mutant_in_another_process() -> None:
    """A commission divided by what it should be multiplied by is noticed; the same source with a comment is not."""
    script = (
        "import sys; from pathlib import Path\n"
        "from scripts.evidence.mutants import candidates, mutated\n"
        "from scripts.evidence.mutant_tests import chosen_tests\n"
        "from scripts.evidence.mutant_trials import load_libraries, run_tests, trace_tests\n"
        "if __name__ == '__main__':\n"
        "    root, path, files = Path(sys.argv[1]), 'finflow/ledger/costs.py', ['tests/ledger/test_costs.py']\n"
        "    load_libraries()\n"
        "    source = (root / path).read_bytes()\n"
        "    total = 'self.rate * xp.sum(xp.abs(trades), axis=-1)'\n"
        "    (found,) = [one for one in candidates(root / path, root) if one.before == total]\n"
        "    traced = trace_tests(root, files, [root / path])\n"
        "    names = [test.name for test in chosen_tests(root, found, traced)]\n"
        "    print(0 < len(names) < len(traced))\n"
        "    for content in (mutated(found, source), source + b'# the same\\n'):\n"
        "        print(run_tests(root, names, path, content).status)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(ROOT)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.stdout.split() == ["True", KILLED, SURVIVED], ended.stderr


def test_tests_that_execute_the_line_are_chosen_quick_and_near_ones_first() -> None:
    (one, *_) = [one for one in sample_mutants(ROOT, 500)["guard"][1] if one.path.endswith("/signals.py")]
    here = {one.path: [one.line]}
    near, far = "tests/guard/test_stability.py", "tests/guard/test_capture.py"
    assert "finflow.guard.signals" in (ROOT / near).read_text("utf-8")
    assert "finflow.guard.signals" not in (ROOT / far).read_text("utf-8")
    tests = [
        TracedTest(f"{far}::quick", True, 0.1, here),
        TracedTest(f"{near}::slow", True, 9.0, here),
        TracedTest(f"{near}::quick", True, 0.2, here),
        TracedTest(f"{near}::elsewhere", True, 0.1, {one.path: [10**6]}),
        TracedTest(f"{near}::failed", False, 0.1, here),
        TracedTest(f"{near}::longest", True, 900.0, here),
    ]
    names = [test.name for test in chosen_tests(ROOT, one, tests)]
    assert names == [f"{near}::quick", f"{far}::quick", f"{near}::slow"]
    assert [test.name for test in chosen_tests(ROOT, one, tests[3:5])] == [f"{near}::elsewhere"]
    assert [test.name for test in chosen_tests(ROOT, one, tests[4:])] == [f"{near}::longest"]


def test_what_compiled_functions_take_from_a_file_is_not_taken_from_their_cache() -> None:
    assert runs_compiled(ROOT, "finflow/ledger/compiled.py")
    assert runs_compiled(ROOT, "finflow/ledger/constraints.py")
    assert not runs_compiled(ROOT, "finflow/ledger/costs.py")


class _Tests:
    """Stands for running tests: says what it was asked, and answers as it is told."""

    def __init__(self, status: str = KILLED, clean: bool = True) -> None:
        self.status, self.clean, self.asked = status, clean, 0

    def run(self, root: Path, tests: Any, path: str, source: bytes, timeout: float, compiled: bool) -> Trial:
        assert source != (root / path).read_bytes()
        self.asked += 1
        return Trial(self.status, "a test" if self.status == KILLED else "", 1.0)

    def trace(self, root: Path, files: list[str], sources: list[Path], compiled: bool) -> list[TracedTest]:
        return [TracedTest(f"{file}::test", self.clean, 0.1, {}) for file in files]


def test_a_killed_mutant_is_tried_once_and_a_survivor_again_when_tests_change(tmp_path: Path) -> None:
    saved: list[list[dict[str, Any]]] = []
    tests = _Tests()
    trials = Trials(ROOT, tmp_path, tests.run, tests.trace)
    results = trials.try_missing(8, [], saved.append)
    assert tests.asked == len(results) == 8
    assert saved[-1] == results
    assert trials.try_missing(8, results[:5], saved.append) == results
    assert tests.asked == 8 + 3
    survived = [{**one, "status": SURVIVED} for one in results]
    assert trials.try_missing(8, survived, saved.append) == survived
    trials.try_missing(8, [{**one, "tests": "earlier"} for one in survived], saved.append)
    assert tests.asked == 8 + 3 + 8


def test_tests_that_fail_without_a_mutant_are_an_error(tmp_path: Path) -> None:
    tests = _Tests(clean=False)
    with pytest.raises(EvidenceError, match="tests of ledger fail without a mutant: tests/ledger/"):
        Trials(ROOT, tmp_path, tests.run, tests.trace).try_missing(20, [], lambda _: None)


def test_the_page_counts_survivors_and_leaves_equivalent_ones_out() -> None:
    one = {"room": "ledger", "path": "a.py", "line": 3, "place": "x = «1»", "seconds": 2.0}
    results = [{**one, "after": str(k), "status": KILLED} for k in range(7)]
    results += [{**one, "after": "7", "status": TIMED_OUT}, *({**one, "after": k, "status": SURVIVED} for k in "89")]
    lines = mutation_tables(results, {"ledger": 40}, {("a.py", "x = «1»", "8"): "it is the same"}).splitlines()
    assert lines[2].startswith("| ledger | 40 | 10 | 8 | 1 | 2 | 1 | 80.0% (44.4% to 97.5%) | 88.9% (")
    assert lines[2].endswith("| 2.0 | 20 |")
    assert "| a.py:3 | `x = «1»` | `8` | it is the same |" in lines
    assert "| a.py:3 | `x = «1»` | `9` | |" in lines


def test_every_judgement_is_of_a_mutant_and_has_a_reason() -> None:
    for (path, place, after), reason in judgements().items():
        assert (place, after) in {(one.place, one.after) for one in candidates(ROOT / path, ROOT)}, place
        assert path.split("finflow/")[1].startswith(tuple(ROOMS))
        assert len(reason) > 10
