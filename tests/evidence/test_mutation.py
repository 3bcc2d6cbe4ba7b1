"""The evidence on mutants: where faults fit, that a test notices one, and that results are kept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from finflow.errors import EvidenceError
from scripts.evidence.mutant_trials import KILLED, SURVIVED, TIMED_OUT, Trial
from scripts.evidence.mutants import Mutant, candidates, mutated
from scripts.evidence.mutation import ROOMS, judgements, mutation_tables, room_tests, sample_mutants, try_mutants

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
    for one in _candidates(tmp_path, "É = 'é'; a = 1 < 2\n"):
        source = (tmp_path / "module.py").read_bytes()
        assert source[one.start : one.stop].decode() == one.before
        assert mutated(one, source) == source[: one.start] + one.after.encode() + source[one.stop :]


def test_the_sample_is_the_same_each_time_and_of_every_room() -> None:
    first, second = (sample_mutants(ROOT, 60) for _ in range(2))
    assert first == second
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
        "from scripts.evidence.mutant_trials import load_libraries, run_tests\n"
        "if __name__ == '__main__':\n"
        "    root, path, tests = Path(sys.argv[1]), 'finflow/ledger/costs.py', ['tests/ledger/test_costs.py']\n"
        "    load_libraries()\n"
        "    source = (root / path).read_bytes()\n"
        "    total = 'self.rate * xp.sum(xp.abs(trades), axis=-1)'\n"
        "    (found,) = [one for one in candidates(root / path, root) if one.before == total]\n"
        "    for content in (mutated(found, source), source + b'# the same\\n'):\n"
        "        print(run_tests(root, tests, path, content).status)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, str(ROOT)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert ended.stdout.split() == [KILLED, SURVIVED], ended.stderr


class _Tests:
    """Stands for running tests: says what it was asked, and answers as it is told."""

    def __init__(self, status: str = KILLED, clean: str = SURVIVED) -> None:
        self.status, self.clean, self.asked = status, clean, 0

    def __call__(self, root: Path, tests: Any, path: str = "", source: bytes = b"", timeout: float = 0.0) -> Trial:
        self.asked += bool(path)
        return Trial(self.status if path else self.clean, "a test" if self.status == KILLED else "", 1.0)


def test_a_killed_mutant_is_tried_once_and_a_survivor_again_when_tests_change() -> None:
    saved: list[list[dict[str, Any]]] = []
    run = _Tests()
    results = try_mutants(ROOT, 8, [], saved.append, run)
    assert run.asked == len(results) == 8
    assert saved[-1] == results
    again = _Tests()
    assert try_mutants(ROOT, 8, results, saved.append, again) == results
    assert again.asked == 0
    survived = [{**one, "status": SURVIVED, "tests": "earlier"} for one in results]
    try_mutants(ROOT, 8, survived, saved.append, again)
    assert again.asked == 8


def test_tests_that_fail_without_a_mutant_are_an_error() -> None:
    with pytest.raises(EvidenceError, match="the tests of ledger fail without a mutant"):
        try_mutants(ROOT, 8, [], lambda _: None, _Tests(clean=KILLED))


def test_the_page_counts_survivors_and_leaves_equivalent_ones_out() -> None:
    one = {"room": "ledger", "path": "a.py", "line": 3, "kind": "constant", "before": "1", "by": ""}
    results = [{**one, "after": str(k), "status": KILLED} for k in range(7)]
    results += [{**one, "after": "7", "status": TIMED_OUT}, *({**one, "after": k, "status": SURVIVED} for k in "89")]
    lines = mutation_tables(results, {"ledger": 40}, {("a.py", "1", "8"): "it is the same"}).splitlines()
    assert lines[2].startswith("| ledger | 40 | 10 | 8 | 1 | 2 | 1 | 80.0% (44.4% to 97.5%) | 88.9% (")
    assert "| a.py:3 | constant | `1` | `8` | it is the same |" in lines


def test_every_judgement_has_a_reason_and_a_place() -> None:
    for (path, before, _), reason in judgements().items():
        assert before in (ROOT / path).read_text("utf-8")
        assert path.split("finflow/")[1].startswith(tuple(ROOMS))
        assert len(reason) > 10
