"""The verdict: yes only where all tests agree, no where the reverse is shown, and no false certainty between."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.bootstrap import Resampling, draw_days
from finflow.evaluation.statistics.significance_tests import Tries, track_of
from finflow.evaluation.statistics.verdict import POWER, LeastDifference, Verdict, beats, judge, least_difference

SETTINGS = Resampling(samples=400, block_length=10, seed=0)


def made(edge: float, days: int = 1000, extra: float = 0.003, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A strategy that earns `edge` a day over equal weight, give or take `extra`, with no more risk to speak of."""
    rng = np.random.default_rng(seed)
    baseline = rng.normal(3e-4, 0.01, days)
    noise = rng.normal(0.0, extra, days)
    return baseline + edge + noise - noise.mean(), baseline


def judged(
    own: np.ndarray, *rivals: np.ndarray, tries: Tries | None = None, candidates: dict[str, np.ndarray] | None = None
) -> Verdict:
    return judge(own, rivals, np.zeros(len(own)), tries or Tries(), SETTINGS, candidates=candidates)


def test_a_clear_edge_is_a_yes_and_every_test_agrees() -> None:
    verdict = judged(*made(4e-4))
    assert verdict.beats_equal_weight == "yes"
    assert [reason.enough for reason in verdict.reasons] == [True, True, True]
    assert verdict.dsr == verdict.psr == track_of(np.subtract(*made(4e-4))).psr()
    assert verdict.spa.p_consistent < 0.01
    assert verdict.minimum_track_record < 1000


def test_the_same_edge_after_many_tries_is_not_shown() -> None:
    verdict = judged(*made(4e-4), tries=Tries(configurations=20, others=180))
    assert verdict.beats_equal_weight == "not shown"
    assert [reason.enough for reason in verdict.reasons] == [False, True, True]
    assert "after 200 tries" in verdict.reasons[0].said
    assert verdict.dsr < 0.95 < verdict.psr


def test_an_edge_among_many_candidates_needs_more() -> None:
    """SPA looks at all that the strategy was chosen among: the luckiest of 300 tells little."""
    own, baseline = made(2.3e-4)
    alone = judged(own, baseline)
    noise = np.random.default_rng(1).normal(0.0, 0.003, (299, 1000))
    others = {f"c{i}": baseline + each - each.mean() for i, each in enumerate(noise)}
    among = judged(own, baseline, candidates=others)
    assert alone.spa.p_consistent < 0.05 < among.spa.p_consistent
    assert among.spa.strategies == 300
    assert among.beats_equal_weight == "not shown"


def test_what_only_trades_less_than_daily_equal_weight_is_no_yes() -> None:
    """All three tests agree against equal weight restored every day, and none does against a patient one."""
    own, baseline = made(4e-4)
    rng = np.random.default_rng(8)
    cheap = own + rng.normal(0.0, 0.002, 1000) - 1e-5
    verdict = judged(own, baseline, cheap)
    assert verdict.beats_equal_weight == "not shown"
    assert [reason.enough for reason in verdict.reasons] == [True, True, True, False]
    assert "Against equal weight that is restored once a month, too: Confidence that" in verdict.reasons[3].said
    assert verdict.dsr == judged(own, baseline).dsr
    poor = judged(own, baseline, baseline)
    assert poor.beats_equal_weight == "yes"
    assert "all three hold" in poor.reasons[3].said


def test_a_greater_return_for_greater_risk_is_no_yes() -> None:
    """Equal weight on credit: its mean is greater for certain, its Sharpe ratio is not."""
    rng = np.random.default_rng(1)
    baseline = rng.normal(1.5e-3, 0.01, 1500)
    verdict = judged(2.0 * baseline + rng.normal(0.0, 1e-4, 1500), baseline)
    assert [reason.enough for reason in verdict.reasons] == [True, True, False]
    assert verdict.beats_equal_weight == "not shown"


