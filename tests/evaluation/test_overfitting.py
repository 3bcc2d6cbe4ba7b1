"""CSCV: against its own definition, and against the printed example of the R package pbo."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from finflow.arrays import FloatArray
from finflow.errors import EvidenceError
from finflow.evaluation.statistics.backtest_overfitting import (
    DailyReturns,
    choice_section,
    choose,
    judge_best,
    least_gain,
    overfitting,
    shrunk,
)
from finflow.evaluation.statistics.bootstrap import Resampling
from tests.evaluation.made_up import section_html


def drawn_by_r(seed: int, count: int) -> FloatArray:
    """What R's `set.seed(seed); rnorm(count)` gives: Mersenne Twister, seeded as R does, and inversion of 53 bits."""
    words = []
    for _ in range(675):
        seed = (69069 * seed + 1) & 0xFFFFFFFF
        words.append(seed)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": np.array(words[51:], np.uint32), "pos": 624}}
    uniform = twister.random_raw(2 * count) * 2.3283064365386963e-10
    return np.asarray(stats.norm.ppf((np.floor(2.0**27 * uniform[0::2]) + uniform[1::2]) / 2.0**27))


def by_definition(excess: FloatArray, blocks: int) -> tuple[list[float], list[float], list[float]]:
    """Logits and Sharpe ratios of every choice, as the paper writes them, one at a time."""
    parts = np.split(excess, blocks)
    logits, inside, outside = [], [], []
    for choice in itertools.combinations(range(blocks), blocks // 2):
        samples = [
            np.concatenate([part for number, part in enumerate(parts) if (number in choice) == chosen])
            for chosen in (True, False)
        ]
        first, second = (sample.mean(axis=0) / sample.std(axis=0, ddof=1) for sample in samples)
        best = int(first.argmax())
        share = stats.rankdata(second)[best] / (excess.shape[1] + 1)
        logits.append(math.log(share / (1.0 - share)))
        inside.append(first[best])
        outside.append(second[best])
    return logits, inside, outside


def test_the_example_of_the_r_package_comes_out_as_printed() -> None:
    """The vignette of pbo 1.3.5 on CRAN, its set.seed(765), prints: p_bo 1, -0.0030456, ar^2 0.97, p_loss 1.

    Its data are test case 1 of the paper, strategies that are all worth nothing over all days, so that what was best
    in sample must be worst out of it. What it calls slope is the constant of the in-sample on the out-of-sample ratio.
    """
    drawn = drawn_by_r(765, 240_000).reshape(100, 2400).T
    returns = drawn / math.sqrt(252.0) / drawn.std(axis=0, ddof=1)
    found = overfitting(returns - returns.mean(axis=0) - 0.03 / 252.0, blocks=8)
    fit = stats.linregress(found.outside, found.inside)
    adjusted = 1.0 - (1.0 - fit.rvalue**2) * 69.0 / 68.0
    assert (
        f"{found.pbo:.7f} {fit.intercept:.7f} {adjusted:.2f} {found.loss:.7f}" == "1.0000000 -0.0030456 0.97 1.0000000"
    )
    assert len(found.logits) == 70


def test_sixteen_blocks_are_the_papers_12870_choices_and_skill_is_no_overfitting() -> None:
    returns = np.random.default_rng(0).normal(0.0, 0.01, (1600, 20))
    returns[:, 4] += 0.0025
    found = overfitting(returns)
    assert len(found.logits) == 12_870
    assert found.pbo < 0.001
    assert found.loss == 0.0


def test_every_choice_is_that_of_the_definition() -> None:
    excess = np.random.default_rng(1).standard_t(4, (120, 5)) * 0.01 + 3e-4
    found = overfitting(excess, blocks=6)
    logits, inside, outside = by_definition(excess, 6)
    np.testing.assert_allclose(found.logits, logits, rtol=1e-12)
    np.testing.assert_allclose(found.inside, inside, rtol=1e-9)
    np.testing.assert_allclose(found.outside, outside, rtol=1e-9)
    assert found.pbo == np.mean(np.array(logits) <= 0.0)
    assert found.loss == np.mean(np.array(outside) < 0.0)


def test_days_that_the_blocks_do_not_divide_are_left_out_at_the_start() -> None:
    excess = np.random.default_rng(2).normal(0.0, 0.01, (83, 3))
    found = overfitting(excess, blocks=4)
    np.testing.assert_array_equal(found.logits, overfitting(excess[3:], blocks=4).logits)
    assert found.days == 80


def test_what_cannot_be_chosen_among_is_refused_in_words() -> None:
    returns = np.random.default_rng(0).normal(0.0, 0.01, (100, 3))
    with pytest.raises(EvidenceError, match="needs two strategies"):
        overfitting(returns[:, :1], blocks=4)
    with pytest.raises(EvidenceError, match=r"has 15 returns, and the test needs 16"):
        overfitting(returns[:15], blocks=4)
    returns[7, 1] = np.nan
    with pytest.raises(EvidenceError, match=r"candidate 2 have a gap .the first at return 8 of 100"):
        overfitting(returns, blocks=4)


def test_figures_have_the_same_bits_whatever_the_number_of_threads() -> None:
    """BLAS adds in another order with two threads: the last digits of a report depended on the processor."""
    program = (
        "import numpy as np; from finflow.evaluation.statistics.backtest_overfitting import overfitting\n"
        "found = [overfitting(np.random.default_rng(k).normal(0.0, 0.01, (1000 + 37 * k, 16))) for k in range(3)]\n"
        "print([(one.inside.sum(), one.outside.sum()) for one in found])"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "2")
    ]
    assert said[0] == said[1]


