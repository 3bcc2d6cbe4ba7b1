"""The ledger of test readings: it only grows, it counts strategies and not evaluations, and it does not lose count."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from finflow.errors import EvidenceError, OutputError
from finflow.evaluation.statistics.readings_ledger import Reading, Tries, readings_of, record, tries_of


def reading(judged: str, panel: str = "p", active: float | None = 0.01) -> Reading:
    return Reading(
        panel=panel,
        judged=judged,
        name="finflow",
        compared=("equal-weight", "momentum"),
        configuration="c",
        configurations=1,
        window=("2016-01-04", "2022-12-28"),
        active_sharpe=active,
        run="logs/x",
        date="2026-01-31T12:00:00+00:00",
    )


def add_many(path: Path, judged: str) -> None:
    for _ in range(50):
        record(path, reading(judged))


def test_readings_come_back_in_order_and_apart_by_panel(tmp_path: Path) -> None:
    path = tmp_path / "new" / "readings.jsonl"
    assert readings_of(path, "p") == ()
    kept = [reading("a"), reading("b", panel="q"), reading("c", active=None), reading("a")]
    for one in kept:
        record(path, one)
    assert readings_of(path, "p") == (kept[0], kept[2], kept[3])
    assert readings_of(path, "q") == (kept[1],)
    assert len(path.read_text().splitlines()) == 4
    assert json.loads(path.read_text().splitlines()[1])["panel"] == "q"


def test_the_same_policy_judged_again_is_no_other_try() -> None:
    on_file = [
        reading("a", active=0.03),
        reading("b", active=0.02),
        reading("b", active=0.02),
        reading("c", active=None),
    ]
    assert tries_of(on_file, "a", 1) == Tries(configurations=1, others=2, sharpes=(0.02,))
    assert tries_of(on_file, "new", 5).total == 8
    assert tries_of([], "new", 1) == Tries()
    assert Tries().total == 1


def test_a_try_counts_at_least_as_much_as_luck_alone_would_move_it() -> None:
    assert Tries().variance(0.05, 101) == 0.01
    assert Tries(others=2, sharpes=(0.05, 0.05)).variance(0.05, 101) == 0.01
    assert Tries(others=1, sharpes=(0.5,)).variance(-0.5, 101) == pytest.approx(0.5)


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=add_many, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [sum(one.judged == name for one in readings_of(path, "p")) for name in "ab"] == [50, 50]


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "readings.jsonl"
    record(path, reading("a"))
    path.write_text(path.read_text() + path.read_text()[:100])
    assert readings_of(path, "p") == (reading("a"),)
    record(path, reading("b"))
    assert readings_of(path, "p") == (reading("a"), reading("b"))


@pytest.mark.parametrize("damage", ["nonsense", '{"panel": "p"}', "[1]", "{}"])
def test_a_damaged_ledger_is_named_with_its_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "readings.jsonl"
    record(path, reading("a"))
    path.write_text(path.read_text() + damage + "\n")
    with pytest.raises(
        EvidenceError, match=r"line 2 of the ledger of test readings .*readings\.jsonl is damaged; repair it"
    ):
        readings_of(path, "p")


def test_a_ledger_that_cannot_be_kept_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="a file is in the way"):
        record(tmp_path / "file" / "readings.jsonl", reading("a"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(EvidenceError, match="cannot be read"):
        readings_of(tmp_path / "folder", "p")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EvidenceError, match="cannot be read"):
        readings_of(tmp_path / "binary", "p")
