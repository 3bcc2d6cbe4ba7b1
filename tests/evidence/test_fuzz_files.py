"""A share of the fuzzing of files, and the watch over it: what it should see, it sees."""

from __future__ import annotations

import io
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from finflow.errors import FinflowError
from scripts.evidence import fuzz_files
from scripts.evidence.fuzz_files import KINDS, Outcome, file_name, fuzz_kind, fuzz_missing, fuzz_table
from scripts.evidence.fuzz_mutations import npz_changed
from scripts.evidence.fuzz_readers import Reader

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")

SLOW = ("safetensors: checkpoint", "study: SQLite", "CSV: returns", "npz")  # to set up, or to open; test_durability
QUICK = [kind for kind in KINDS if not kind.startswith(SLOW) and not kind.startswith("Parquet")]
CASES = 10  # of each kind


@pytest.mark.parametrize("kind", QUICK)
def test_a_changed_file_is_taken_or_refused_in_a_line(kind: str, tmp_path: Path) -> None:
    outcome = Outcome()
    fuzz_kind(kind, tmp_path / "fuzz", outcome, CASES)
    assert outcome.wrong == []
    assert outcome.cases == CASES == outcome.said["taken"] + outcome.said["refused"]


class TwoLines(FinflowError):
    """A refusal that does not keep to one line, as no error of finflow does."""

    def __str__(self) -> str:
        return "two\nlines"


def fault(name: str) -> Callable[[Path], object]:
    """A reader with a fault."""

    def read(path: Path) -> object:
        if path.read_bytes() == b"whole":
            return None
        if name == "crash":
            return {}["missing"]
        if name == "end":
            os._exit(1)
        if name == "hang":
            time.sleep(60)
        if name == "lines":
            raise TwoLines
        return path.parent.parent.with_name("elsewhere").write_text("x")

    return read


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("crash", "crash: KeyError"),
        ("end", "crash: the process ended"),
        ("hang", "hang: no end after 1 s"),
        ("lines", "crash: 2 lines"),
        ("write", "written outside: open"),
    ],
)
def test_the_watch_sees_faults_and_goes_on(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Reader(tmp_path / "fuzz" / "run" / "file", (b"whole",), (lambda rng, content: b"changed",), fault(name))
    monkeypatch.setattr(fuzz_files, "PATIENCE", 1.0)
    monkeypatch.setitem(fuzz_files.KINDS, "text: faulty", lambda folder: made)
    outcome = Outcome()
    fuzz_kind("text: faulty", tmp_path / "fuzz", outcome, 2)
    assert (outcome.cases, len(outcome.wrong)) == (2, 2)
    assert outcome.wrong[0].startswith(f"case 0, {said}")


def test_cases_are_made_once_and_the_page_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = ("JSON: holdings", "CSV: fills")
    first = fuzz_missing(tmp_path / "kept", tmp_path / "runs", cases=4, kinds=kinds)
    assert [one["cases"] for one in first] == [4, 4]
    more = fuzz_missing(tmp_path / "kept", tmp_path / "runs", cases=6, kinds=kinds)
    assert [one["cases"] for one in more] == [6, 6]
    page = fuzz_table(more)
    assert "19,988 of the cases are still to be made" in page
    assert "| JSON: holdings | 6 of 10,000 |" in page
    monkeypatch.setattr(fuzz_files, "fuzz_kind", lambda *given: pytest.fail("made again"))
    assert fuzz_missing(tmp_path / "kept", tmp_path / "runs", cases=6, kinds=kinds) == more
    monkeypatch.setattr(fuzz_files, "code_hash", lambda: "other")
    assert fuzz_missing(tmp_path / "kept", tmp_path / "runs", cases=6, seconds=0, kinds=kinds)[0]["cases"] == 0


def test_every_kind_has_a_file_of_its_own() -> None:
    names = [file_name(kind) for kind in KINDS]
    assert len(set(names)) == len(names)
    assert file_name("CSV: prices, one row an asset") == "fuzzing-csv-prices-one-row-an-asset.json"


def test_a_member_that_a_change_has_spoilt_can_be_changed_again() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr("meta.npy", b"cut off")
    for seed in range(60):  # each of eight kinds of changes about seven times
        changed = npz_changed(np.random.default_rng(seed), stream.getvalue())
        assert zipfile.is_zipfile(io.BytesIO(changed))
