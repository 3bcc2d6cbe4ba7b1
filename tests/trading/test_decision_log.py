"""The log of decisions: whole after a crash, and no line of it can be changed unseen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finflow.errors import FinflowError
from finflow.trading.decision_log import START, DecisionLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = DecisionLog.read(tmp_path / "state.jsonl")
    for number in range(3):
        log.append({"kind": "decision", "date": f"2020-01-0{number + 1}", "cash": 0.1 + 0.2 * number})
    return log.path


def test_what_is_read_is_what_was_written(path: Path) -> None:
    found = DecisionLog.read(path).entries
    assert [entry["cash"] for entry in found] == [0.1, 0.1 + 0.2, 0.1 + 0.4]


def test_each_line_holds_the_hash_of_the_one_before(path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [line["previous"] for line in lines] == [START, lines[0]["sha256"], lines[1]["sha256"]]


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_changed_line_is_refused(path: Path, line: int) -> None:
    lines = path.read_text("utf-8").splitlines()
    lines[line] = lines[line].replace("2020", "2021")
    path.write_text("\n".join(lines) + "\n", "utf-8")
    with pytest.raises(FinflowError, match=f"line {line + 1} of .* was changed"):
        DecisionLog.read(path)


def test_two_writers_follow_one_another(path: Path) -> None:
    first, second = DecisionLog.read(path), DecisionLog.read(path)
    first.append({"kind": "decision", "date": "2020-01-04"})
    second.append({"kind": "paper", "date": "2020-01-05"})
    assert [entry["date"] for entry in DecisionLog.read(path).entries][3:] == ["2020-01-04", "2020-01-05"]


def test_a_line_that_was_taken_out_is_missed(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    path.write_text("\n".join([lines[0], lines[2]]) + "\n", "utf-8")
    with pytest.raises(FinflowError, match=r"line 2 .*does not follow"):
        DecisionLog.read(path)


@pytest.mark.parametrize("left", [1, 20, -1])
def test_a_line_cut_short_by_a_crash_is_cut_off_and_said(path: Path, left: int) -> None:
    content = path.read_bytes()
    last = content.splitlines()[2]
    path.write_bytes(content[: -len(last) - 1] + last[:left])
    log = DecisionLog.read(path)
    assert log.message is not None
    assert len(log.entries) == 2
    log.append({"kind": "decision", "date": "2020-01-03", "cash": 0.1 + 0.2 * 2})
    assert path.read_bytes() == content
    assert DecisionLog.read(path).message is None
