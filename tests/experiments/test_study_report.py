"""The page of a study shows what its numbers say, and nothing that is not there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from finflow.evaluation.page.page_numbers import look_up
from finflow.experiments.tuning import study_report
from finflow.experiments.tuning.study import ATTRIBUTES, encode_returns
from finflow.experiments.tuning.study_report import NUMBERS, PAGE, StudyData, draw_figures, study_files

SPACE: dict[str, BaseDistribution] = {
    "bcell.hidden_dim": CategoricalDistribution([8, 16]),
    "bcell.tau": FloatDistribution(0.01, 0.1, log=True),
}


def trial(number: int, state: TrialState, **known: Any) -> FrozenTrial:
    made = create_trial(state=state, **known)
    made.number = number
    return made


def study(objective: tuple[str, ...] = ("sharpe",), count: int = 8) -> StudyData:
    rng = np.random.default_rng(2)
    trials = [
        trial(
            number,
            TrialState.COMPLETE,
            values=rng.normal(size=len(objective)).tolist(),
            params={"bcell.tau": float(rng.uniform(0.01, 0.1)), "bcell.hidden_dim": int(rng.choice([8, 16]))},
            distributions=SPACE,
            intermediate_values={1: 0.1, 2: float(rng.normal())} if len(objective) == 1 else {},
            user_attrs={ATTRIBUTES.updates: 100, ATTRIBUTES.excess: encode_returns(rng.normal(size=320))},
        )
        for number in range(count)
    ]
    params = {"bcell.tau": 0.05, "bcell.hidden_dim": 8}
    stopped = {"params": params, "distributions": SPACE, "user_attrs": {ATTRIBUTES.updates: 20}}
    values = {} if len(objective) > 1 else {"intermediate_values": {1: -1.0}}
    trials.append(trial(count, TrialState.PRUNED, **stopped, **values))
    reason = {ATTRIBUTES.reason: "<script>the guard gave up</script>"}
    trials.append(trial(count + 1, TrialState.FAIL, user_attrs=reason))
    return StudyData(
        title="Search for <b>sharpe</b>",
        subtitle="10 trials",
        objective=objective,
        trials=tuple(trials),
        space=SPACE,
        tried=9,
        facts={"code": "c0de"},
    )


@pytest.fixture(autouse=True)
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures cost seconds, and most tests look at numbers: they are drawn where a test asks for them."""
    monkeypatch.setattr(study_report, "draw_figures", lambda *_: [])


def test_every_number_on_the_page_is_in_the_file() -> None:
    files = study_files(study())
    page, numbers = str(files[PAGE]), json.loads(files[NUMBERS])
    cells = re.findall(r'data-path="([^"]+)" data-value="([^"]+)"', page)
    assert len(cells) > 15
    for path, value in cells:
        assert value == repr(look_up(numbers, tuple(path.split("/"))))
    counts = {"all": 10, "complete": 8, "failed": 1, "pruned": 1, "tried": 9, "updates": 820}
    best = int(np.argmax([one.values[0] for one in study().complete]))
    assert numbers["summary"] == {**counts, "best": best}
    assert numbers["trials"][8]["course"] == {"1": -1.0}


def test_the_page_stands_alone_and_believes_nobody() -> None:
    page = str(study_files(study())[PAGE])
    assert "<script>" not in page
    assert "<b>sharpe" not in page
    assert re.findall(r'(?:src|href)="(?!data:|#)', page) == []


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize(
    ("objective", "views"),
    [
        (("sharpe",), {"history", "importances", "slices", "parallel", "courses", "overfitting"}),
        (
            ("sharpe", "cvar"),
            {"history", "history-2", "front", "importances-2", "slices", "parallel"},
        ),
    ],
)
def test_there_is_a_figure_for_each_view(
    monkeypatch: pytest.MonkeyPatch, objective: tuple[str, ...], views: set[str]
) -> None:
    monkeypatch.setattr(study_report, "draw_figures", draw_figures)
    files = study_files(study(objective))
    assert {f"{view}.png" for view in views} <= {name for name in files if name.endswith(".png")}
    shown = re.findall(r'id="([^"]+)"', str(files[PAGE]))
    assert len(shown) == len(set(shown))
    assert views <= set(shown)


def test_a_study_without_a_result_has_a_page_that_says_so() -> None:
    data = study()
    empty = replace(data, trials=data.trials[-1:])
    page = str(study_files(empty)[PAGE])
    assert "No trial has a value" in page
    assert "There is no probability of overfitting" in page
    assert "the guard gave up" in page
