"""Dependencies: the lock holds the versions of the constraints with hashes, and an audit never passes silently."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts.audit_dependencies import judged, main as audit  # noqa: E402
from scripts.lock_dependencies import CONSTRAINTS, LOCK, kept, pinned  # noqa: E402

FOUND = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"]}


def test_the_lock_holds_every_version_of_the_constraints_that_the_tests_need_with_its_hash() -> None:
    lock = LOCK.read_text("utf-8")
    locked, wanted = pinned(lock), pinned(CONSTRAINTS.read_text("utf-8"))
    assert {name: wanted.get(name) for name in locked} == locked, "run make lock after a change of constraints.txt"
    needed = re.findall(r'^ +"([A-Za-z][\w.-]*)(?:\[\w+\])?[><=]', (ROOT / "pyproject.toml").read_text("utf-8"), re.M)
    assert {name.lower() for name in needed} - {"torch"} | {"setuptools", "pydantic-core"} <= locked.keys()
    assert "torch" not in locked
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(entries) == len(locked)
    assert [entry.split()[0] for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry)] == []


def test_what_torch_brings_is_not_locked() -> None:
    compiled = "a==1 \\\n    --hash=sha256:0\nnvidia-x==2 \\\n    --hash=sha256:1\ntorch==3 \\\n    --hash=sha256:2\n"
    assert kept(compiled, "a==1\ntorch==3\n") == "a==1 \\\n    --hash=sha256:0\n"


@pytest.mark.parametrize(
    ("dependencies", "said", "status"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], "1 packages audited, 0 known vulnerabilities", 0),
        ([{"name": "a", "version": "1", "vulns": [FOUND]}], "a 1: PYSEC-1, fixed in 2.0", 1),
        ([{"name": "a", "skip_reason": "not found"}], "not audited: the service of advisories told nothing of 1", 2),
        ([], "not audited", 2),
    ],
)
def test_an_audit_tells_what_was_not_looked_up(dependencies: list[dict[str, object]], said: str, status: int) -> None:
    lines, found = judged(dependencies)
    assert lines[0].startswith(said)
    assert found == status


def test_an_audit_without_an_index_is_a_remark_only_where_that_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(["/nowhere/pip-audit"]) == 2
    assert audit(["/nowhere/pip-audit", "--where-reachable"]) == 0
    assert capsys.readouterr().out.count("not audited: pip-audit is not installed") == 2
