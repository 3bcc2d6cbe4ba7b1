"""Pairs of a market: what is drawn, what a segment leads back to, and the command that writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finflow.cli import main
from finflow.config import Config
from finflow.errors import FinflowError
from finflow.evaluation.backtest import run_backtests
from finflow.preferences.judges import log_growth, synthetic_judge
from finflow.preferences.pair_making import judge_pairs
from finflow.preferences.pairs import Segment, read_pairs
from finflow.preferences.segment_paths import SegmentMarket, cut, simulate_strategies
from finflow.strategies.classical import named_strategy
from tests.preferences.conftest import small_options


def test_a_pair_leads_back_to_the_segments_that_were_judged(small_market: SegmentMarket, small_config: Config) -> None:
    judge, settings = synthetic_judge(log_growth), small_config.preferences.judge
    made = judge_pairs(small_market, judge, 60, settings, seed=3)
    paths = simulate_strategies(
        small_market, {one.strategy for pair in made.pairs for one in (pair.first, pair.second)}
    )
    for pair in made.pairs:
        first, second = (cut(paths[one.strategy], one) for one in (pair.first, pair.second))
        assert len(first) == len(second) == 10
        assert (first.dates == second.dates).all()
        assert pair.better == ("first" if log_growth(first) > log_growth(second) else "second")
    assert judge_pairs(small_market, judge, 60, settings, seed=3).pairs == made.pairs


def test_mistakes_are_as_frequent_as_asked_for(small_market: SegmentMarket, small_config: Config) -> None:
    judge = synthetic_judge(log_growth, mistakes=0.2)
    made = judge_pairs(small_market, judge, 2000, small_config.preferences.judge, seed=0)
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


def test_the_command_writes_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_options()
    path = tmp_path / "pairs.jsonl"
    command = ["--mode", "prefer", "--judge", "mean-variance", "--pairs", "50", "--output", str(path), *options]
    assert main([*command, "--set", "preferences.judge.mistakes=0.1"]) == 0
    assert "50 pairs, 0 ties; attainable accuracy 0.900" in capsys.readouterr().out
    assert len(read_pairs([path]).pairs) == 50
