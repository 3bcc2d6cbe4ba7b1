"""Judges by hand, the pairs of a market that they are given, and files of pairs: what is read, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.errors import FinflowError
from finflow.evaluation.backtest import run_backtests
from finflow.preferences.judged_pairs import (
    SHALLOWEST,
    judge_pairs,
    log_growth,
    mean_variance,
    path_measures,
    rule_judge,
    segment_calmar,
    synthetic_judge,
)
from finflow.preferences.pairs import (
    PortfolioPath,
    Segment,
    SegmentMarket,
    cut,
    read_pairs,
    simulate_strategies,
    write_pairs,
)
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
    found = path_measures(path_of([0.1, -0.2, 0.05], turnover=0.01), 252)
    expected = {"drawdown": 0.2, "turnover": 2.52, "return": 1.1 * 0.8 * 1.05 - 1.0, "loss": 0.2}
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12)
    assert found["volatility"] == pytest.approx(np.std([0.1, -0.2, 0.05], ddof=1) * np.sqrt(252))


@pytest.mark.parametrize("mistakes", [0.0, 0.1])
def test_the_better_segment_is_preferred_but_for_a_share_of_mistakes(path_of: MakePath, mistakes: float) -> None:
    good, bad = path_of([0.01, 0.02]), path_of([0.01, -0.02])
    judge = synthetic_judge(log_growth, mistakes=mistakes)
    assert (judge(good, bad), judge(bad, good), judge(good, good)) == (1.0 - mistakes, mistakes, 0.5)


def test_the_first_rule_that_tells_segments_apart_decides(path_of: MakePath) -> None:
    judge = rule_judge(["drawdown <= 0.2", "turnover <= 2", "return >= 0"], 252)
    deep, calm, busy = path_of([0.5, -0.3]), path_of([0.0, -0.01]), path_of([0.0, 0.01], turnover=0.1)
    pairs = ((deep, calm), (calm, busy), (busy, calm), (calm, path_of([0.0, -0.02])))
    assert [judge(*pair) for pair in pairs] == [0.0, 1.0, 0.0, 0.5]


def test_a_pair_leads_back_to_the_segments_that_were_judged(small_market: SegmentMarket) -> None:
    judge = synthetic_judge(log_growth)
    made = judge_pairs(small_market, judge, 60, seed=3)
    paths = simulate_strategies(
        small_market, {one.strategy for pair in made.pairs for one in (pair.first, pair.second)}
    )
    for pair in made.pairs:
        first, second = (cut(paths[one.strategy], one) for one in (pair.first, pair.second))
        assert len(first) == len(second) == 10
        assert (first.dates == second.dates).all()
        assert pair.better == ("first" if log_growth(first) > log_growth(second) else "second")
    assert judge_pairs(small_market, judge, 60, seed=3).pairs == made.pairs


def test_mistakes_are_as_frequent_as_asked_for(small_market: SegmentMarket) -> None:
    judge = synthetic_judge(log_growth, mistakes=0.2)
    made = judge_pairs(small_market, judge, 2000, seed=0)
    wrong = [(pair.better == "first") != (pair.chance == 0.8) for pair in made.pairs]
    assert made.attainable == pytest.approx(0.8)
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
        small_market.process, small_market.window, [named_strategy("momentum", small_market.config.evaluation)]
    )
    assert (path.returns == run.returns).all()
    assert (path.held[1:] == run.weights[:-1]).all()
    assert path.held[0].tolist() == [0.0, 0.0, 0.0, 1.0]


def test_random_portfolios_are_named_by_their_seed(small_market: SegmentMarket) -> None:
    first, again = (simulate_strategies(small_market, ["random-0", "random-1"]) for _ in range(2))
    assert (first["random-0"].filled == again["random-0"].filled).all()
    assert (first["random-0"].turnover > 1e-9).mean() > 0.9
    assert 0.15 < (first["random-1"].turnover > 1e-9).mean() < 0.25


FIRST = {"strategy": "momentum", "start": "2001-01-02", "end": "2001-01-31"}
SECOND = {"strategy": "equal-weight", "start": "2001-02-01", "end": "2001-03-02"}

HEADER = "first_strategy, first_start,first_end,second_strategy,second_start,second_end,better"


def pair_of(better: str = "first", **changes: Any) -> dict[str, Any]:
    return {"first": FIRST, "second": SECOND, "better": better, **changes}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def test_csv_and_json_lines_hold_the_same_pairs(tmp_path: Path) -> None:
    found = read_pairs([lines(tmp_path / "a.jsonl", pair_of(), pair_of("tie", chance=0.5), pair_of("second"))])
    assert [one.target for one in found.pairs] == [1.0, 0.5, 0.0]
    assert found.pairs[0].second == Segment(**SECOND)
    write_pairs(tmp_path / "b.csv", found.pairs)
    write_pairs(tmp_path / "c.jsonl", found.pairs)
    assert read_pairs([tmp_path / "b.csv"]).pairs == found.pairs
    assert read_pairs([tmp_path / "c.jsonl"]).pairs == found.pairs
    assert read_pairs([tmp_path / "b.csv", tmp_path / "c.jsonl"]).places[-1] == f"{tmp_path / 'c.jsonl'}, line 3"


def test_contradictory_answers_are_counted_and_kept(tmp_path: Path) -> None:
    turned = {"first": SECOND, "second": FIRST, "better": "second"}
    assert "contradictory" not in read_pairs([lines(tmp_path / "a.jsonl", pair_of(), turned)]).line()
    found = read_pairs([lines(tmp_path / "b.jsonl", pair_of(), turned, pair_of("tie"))])
    assert found.line() == "3 pairs, 1 ties; 1 pairs of segments have contradictory answers, all of which count"


BAD_LINES = {
    "is empty": (),
    "line 2: Invalid JSON": (pair_of(), "{"),
    "line 1: better: Input should be 'first', 'second' or 'tie'": (pair_of(better="best"),),
    "line 1: both segments are the same, momentum from 2001-01-02 to 2001-01-31": (pair_of(second=FIRST),),
    "ends on 2000-01-02, before it starts": (pair_of(first={**FIRST, "end": "2000-01-02"}),),
    "line 1: first.start": (pair_of(first={**FIRST, "start": "soon"}),),
    "line 1: weight: Extra inputs are not permitted": (pair_of(weight=1),),
    "line 1: chance": (pair_of(chance=2.0),),
    "line 1: Input should be": ("[]",),
}
ROW = "a,2001-01-02,2001-01-03"
BAD_CSV = {
    "is empty": "",
    "line 2: first.start: Field required": "first_strategy,better\na,first\n",
    "line 2: colour: Extra inputs": f"{HEADER},colour\n{ROW},b,2001-01-02,2001-01-03,first,red\n",
    "line 2: second.strategy: Field required": f"{HEADER}\n{ROW}\n",
    "line 2: both segments are the same": f"{HEADER}\n{ROW},{ROW},first\n",
    "line 2: a cell without a column": f"{HEADER}\n{ROW},b,2001-01-02,2001-01-03,tie,,1\n",
    "this is not CSV": f'{HEADER}\n"a',
}


@pytest.mark.parametrize(("said", "content"), [*BAD_LINES.items(), *BAD_CSV.items()])
def test_a_bad_line_is_named(tmp_path: Path, said: str, content: tuple[Any, ...] | str) -> None:
    path = tmp_path / ("pairs.csv" if isinstance(content, str) else "pairs.jsonl")
    path.write_text(content) if isinstance(content, str) else lines(path, *content)
    with pytest.raises(FinflowError, match=path.name) as caught:
        read_pairs([path])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