def test_a_lesser_return_for_lesser_risk_is_no_no() -> None:
    """Half in cash earns less for certain, at the same Sharpe ratio or a better one."""
    rng = np.random.default_rng(1)
    baseline = rng.normal(1.5e-3, 0.01, 1500)
    verdict = judged(0.5 * baseline + 2e-5 + rng.normal(0.0, 1e-4, 1500), baseline)
    assert verdict.psr < 0.05
    assert verdict.beats_equal_weight == "not shown"
    assert judged(0.5 * baseline - 2e-5 + rng.normal(0.0, 1e-4, 1500), baseline).beats_equal_weight == "no"


def test_what_loses_for_certain_is_a_no() -> None:
    verdict = judged(*made(-5e-4))
    assert verdict.beats_equal_weight == "no"
    assert verdict.sharpe_difference_interval[1] < 0.0
    assert verdict.minimum_track_record == math.inf


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda own, baseline: (np.where(np.arange(1000) == 7, np.nan, own), baseline), "have a gap"),
        (lambda own, baseline: (baseline, baseline), "do not vary"),
        (lambda own, baseline: (own[:40], baseline[:40]), "has 40 returns, and the test needs 50"),
        (lambda own, baseline: (own[:2], baseline[:2]), "the active return has 2 returns"),
    ],
    ids=["gap", "equal weight itself", "short", "two days"],
)
def test_what_cannot_be_tested_is_not_shown_and_says_why(change: object, said: str) -> None:
    own, baseline = change(*made(5e-3))
    verdict = judged(own, baseline)
    assert verdict.beats_equal_weight == "not shown"
    assert said in verdict.reasons[0].said
    assert math.isnan(verdict.dsr)


def test_another_that_is_superior_does_not_make_the_chosen_one_so() -> None:
    """SPA asks whether any of them is; that must not be borrowed by the one with the best ratio."""
    own, baseline = made(1e-4)
    rng = np.random.default_rng(2)
    risky = baseline + 3e-3 + rng.normal(0.0, 0.02, len(baseline))
    among = judged(own, baseline, candidates={"risky": risky})
    assert among.spa.p_consistent < 0.05
    assert not among.reasons[1].enough
    assert "StepM does not name this one" in among.reasons[1].said
    assert among.beats_equal_weight == "not shown"


def test_a_lesser_return_without_a_better_ratio_is_a_no() -> None:
    """Resampled Sharpe ratios differ by as much up as down: their median of zero is not better."""
    own, baseline = made(-5e-4)
    level = np.tile([-0.1, 0.0, 0.1], 100)
    assert beats(own, baseline, level, Tries(), SETTINGS, {}, 252).beats_equal_weight == "no"
    assert beats(own, baseline, level + 0.01, Tries(), SETTINGS, {}, 252).beats_equal_weight == "not shown"


def test_a_difference_without_an_interval_is_not_shown_and_the_reason_says_so() -> None:
    own, baseline = made(4e-4)
    verdict = beats(own, baseline, np.full(SETTINGS.samples, np.nan), Tries(), SETTINGS, {}, 252)
    assert verdict.beats_equal_weight != "yes"
    (reason,) = (one for one in verdict.reasons if "has no interval" in one.said)
    assert not reason.enough


# --- the least difference that a window could have shown is found as often as it says, whatever hangs together


DAYS, SAMPLES = 750, 200
RESAMPLING = Resampling(SAMPLES, 10, seed=0)
RATIO = 0.6  # of equal weight, a year


def window(seed: int, difference: float) -> tuple[np.ndarray, np.ndarray]:
    """Fat-tailed returns of a strategy and of equal weight whose true annual Sharpe ratios differ by ``difference``.

    What the strategy does apart from equal weight hangs together from day to day.
    """
    noise, memory = 0.003, 0.3
    rng = np.random.default_rng(seed)
    shocks = rng.standard_t(6, (2, DAYS)) / math.sqrt(1.5)
    baseline = 0.01 * shocks[0]
    apart = noise * math.sqrt(1.0 - memory**2) * lfilter([1.0], [1.0, -memory], shocks[1])
    deviation = math.hypot(0.01, noise)
    means = (RATIO + difference) * deviation / math.sqrt(252.0), RATIO * 0.01 / math.sqrt(252.0)
    return baseline + apart + means[0], baseline + means[1]


