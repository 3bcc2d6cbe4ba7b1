"""The report says how a training generalised, in numbers that metrics.json has."""

from __future__ import annotations

import pandas as pd
import pytest

from finflow.evaluation.analysis.training_sections import generalisation_section
from finflow.evaluation.report.report_numbers import look_up
from finflow.evaluation.report.section import section_html


def rows() -> pd.DataFrame:
    """Three points of a training whose validation is best at the second, and a row of losses between."""
    train, validation = [1e-4, 3e-4, 6e-4], [1e-4, 2e-4, 5e-5]
    points = [
        {
            "phase": "online",
            "update": 100 * (place + 1),
            "validation_value": validation[place],
            "generalisation_train_value": train[place],
            "generalisation_validation_value": validation[place],
            "generalisation_train_sharpe": 1.0 + place,
            "generalisation_validation_sharpe": 0.5,
            "generalisation_gap": train[place] - validation[place],
            "generalisation_kl": 0.1 * place,
        }
        for place in range(3)
    ]
    return pd.DataFrame([points[0], {"phase": "online", "update": 150, "q_loss": 0.1}, *points[1:]])


@pytest.mark.usefixtures("images")
def test_first_best_and_last_point_are_shown() -> None:
    found = generalisation_section(rows())
    assert found is not None
    assert found.numbers["points"] == 3
    assert [look_up(found.numbers, (point, "update")) for point in ("first", "best", "last")] == [100, 200, 300]
    assert look_up(found.numbers, ("last", "gap")) == 6e-4 - 5e-5
    assert look_up(found.numbers, ("best", "kl")) == 0.1
    page = section_html(found)
    assert 'data-path="generalisation/best/validation_value"' in page
    assert found.figures[0].png.startswith(b"\x89PNG")


def test_nothing_is_shown_where_nothing_was_measured() -> None:
    assert generalisation_section(pd.DataFrame()) is None
    assert generalisation_section(pd.DataFrame({"update": [1], "q_loss": [0.1]})) is None
