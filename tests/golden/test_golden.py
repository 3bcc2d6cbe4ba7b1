"""The small runs come out as they were kept: bit for bit where they were made, within rounding elsewhere.

One part alone: ``pytest tests/golden -k walk_forward``. After a change that is meant to change results:
``python tests/golden/runs.py --write``, with the reason in the commit.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from tests.golden import runs

TENSOR = "bcell/policy/gate.weight"
LATEST = "checkpoint_latest.safetensors"


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("part", runs.PARTS)
def test_a_run_comes_out_as_it_was_kept(part: str) -> None:
    expected = runs.kept(part)
    here = runs.setting()
    lines = runs.differences(expected.artefacts, runs.make(part), exact=expected.made_on == here)
    how = "bit for bit" if expected.made_on == here else f"within rounding: kept on {expected.made_on}, here {here}"
    assert not lines, "\n".join([f"{len(lines)} differences ({how}), the first of them:", *lines[:10]])


@pytest.fixture
def guarded() -> runs.Artefacts:
    """The kept results of a training, for a test to change."""
    return copy.deepcopy(runs.kept("guarded").artefacts)


def test_the_code_that_is_noted_gave_what_is_kept() -> None:
    """Pages of evidence say of its results that the present code's would be the same."""
    digest, *codes = runs.CODES.read_text("ascii").split()
    assert digest == runs.kept_digest(), "run python tests/golden/runs.py --confirm"
    assert all(len(code) == 16 for code in codes)


def compared(changed: runs.Artefacts, exact: bool) -> list[str]:
    return runs.differences(runs.kept("guarded").artefacts, changed, exact)


def test_what_is_kept_covers_the_guard_and_every_kind_of_file(guarded: runs.Artefacts) -> None:
    assert {"rollback", "learning rate", "critic_loss"} <= {event["signal"] for event in guarded["events.jsonl"]}
    files = {"metrics.json", "metrics.jsonl", "readings.jsonl", "dataset.npz", "report.html", "trades.parquet"}
    assert files | {LATEST, f"{LATEST}, facts", "returns.csv", "figures"} <= guarded.keys()
    assert len(guarded[LATEST]) > 300
    assert guarded["report.html"]["count"] > 100


@pytest.mark.parametrize(
    ("change", "exactly", "nearly"),
    [
        (lambda value: float(np.nextafter(value, 9.0)), True, False),
        (lambda value: value * (1.0 + runs.RELATIVE / 2.0), True, False),
        (lambda value: value * (1.0 + 3.0 * runs.RELATIVE) + 2.0 * runs.ABSOLUTE, True, True),
        (int, True, True),
        (lambda value: None, True, True),
        (lambda value: float("nan"), True, True),
    ],
    ids=["the last bit", "rounding", "more than rounding", "another type", "nothing", "no number"],
)
def test_a_number_that_differs_is_named_with_both_values(
    guarded: runs.Artefacts, change: Any, exactly: bool, nearly: bool
) -> None:
    figures = guarded["metrics.json"]["strategies"]["finflow"]
    was = figures["sharpe"]
    figures["sharpe"] = change(was)
    line = f"metrics.json: strategies/finflow/sharpe was {was!r}, is {figures['sharpe']!r}"
    assert compared(guarded, exact=True) == ([line] if exactly else [])
    assert compared(guarded, exact=False) == ([line] if nearly else [])


@pytest.mark.parametrize("exact", [True, False])
def test_a_planted_difference_is_seen_on_any_machine(guarded: runs.Artefacts, exact: bool) -> None:
    guarded[f"{LATEST}, facts"]["training"]["counters"]["update"] += 1
    guarded[LATEST][TENSOR]["sum"] += 1.0
    guarded[LATEST][TENSOR]["sha256"] = "0"
    guarded[LATEST]["learners/0/portfolios/bar"]["sha256"] = "0"  # one bit of what it stands for
    guarded["events.jsonl"][0]["signal"] = "other"
    guarded["metrics.jsonl"].pop()
    del guarded["report.html"]
    found = compared(guarded, exact)
    begun = [line.split(" was ")[0].split(" is missing")[0] for line in found]
    assert "report.html: the file" in begun
    assert f"{LATEST}, facts: training/counters/update" in begun
    assert f"{LATEST}: {TENSOR}" in begun
    assert f"{LATEST}: learners/0/portfolios/bar" in begun
    assert "events.jsonl: 0/signal" in begun
    assert any(line.startswith("metrics.jsonl: ") and " is missing; it was " in line for line in found)


def test_what_depends_on_code_time_and_place_is_left_out() -> None:
    content = {"runtime": {"code": "1"}, "kept": [{"path": "/here", "value": 1.0}], "config_hash": "2"}
    assert runs.plain(content) == {"kept": [{"value": 1.0}]}
