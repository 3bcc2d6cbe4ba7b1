"""The distance between the features of two markets, in numbers and in words."""

from __future__ import annotations

import json

import numpy as np
import pytest

from finflow.cli.output import distance_lines
from finflow.evaluation.analysis.feature_distance import measure_distance, section
from finflow.evaluation.report.section import section_html

TRAINED = {"calm": np.array([-1.0, 1.0, -1.0, 1.0]), "shifted": np.array([0.0, 2.0, 0.0, 2.0])}
JUDGED = {"calm": np.array([-1.0, 1.0]), "shifted": np.array([1.0, 4.0, 5.0, 6.0])}


def test_the_distance_by_hand() -> None:
    """Training's `shifted` has a mean of 1, a deviation of 1 and a range of 0 to 2."""
    found = measure_distance(TRAINED, JUDGED)
    assert list(found["features"]) == ["shifted", "calm"]
    assert found["features"]["shifted"] == {"outside": 0.75, "shift": 3.0, "furthest": 4.0}
    assert found["features"]["calm"] == {"outside": 0.0, "shift": 0.0, "furthest": 0.0}
    assert found["outside"] == pytest.approx(3 / 6)
    assert (found["largest"], found["largest_of"]) == (3.0, "shifted")


def test_a_feature_that_was_constant_in_training_has_a_finite_distance() -> None:
    found = measure_distance({"flat": np.zeros(3)}, {"flat": np.array([0.0, 2.0])})
    assert found["features"]["flat"] == {"outside": 0.5, "shift": 1.0, "furthest": 2.0}


@pytest.mark.parametrize("known", [True, False])
def test_the_section_and_the_printed_line_say_the_same(known: bool) -> None:
    found = measure_distance(TRAINED, JUDGED) if known else {"unknown": "The prices have changed since"}
    shown = section(found)
    numbers = {"feature_distance": dict(shown.numbers)}
    page = section_html(shown)
    (line,) = distance_lines(json.loads(json.dumps(numbers)))
    if known:
        assert 'data-path="feature_distance/features/shifted/shift"' in page
        assert "50.0% of the features' values" in line
        assert "mean of shifted is 3.00 deviations" in line
    else:
        assert "The prices have changed since." in page
        assert line.endswith("The prices have changed since")


def test_nothing_is_printed_of_an_agent_on_its_own_market() -> None:
    assert distance_lines({}) == []
