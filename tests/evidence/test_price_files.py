"""Ten thousand files of prices with random faults, by the readers and by --mode inspect: no crash and no hang."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.market.fuzzed_files import inspected, readers

CASES, PART = 10_000, 2_500


@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_the_readers_read_or_refuse(first: int, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + PART):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcomes.update(readers(folder, seed))
    assert set(outcomes) == {"read", "refused"}
    assert min(outcomes.values()) > PART / 20


@pytest.mark.parametrize("first", range(CASES, 2 * CASES, PART))
def test_inspect_answers_or_ends_with_status_2(first: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = Counter(inspected(tmp_path, seed) for seed in range(first, first + PART))
    assert set(outcomes) == {"read", "refused"}
    assert min(outcomes.values()) > PART / 20
    assert "fault in finflow" not in capsys.readouterr().err
