"""The table of the gate in crises has what a small training's gate did, window by window."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

from finflow.agent.networks.policy import EXPERTS
from scripts.evidence.crises import crises_table, crises_variants
from scripts.evidence.variants import run_missing
from tests.short_trainings import SHORT, write_prices

SMALL = SHORT | {"market.source": "csv", "market.train_end": "2011-12-30", "market.validation_end": "2012-12-31"}


def test_the_gate_is_measured_in_each_window_and_state(tmp_path: Path) -> None:
    wild = np.where(np.arange(950) // 60 % 3 == 2, 0.03, 0.008)[:, None]  # a third of the time, for 60 days each
    prices = write_prices(tmp_path / "prices.csv", 950, wild)
    variants = crises_variants(1, {**SMALL, "market.path": str(prices)})
    (found,) = run_missing(variants, tmp_path / "evidence", tmp_path / "runs")
    assert set(found["gate"]) == {"training", "validation"}
    for window in found["gate"].values():
        share = window["crisis"]["decisions"] / sum(state["decisions"] for state in window.values())
        assert 0.2 < share < 0.5  # the score has seen the wild days, which are a third
        assert all(sum(state["gate"].values()) == pytest.approx(1.0) for state in window.values())
    other = copy.deepcopy(found)
    other["gate"]["validation"]["crisis"]["gate"]["defensive"] = 0.5
    first = found["gate"]["validation"]["crisis"]["gate"]["defensive"]
    lines = crises_table([found, other]).splitlines()
    row = next(line for line in lines if line.startswith("| validation | crisis"))
    cell = row.split("|")[4 + EXPERTS.index("defensive")]
    assert float(cell.split("±")[0]) == pytest.approx(50.0 * (first + 0.5), abs=0.06)
