"""Pairs of a market: what is drawn, what a segment leads back to, and the command that writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finflow.cli import main
from finflow.config import Config
from finflow.errors import FinflowError
from finflow.evaluation.backtest import run_backtests
from finflow.preferences.judges import SyntheticJudge, log_growth
from finflow.preferences.pair_making import judge_pairs
from finflow.preferences.pairs import Segment, read_pairs
from finflow.preferences.segment_paths import RandomPortfolios, SegmentMarket, cut, random_seed, simulate_strategies
from tests.commands import refusal
from tests.preferences.conftest import small_options


def test_a_pair_leads_back_to_the_segments_that_were_judged(small_market: SegmentMarket, small_config: Config) -> None:
    made = judge_pairs(small_market, SyntheticJudge(log_growth), 60, small_config.preferences.judge, seed=3)
    names = {segment.strategy for pair in made.pairs for segment in (pair.first, pair.second)}
    paths = simulate_strategies(small_market, sorted(names))
    for pair in made.pairs:
        first, second = (cut(paths[one.strategy], one, small_market) for one in (pair.first, pair.second))
        assert len(first) == len(second) == 10
        assert (first.dates == second.dates).all()
        assert pair.better == ("first" if log_growth(first) > log_growth(second) else "second")
    again = judge_pairs(small_market, SyntheticJudge(log_growth), 60, small_config.preferences.judge, seed=3)
    assert again.pairs == made.pairs


def test_mistakes_are_as_frequent_as_asked_for(small_market: SegmentMarket, small_config: Config) -> None:
    judge = SyntheticJudge(log_growth, mistakes=0.2)
    made = judge_pairs(small_market, judge, 2000, small_config.preferences.judge, seed=0)
    wrong = [(pair.better == "first") != (pair.chance == 0.8) for pair in made.pairs]
    assert made.opinions.attainable == pytest.approx(0.8)
    assert np.mean(wrong) == pytest.approx(0.2, abs=0.03)


def test_dates_outside_the_training_window_are_refused(small_market: SegmentMarket) -> None:
    path = simulate_strategies(small_market, ["equal-weight"])["equal-weight"]
    for start, end in (("2022-01-03", "2022-01-10"), ("1999-01-04", "1999-01-08")):
        segment = Segment.model_validate({"strategy": "equal-weight", "start": start, "end": end})
        with pytest.raises(FinflowError, match="lie outside its holding periods in the training window"):
            cut(path, segment, small_market)
    with pytest.raises(FinflowError, match="there is no strategy 'momentun'"):
        simulate_strategies(small_market, ["momentun"])


def test_random_portfolios_are_named_by_their_seed(small_market: SegmentMarket) -> None:
    assert [random_seed(name) for name in ("random-7", "random-07", "random", "random--1")] == [7, None, None, None]
    runs = run_backtests(small_market.process, small_market.window, [RandomPortfolios(seed) for seed in (0, 1, 0)])
    assert (runs[0].weights == runs[2].weights).all()
    assert (runs[0].turnover > 1e-9).mean() > 0.9
    assert 0.15 < (runs[1].turnover > 1e-9).mean() < 0.25


def test_the_command_writes_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = small_options()
    path = tmp_path / "pairs.jsonl"
    command = ["--mode", "prefer", "--judge", "mean-variance", "--pairs", "50", "--output", str(path), *options]
    assert main([*command, "--set", "preferences.judge.mistakes=0.1"]) == 0
    assert "50 pairs, 0 ties; attainable accuracy 0.900" in capsys.readouterr().out
    assert len(read_pairs([path]).pairs) == 50


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--output", "x.jsonl"), "name the file of your answers after --ask"),
        (("--judge", "calmer", "--output", "x.jsonl"), "did you mean calmar?"),
        (("--judge", "calmar"), "--judge needs --output with the file to write"),
        (("--judge", "calmar", "--output", "x", "--set", "preferences.judge.rules=[beauty]"), "a rule is one of"),
    ],
)
def test_wrong_options_are_answered_in_a_line(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert said in refusal(capsys, "--mode", "prefer", *arguments)
