"""A section shows the numbers that metrics.json has, and no others."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from finflow.evaluation.analysis.training_sections import distance_section, generalisation_section, measure_distance
from finflow.evaluation.page import section
from finflow.evaluation.page.page_numbers import agreeing_decimals, look_up, show
from finflow.evaluation.page.section import ROW, Cell, Row, Section, Table, make_table
from finflow.evaluation.report.report_page import build_page
from finflow.evaluation.report.results import compute_results
from tests.evaluation.made_up import report_data, section_html

NUMBERS = {"a<b": {"sharpe": 1.23456, "error": 0.5, "nothing": None, "word": "yes"}}


def made(*cells: Cell | str) -> Section:
    rows = (Row("<first>", cells, marked=True),)
    return Section("made", "Made & up", NUMBERS, (Table("A table", ("Of", *("x" for _ in cells)), rows, "<caption>"),))


def test_a_cell_carries_its_place_in_metrics_json_and_the_whole_number() -> None:
    text = section_html(made(Cell(("a<b", "sharpe"), error=("a<b", "error")), "in-sample", Cell(("a<b", "nothing"))))
    assert 'data-path="made/a&lt;b/sharpe" data-value="1.23456">1.23<small>± <span' in text
    assert 'data-path="made/a&lt;b/error" data-value="0.5">0.50</span></small>' in text
    assert "<td>in-sample</td>" in text
    assert 'data-value="null">–</td>' in text, "an undefined number is a dash"
    for raw in ("<first>", "<caption>", "a<b", "Made & up"):
        assert raw not in text


def test_a_sentence_may_show_numbers_too() -> None:
    made_up = Section("a/b", "x", NUMBERS, words=(("It is <", Cell(("a<b", "sharpe"), "%", 1, plus=True), "."),))
    shown = 'It is &lt;<span data-path="a~1b/a&lt;b/sharpe" data-value="1.23456" data-scale="100.0">+123.5'
    assert shown in section_html(made_up)


@pytest.mark.parametrize("path", [("a<b", "none"), ("b",), ("a<b", "word"), ("a<b",), ("a<b", "sharpe", "more")])
def test_a_table_cannot_show_what_the_file_does_not_have(path: tuple[str, ...]) -> None:
    with pytest.raises(KeyError):
        look_up(NUMBERS, path)


@pytest.mark.parametrize(
    ("value", "unit", "decimals", "plus", "said"),
    [
        (-0.1234, "%", 1, False, "−12.3 %"),
        (0.1234, "%", 1, True, "+12.3 %"),
        (-0.0001, "%", 1, True, "0.0 %"),
        (1234567.8, ",", 0, False, "1,234,568"),
        (12.5, "bp", 1, False, "12.5 bp"),
        (1.005, "", 2, False, "1.00"),
        (4.22, "×", 1, False, "4.2×"),
        (378.0, "years", 1, False, "1.5"),
        (-0.09876, "g", 3, False, "−0.0988"),
        (math.inf, "", 1, False, "–"),
    ],
)
def test_numbers_are_written_with_their_units(value: float, unit: str, decimals: int, plus: bool, said: str) -> None:
    assert show(value, unit, decimals, plus=plus).replace("\N{NARROW NO-BREAK SPACE}", " ") == said


def test_a_section_is_in_the_page_in_its_contents_and_in_metrics_json() -> None:
    data = report_data(sections=(made(Cell(("a<b", "sharpe"))),))
    page = build_page(compute_results(data))
    assert '<a href="#made">Made &amp; up</a>' in page.html()
    assert '<section id="made" class="folded"><details><summary><h2>Made &amp; up</h2></summary>' in page.html()
    assert json.loads(page.json())["made"] == NUMBERS


def test_a_terminal_has_the_same_numbers_with_its_own_characters() -> None:
    """Columns stand under their heads; intervals give way where a table would be too wide."""
    numbers = {"a": {"gain": -0.5, "bounds": [-1.0, 2.0]}, "b": {"gain": None, "bounds": None}}
    cell = Cell((ROW, "gain"), "%", 1, bounds=(ROW, "bounds"))
    few, many = (Section("k", "", numbers, (make_table("T", "Of", ["a", "b"], [("x", cell)] * n),)) for n in (1, 9))
    assert [line.split() for line in few.text({"k": few.numbers})] == [
        *(["T"], ["Of", "x"], ["a", "-50.0%", "(-100.0", "to", "200.0%)"], ["b", "-"])
    ]
    assert "(" not in "".join(many.text({"k": many.numbers}))


def test_the_distance_between_the_features_of_two_markets_by_hand() -> None:
    """Training's `shifted` has a mean of 1, a deviation of 1 and a range of 0 to 2; `flat` never moved in it."""
    trained = {"calm": np.array([-1.0, 1.0]), "shifted": np.array([0.0, 2.0]), "flat": np.zeros(2)}
    judged = {"calm": np.array([-1.0, 1.0]), "shifted": np.array([1.0, 4.0, 5.0, 6.0]), "flat": np.array([0.0, 2.0])}
    found = measure_distance(trained, judged)
    assert list(found["features"]) == ["shifted", "flat", "calm"]
    assert found["features"]["shifted"] == {"outside": 0.75, "shift": 3.0, "furthest": 4.0}
    assert found["features"]["flat"] == {"outside": 0.5, "shift": 1.0, "furthest": 2.0}
    assert found["features"]["calm"] == {"outside": 0.0, "shift": 0.0, "furthest": 0.0}
    assert found["outside"] == pytest.approx(4 / 8)
    assert (found["largest"], found["largest_of"]) == (3.0, "shifted")
    shown = distance_section(found)
    assert 'data-path="feature_distance/features/shifted/shift"' in section_html(shown)
    text = "\n".join(shown.text({"feature_distance": shown.numbers}))
    assert "50.00%" in text
    assert "3.00" in text


