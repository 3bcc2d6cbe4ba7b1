"""The page of a study shows what its numbers say, and nothing that is not there."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np

from finflow.evaluation.multi_run.study_figures import Searched, Tried
from finflow.evaluation.multi_run.study_page import NUMBERS, PAGE, StudyData, study_files
from finflow.evaluation.report.section import look_up
from finflow.evaluation.statistics.backtest_overfitting import overfitting


def study(objective: tuple[str, ...] = ("sharpe",), count: int = 8) -> StudyData:
    rng = np.random.default_rng(2)
    trials = [
        Tried(
            number,
            "complete",
            tuple(rng.normal(size=len(objective)).tolist()),
            {"bcell.tau": float(rng.uniform(0.01, 0.1)), "bcell.hidden_dim": int(rng.choice([8, 16]))},
            {1: 0.1, 2: float(rng.normal())} if len(objective) == 1 else {},
            updates=100,
        )
        for number in range(count)
    ]
    trials.append(Tried(count, "pruned", None, {"bcell.tau": 0.05, "bcell.hidden_dim": 8}, {1: -1.0}, updates=20))
    trials.append(Tried(count + 1, "failed", None, {}, {}, reason="<script>the guard gave up</script>"))
    return StudyData(
        title="Search for <b>sharpe</b>",
        subtitle="10 trials",
        objective=objective,
        trials=tuple(trials),
        space=(
            Searched("bcell.hidden_dim", "one of 8, 16", choices=("8", "16")),
            Searched("bcell.tau", "0.01 to 0.1", True),
        ),
        importances={name: {"bcell.tau": 0.8, "bcell.hidden_dim": 0.2} for name in objective},
        front=(0, 3),
        best=3,
        tried=9,
        overfit=overfitting(rng.normal(size=(320, count))),
        without_overfit="",
        facts={"code": "c0de"},
    )


def test_every_number_on_the_page_is_in_the_file() -> None:
    files = study_files(study())
    page, numbers = str(files[PAGE]), json.loads(files[NUMBERS])
    cells = re.findall(r'data-path="([^"]+)" data-value="([^"]+)"', page)
    assert len(cells) > 15
    for path, value in cells:
        assert value == repr(look_up(numbers, tuple(path.split("/"))))
    assert numbers["summary"] == {
        "all": 10,
        "best": 3,
        "complete": 8,
        "failed": 1,
        "pruned": 1,
        "tried": 9,
        "updates": 820,
    }
    assert numbers["trials"][8]["course"] == {"1": -1.0}


def test_the_page_stands_alone_and_believes_nobody() -> None:
    page = str(study_files(study())[PAGE])
    assert "<script" not in page
    assert "<b>sharpe" not in page
    assert re.findall(r'(?:src|href)="(?!data:|#)', page) == []


def test_there_is_a_figure_for_each_view() -> None:
    names = {name for name in study_files(study()) if name.endswith(".png")}
    assert names == {f"{one}.png" for one in ("history", "importances", "slices", "parallel", "courses", "overfitting")}
    several = {name for name in study_files(study(("sharpe", "cvar", "dsr"))) if name.endswith(".png")}
    assert "front.png" in several


def test_a_study_without_a_result_has_a_page_that_says_so() -> None:
    data = study()
    empty = replace(
        data, trials=data.trials[-1:], importances={}, front=(), best=None, overfit=None, without_overfit="no choice"
    )
    page = str(study_files(empty)[PAGE])
    assert "No trial has a value" in page
    assert "no choice" in page
    assert "the guard gave up" in page
