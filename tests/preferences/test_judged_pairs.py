"""Judges by hand, and the pairs of a market that they are given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from finflow.config.preferences_section import JudgeConfig
from finflow.errors import FinflowError
from finflow.evaluation.backtest import run_backtests
from finflow.preferences.judged_pairs import (
    SHALLOWEST,
    judge_pairs,
    log_growth,
    make_judge,
    mean_variance,
    measure,
    rule_judge,
    segment_calmar,
    synthetic_judge,
)
from finflow.preferences.pairs import Segment
from finflow.preferences.segment_paths import PortfolioPath, SegmentMarket, cut, simulate_strategies
from finflow.strategies.classical import named_strategy

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


@pytest.mark.parametrize("mistakes", [0.0, 0.1])
def test_the_better_segment_is_preferred_but_for_a_share_of_mistakes(path_of: MakePath, mistakes: float) -> None:
    good, bad = path_of([0.01, 0.02]), path_of([0.01, -0.02])
    found = synthetic_judge(log_growth, mistakes=mistakes)([(good, bad), (bad, good), (good, good)])
    assert found.chance.tolist()[:2] == [1.0 - mistakes, mistakes]
    assert found.tie.tolist() == [False, False, True]
    assert found.attainable == pytest.approx(1.0 - mistakes)


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


def test_a_pair_leads_back_to_the_segments_that_were_judged(small_market: SegmentMarket, judging: JudgeConfig) -> None:
    judge = synthetic_judge(log_growth)
    made = judge_pairs(small_market, judge, 60, judging, seed=3)
    paths = simulate_strategies(
        small_market, {one.strategy for pair in made.pairs for one in (pair.first, pair.second)}
    )
    for pair in made.pairs:
        first, second = (cut(paths[one.strategy], one) for one in (pair.first, pair.second))
        assert len(first) == len(second) == 10
        assert (first.dates == second.dates).all()
        assert pair.better == ("first" if log_growth(first) > log_growth(second) else "second")
    assert judge_pairs(small_market, judge, 60, judging, seed=3).pairs == made.pairs


def test_mistakes_are_as_frequent_as_asked_for(small_market: SegmentMarket, judging: JudgeConfig) -> None:
    judge = synthetic_judge(log_growth, mistakes=0.2)
    made = judge_pairs(small_market, judge, 2000, judging, seed=0)
    wrong = [(pair.better == "first") != (pair.chance == 0.8) for pair in made.pairs]
    assert made.opinions.attainable == pytest.approx(0.8)
    assert np.mean(wrong) == pytest.approx(0.2, abs=0.03)


def test_dates_outside_the_training_window_and_unknown_strategies_are_refused(small_market: SegmentMarket) -> None:
    path = simulate_strategies(small_market, ["equal-weight"])["equal-weight"]
    outside = "lie outside its holding periods in the training window"
    for start, end, said in (
        ("2022-01-03", "2022-01-10", outside),
        ("1999-01-04", "1999-01-08", outside),
        ("2020-03-07", "2020-03-08", "no holding period"),
    ):
        segment = Segment.model_validate({"strategy": "equal-weight", "start": start, "end": end})
        with pytest.raises(FinflowError, match=said):
            cut(path, segment)
    for name in ("momentun", "random-07", "random--1"):
        with pytest.raises(FinflowError, match=f"there is no strategy '{name}'"):
            simulate_strategies(small_market, [name])


def test_a_path_is_that_of_the_backtest(small_market: SegmentMarket) -> None:
    path = simulate_strategies(small_market, ["momentum"])["momentum"]
    (run,) = run_backtests(
        small_market.process, small_market.window, [named_strategy("momentum", small_market.evaluation)]
    )
    assert (path.returns == run.returns).all()
    assert (path.held[1:] == run.weights[:-1]).all()
    assert path.held[0].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_random_portfolios_are_named_by_their_seed(small_market: SegmentMarket) -> None:
    first, again = (simulate_strategies(small_market, ["random-0", "random-1"]) for _ in range(2))
    assert (first["random-0"].filled == again["random-0"].filled).all()
    assert (first["random-0"].turnover > 1e-9).mean() > 0.9
    assert 0.15 < (first["random-1"].turnover > 1e-9).mean() < 0.25
