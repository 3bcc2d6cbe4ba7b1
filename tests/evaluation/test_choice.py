"""Choosing the best of several: what it is worth is that of CSCV, and of the tests that account for the choice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from finflow.evaluation.page.section import section_html
from finflow.evaluation.statistics.backtest_overfitting import DailyReturns, choice_section, judge_best, overfitting
from finflow.evaluation.statistics.bootstrap import Resampling

DAYS = 800
RESAMPLING = Resampling(300, 21, 0)


def drawn(count: int, edge: float = 0.0, seed: int = 0) -> dict[str, DailyReturns]:
    """Strategies without skill beside one market, the last of them with an edge a day."""
    rng = np.random.default_rng(seed)
    market, cash = rng.normal(4e-4, 0.01, DAYS), np.full(DAYS, 5e-5)
    noise = rng.normal(0.0, 0.003, (count, DAYS))
    noise[-1] += edge
    return {f"trial {number}": DailyReturns(market + one, cash, market, market) for number, one in enumerate(noise)}


def test_a_matrix_in_gives_the_result_and_the_figure_out() -> None:
    """What a search calls with the validation returns of its trials."""
    excess = np.random.default_rng(1).normal(0.0, 0.01, (DAYS, 12))
    names = [f"trial {number}" for number in range(12)]
    section = choice_section(excess, names, "the validation window", what="trials")
    assert section.numbers["overfitting"]["pbo"] == overfitting(excess).pbo
    assert section.numbers["overfitting"]["among"] == names
    (figure,) = section.figures
    assert figure.png.startswith(b"\x89PNG")
    text = section_html(section)
    assert "these 12 trials" in text
    assert "the validation window" in text
    assert text.count('id="') == len({part.partition('"')[0] for part in text.split('id="')[1:]}), "an anchor twice"


def test_why_there_is_no_choice_is_said_instead() -> None:
    section = choice_section(np.zeros((DAYS, 1)), ["one"], "the validation window")
    assert section.numbers == {"overfitting": None, "best": None}
    assert "is that of a choice: it needs two strategies at least" in section_html(section)


def test_the_best_of_many_without_skill_is_no_yes_though_alone_it_may_be() -> None:
    """The reason to ask: the same returns, taken for the only try, look far better."""
    choices = drawn(60, seed=3)
    best = judge_best(choices, 0, RESAMPLING)
    alone = judge_best({best.name: choices[best.name]}, 0, RESAMPLING)
    assert best.verdict.tries.total == 60
    assert best.verdict.spa.strategies == 60
    assert best.verdict.psr == alone.verdict.psr > 0.95
    assert best.verdict.dsr < alone.verdict.dsr
    assert best.verdict.spa.p_consistent > alone.verdict.spa.p_consistent
    assert best.verdict.beats_equal_weight == "not shown"


def test_an_edge_survives_being_chosen() -> None:
    best = judge_best(drawn(20, edge=8e-4), 0, RESAMPLING)
    assert (best.name, best.verdict.beats_equal_weight) == ("trial 19", "yes")


def test_the_difference_of_the_best_is_annual_by_the_bars_of_its_market() -> None:
    """Months taken for days would widen the interval by the root of 21."""
    daily = drawn(3, edge=8e-4)
    monthly = {name: replace(one, bars_per_year=12) for name, one in daily.items()}
    days, months = (judge_best(one, 0, RESAMPLING).verdict.sharpe_difference_interval for one in (daily, monthly))
    assert months == pytest.approx([end / math.sqrt(21) for end in days])


def test_one_that_is_equal_weight_itself_can_be_chosen_and_shows_nothing() -> None:
    choices = drawn(1)
    market = choices["trial 0"].baseline
    choices["equal weight"] = DailyReturns(market, choices["trial 0"].cash, market, market)
    choices["trial 0"] = DailyReturns(market - 1e-3, choices["trial 0"].cash, market, market)
    best = judge_best(choices, 0, RESAMPLING)
    assert (best.name, best.verdict.beats_equal_weight) == ("equal weight", "not shown")
    assert math.isnan(best.verdict.dsr)
    assert choice_section(np.zeros((9, 2)), ["a", "b"], "the test window", best).numbers["best"]["dsr"] is None