def asked(
    own: np.ndarray, equal: np.ndarray, tries: Tries | None = None, *others: np.ndarray
) -> tuple[Verdict, LeastDifference | None]:
    verdict = judge(own, (equal, *others), np.zeros(len(own)), tries or Tries(), RESAMPLING)
    return verdict, verdict.least_sharpe_difference


def least(seed: int, tries: Tries | None = None) -> LeastDifference:
    found = asked(*window(seed, 0.0), tries)[1]
    assert found is not None
    return found


def test_a_planted_difference_of_that_size_is_a_yes_in_four_windows_of_five() -> None:
    """Of fresh windows of the same market; 3 standard deviations of a binomial share of 60, the estimate averaged."""
    size = float(np.mean([least(seed).of_yes for seed in range(8)]))
    windows = 60
    shown = [asked(*window(1000 + seed, size))[0].beats_equal_weight == "yes" for seed in range(windows)]
    assert np.mean(shown) == pytest.approx(POWER, abs=3.0 * math.sqrt(POWER * (1.0 - POWER) / windows))
    half = [asked(*window(2000 + seed, 0.5 * size))[0].beats_equal_weight == "yes" for seed in range(20)]
    assert np.mean(half) < 0.6, "half of it is mostly not shown: the normal law says 29 %"


def test_the_interval_alone_needs_about_2_8_standard_errors() -> None:
    """The quantiles 0.975 and 0.8 of a normal distribution add to 2.80; 200 resamples know theirs to a tenth."""
    found = [least(seed) for seed in range(8)]
    ratios = [one.of_interval / one.standard_error for one in found]
    assert np.mean(ratios) == pytest.approx(2.80, abs=0.15)
    assert all(one.of_yes >= one.of_interval for one in found)


def test_tries_lesser_risk_and_a_patient_rival_ask_for_more() -> None:
    own, equal = window(3, 0.0)
    plain = least(3)
    assert least(3, Tries(configurations=50)).of_yes > plain.of_yes
    assert least(3, Tries(configurations=50)).of_interval == plain.of_interval
    cautious = asked(0.5 * own, equal)[1]
    assert cautious is not None
    assert cautious.of_interval == pytest.approx(plain.of_interval), "a Sharpe ratio knows no leverage"
    assert cautious.of_yes > 1.5 * plain.of_yes, "at an equal Sharpe ratio half the risk earns half the mean"
    both = asked(own, equal, None, equal + 1e-4)[1]
    assert both is not None
    ahead = metrics.sharpe(equal + 1e-4) - metrics.sharpe(equal)
    assert both.of_yes == pytest.approx(plain.of_yes + ahead, rel=0.02), "the better rival is the one to beat"


def test_nothing_is_told_where_there_is_nothing_to_test() -> None:
    own, equal = window(1, 0.0)
    assert asked(own[:40], equal[:40])[1] is None, "too short for an interval"
    assert asked(equal, equal)[1] is None, "equal weight itself"


def test_the_interval_without_spread_is_worked_out_by_hand() -> None:
    """All resamples differ by d: critical is v - d for a true v - v, so that the least difference is 2 (v - d)."""
    own, equal = window(2, 1.0)
    value, d = metrics.sharpe(own) - metrics.sharpe(equal), 0.25
    draws = draw_days(DAYS, RESAMPLING)
    found = least_difference(own, np.zeros(DAYS), (equal,), (np.full(SAMPLES, d),), draws, Tries(), 252)
    assert found is not None
    assert found.of_interval == pytest.approx(2.0 * (value - d), rel=1e-9)
    assert found.standard_error == 0.0
