"""The least difference that a window could have shown is found as often as it says, whatever hangs together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from finflow.evaluation.statistics import metrics
from finflow.evaluation.statistics.bootstrap import Resampling, draw_days
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.report_statistics import POWER, least_difference
from finflow.evaluation.statistics.verdict import LeastDifference, Verdict, VerdictReference, reach_verdict

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
    draws = draw_days(len(own), RESAMPLING)
    rivals = [
        VerdictReference(returns, metrics.sharpe(own[draws]) - metrics.sharpe(returns[draws]))
        for returns in (equal, *others)
    ]
    verdict = reach_verdict(own, rivals, tries or Tries(), RESAMPLING)
    return verdict, least_difference(own, np.zeros(len(own)), rivals, draws, tries or Tries(), 252)


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
    rival = VerdictReference(equal, np.full(SAMPLES, d))
    draws = draw_days(DAYS, RESAMPLING)
    found = least_difference(own, np.zeros(DAYS), (rival,), draws, Tries(), 252)
    assert found is not None
    assert found.of_interval == pytest.approx(2.0 * (value - d), rel=1e-9)
    assert found.standard_error == 0.0