def test_the_first_best_and_last_point_of_how_a_training_generalised_are_shown() -> None:
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
    losses = {"phase": "online", "update": 150, "q_loss": 0.1}
    found = generalisation_section(pd.DataFrame([points[0], losses, *points[1:]]))
    assert found is not None
    assert found.numbers["points"] == 3
    assert [look_up(found.numbers, (point, "update")) for point in ("first", "best", "last")] == [100, 200, 300]
    assert look_up(found.numbers, ("last", "gap")) == 6e-4 - 5e-5
    assert look_up(found.numbers, ("best", "kl")) == 0.1
    assert 'data-path="generalisation/best/validation_value"' in section_html(found)
    assert len(found.figures) == 1
    assert generalisation_section(pd.DataFrame(points[:2])).figures == (), "two points are no curve"
    assert generalisation_section(pd.DataFrame([losses])) is None


@given(st.floats(-9.0, 9.0), st.floats(-9.0, 9.0))
def test_a_difference_as_printed_is_that_of_the_numbers_as_printed(one: float, other: float) -> None:
    """0.97 and 1.02 with a difference of -0.04 would not be: three decimals are printed."""
    assert agreeing_decimals(0.9718, 1.0152) == 3
    assert agreeing_decimals(math.nan, 1.0) == 2
    places = agreeing_decimals(one, other)
    printed = [float(show(value, "", places).replace("\N{MINUS SIGN}", "-")) for value in (one, other, one - other)]
    if places < 5:  # no number of decimals makes every difference agree; five are enough in 99.9 % of cases
        assert printed[0] - printed[1] == pytest.approx(printed[2], abs=1e-9)


def luminance(colour: str) -> float:
    """Relative luminance of #rgb or #rrggbb, as the WCAG define it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255.0 for place in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_stands_out_from_every_ground_it_is_on() -> None:
    """A contrast of 4.5 or more (WCAG 2, level AA) in light, dark and print."""
    looks = re.findall(
        r":root\{([^}]*)\}", (Path(section.__file__).parent / "templates" / "style.css").read_text("utf-8")
    )
    assert len(looks) == 3
    for look in looks:
        colours = dict(re.findall(r"--(\w+):(#[0-9a-f]+)", look))
        for ink in ("ink", "soft", "accent"):
            for ground in ("paper", "card", "mark"):
                light, dark = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {ground}: {look}"