def test_without_skill_the_choice_is_a_coin() -> None:
    """The mean of sixty values that deviate by .21 deviates by .027: three times that."""
    found = [overfitting(np.random.default_rng(seed).normal(0.0, 0.01, (640, 30)), 8).pbo for seed in range(60)]
    assert abs(np.mean(found) - 0.5) < 0.08


# --- choosing the best of several: what it is worth is that of CSCV, and of the tests that account for the choice


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


# --- the choice among candidates by gains out of sample: it takes what is there, and allows for having chosen


QUARTERS = np.repeat(np.arange(4), 250)


def test_shrinkage_is_zero_up_to_the_root_of_three_and_grows_to_one() -> None:
    assert [shrunk(t) for t in (-5.0, 0.0, 1.0, 3.0**0.5)] == [0.0, 0.0, 0.0, pytest.approx(0.0, abs=1e-12)]
    assert shrunk(6.0**0.5) == pytest.approx(0.5)
    assert shrunk(44.0) > 0.99


def test_a_lower_bound_prefers_what_gains_in_every_block() -> None:
    even = np.full(1000, 1e-3)
    lucky = np.where(QUARTERS == 2, 6e-3, 0.0)
    bound = least_gain(np.stack([even, lucky]), QUARTERS)
    assert bound[0] == pytest.approx(1e-3)
    assert bound[1] == pytest.approx(1.5e-3 - 3e-3 / 2.0)  # one block of four: deviation 3e-3, error half of it
    assert choose(np.stack([even, lucky]), QUARTERS, seed=0).candidate == 0


def test_an_edge_is_used_almost_whole() -> None:
    rng = np.random.default_rng(0)
    edge = 1e-3 + 5e-3 * rng.standard_normal((1, 1000))  # t = 6.3
    choice = choose(np.concatenate([0.2 * edge, edge]), QUARTERS, seed=1)
    assert choice.candidate == 1
    assert choice.t_statistic == pytest.approx(1e-3 / 5e-3 * 1000**0.5, abs=2.0)
    assert choice.confidence > 0.8


def test_autocorrelation_widens_the_error() -> None:
    """Every gain lasts for ten bars: a tenth of the observations, and a t statistic of a third of the naive one."""
    rng = np.random.default_rng(1)
    lasting = np.repeat(rng.standard_normal(100), 10)[None, :] + 0.3
    naive = lasting.mean() / (lasting.std(ddof=1) / 1000**0.5)
    assert choose(lasting, QUARTERS, seed=2).t_statistic < 0.55 * naive


def test_luck_among_many_candidates_is_seldom_used() -> None:
    """Twenty candidates that gain nothing: a quarter or more of the best is used at most once in forty (5 % allowed).

    Without the allowance for the choice it would be about every third time: the best of twenty has t over 2 so often.
    """
    used = []
    for sample in range(40):
        rng = np.random.default_rng([7, sample])
        used.append(choose(1e-2 * rng.standard_normal((20, 1000)), QUARTERS, seed=sample).confidence > 0.25)
    assert np.mean(used) <= 0.05
