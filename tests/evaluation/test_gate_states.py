"""Gate weights by market state, by the crisis score that the agent observed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from finflow.evaluation.analysis.expert_traits import gate_by_state, gate_section
from finflow.evaluation.report.section import section_html

NAMES = ("defensive", "growth")


def test_each_decision_counts_where_the_market_was() -> None:
    crisis = np.array([0.0, 0.199, 0.2, 0.79, 0.8, 1.0])
    gate = np.array([[0.1, 0.9], [0.3, 0.7], [0.5, 0.5], [0.5, 0.5], [0.8, 0.2], [1.0, 0.0]])
    cash = np.array([0.0, 0.0, 0.1, 0.3, 0.4, 0.6])
    found = gate_by_state(crisis, gate, cash, NAMES)
    assert [one["decisions"] for one in found.values()] == [2, 2, 2]
    assert found["calm"]["gate"] == pytest.approx({"defensive": 0.2, "growth": 0.8})
    assert found["crisis"]["gate"] == pytest.approx({"defensive": 0.9, "growth": 0.1})
    assert [one["cash"] for one in found.values()] == pytest.approx([0.0, 0.2, 0.5])


def test_a_state_that_never_was_is_left_out(
    read_page: Callable[[str], Any], numbers_hold: Callable[[Any, Any], int]
) -> None:
    found = gate_by_state(np.array([0.1, 0.9]), np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([0.0, 0.3]), NAMES)
    assert list(found) == ["calm", "crisis"]
    told = gate_section(found, NAMES, "all decisions")
    assert numbers_hold(read_page(section_html(told)), {"gate_states": told.numbers}) == 2 * 4
