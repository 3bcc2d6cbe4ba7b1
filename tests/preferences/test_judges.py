"""Judges: their utilities by hand, their noise, and rules in their order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from finflow.config.preferences_section import JudgeConfig
from finflow.preferences.judges import (
    SHALLOWEST,
    log_growth,
    make_judge,
    mean_variance,
    measure,
    rule_judge,
    segment_calmar,
    synthetic_judge,
)
from finflow.preferences.segment_paths import PortfolioPath

MakePath = Callable[..., PortfolioPath]


def test_utilities_by_hand(path_of: MakePath) -> None:
    path = path_of([0.1, -0.2, 0.05])
    mean = -0.05 / 3
    variance = ((0.1 - mean) ** 2 + (-0.2 - mean) ** 2 + (0.05 - mean) ** 2) / 3
    assert mean_variance(path) == pytest.approx(mean - 2.5 * variance, abs=1e-15)
    growth = np.log(1.1 * 0.8 * 1.05)
    assert log_growth(path) == pytest.approx(growth, abs=1e-15)
    assert segment_calmar(path) == pytest.approx(growth / 0.2, abs=1e-12)
    assert segment_calmar(path_of([0.01, 0.01])) == pytest.approx(2 * np.log(1.01) / SHALLOWEST)


def test_measures_by_hand(path_of: MakePath) -> None:
    found = measure(path_of([0.1, -0.2, 0.05], turnover=0.01), 252)
    expected = {"drawdown": 0.2, "turnover": 2.52, "return": 1.1 * 0.8 * 1.05 - 1.0, "loss": 0.2}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12)
    assert found["volatility"] == pytest.approx(np.std([0.1, -0.2, 0.05], ddof=1) * np.sqrt(252))


def test_without_noise_the_better_segment_is_certain(path_of: MakePath) -> None:
    good, bad = path_of([0.01, 0.02]), path_of([0.01, -0.02])
    found = synthetic_judge(log_growth)([(good, bad), (bad, good), (good, good)])
    assert found.chance.tolist()[:2] == [1.0, 0.0]
    assert found.tie.tolist() == [False, False, True]
    assert found.attainable == 1.0


def test_a_share_of_the_answers_is_reversed(path_of: MakePath) -> None:
    found = synthetic_judge(log_growth, mistakes=0.1)([(path_of([x]), path_of([0.0])) for x in (0.03, -0.02)])
    assert found.chance.tolist() == [0.9, 0.1]
    assert found.attainable == pytest.approx(0.9)


def test_the_first_rule_that_tells_segments_apart_decides(path_of: MakePath) -> None:
    judge = rule_judge(["drawdown <= 0.2", "turnover <= 2", "return >= 0"], 252)
    deep, calm, busy = path_of([0.5, -0.3]), path_of([0.0, -0.01]), path_of([0.0, 0.01], turnover=0.1)
    found = judge([(deep, calm), (calm, busy), (busy, calm), (calm, path_of([0.0, -0.02]))])
    assert found.chance.tolist() == [0.0, 1.0, 0.0, 0.5]
    assert found.tie.tolist() == [False, False, False, True]


@pytest.mark.parametrize("name", ["mean-variance", "calmar", "log-growth", "rules"])
def test_every_judge_can_be_named(name: str, path_of: MakePath) -> None:
    judge = make_judge(name, JudgeConfig(), 252)
    assert judge([(path_of([0.02, 0.01]), path_of([-0.3, -0.01]))]).chance.tolist() == [1.0]
