"""A score that rises while the truth falls stops a training; noise, and a score that is right, do not."""

from __future__ import annotations

import math

import pytest

from finflow.guard.guard_state import RewardHackingMonitor, ScoredValidation

START = ScoredValidation(score=0.0, sharpe=1.0, utility=0.5, turnover=4.0, concentration=0.3)


def at(step: float, sharpe: float, utility: float | None = None) -> ScoredValidation:
    """A validation with a score, and net measures that move together by default."""
    return ScoredValidation(step, sharpe, sharpe / 2 if utility is None else utility, 4.0, 0.3)


def reasons(*validations: ScoredValidation) -> list[list[str]]:
    watch = RewardHackingMonitor()
    return [watch.check(one) for one in validations]


def test_a_rising_score_with_falling_truth_stops_after_three_validations() -> None:
    path = [START, at(1.0, 0.9), at(2.0, 0.8), at(3.0, 0.6)]
    *before, last = reasons(*path)
    assert before == [[], [], []]
    (reason,) = last
    assert "score rose from 0 to 3 while the Sharpe ratio fell from 1.00 to 0.60" in reason


@pytest.mark.parametrize(
    "path",
    [
        [START, at(1.0, 0.9), at(2.0, 0.8), at(1.5, 0.7)],  # the score fell
        [START, at(1.0, 0.9), at(2.0, 0.95), at(3.0, 0.6), at(4.0, 0.5)],  # the truth rose between
        [START, at(1.0, 0.9), at(2.0, 0.8), at(3.0, 0.7, utility=0.9)],  # the built-in reward rose
        [START, at(1.0, 0.9, 0.5), at(2.0, 0.8, 0.5), at(3.0, 0.6, 0.5)],  # the built-in reward stayed
        [START, at(1.0, 0.99), at(2.0, 0.98), at(3.0, 0.97)],  # by too little
        [START, at(1.0, 0.9), at(2.0, math.nan), at(3.0, 0.5), at(4.0, 0.4)],  # held cash alone
    ],
)
def test_nothing_else_stops(path: list[ScoredValidation]) -> None:
    assert not any(reasons(*path))


def test_turnover_and_concentration_beyond_twice_the_reference_stop() -> None:
    traded = ScoredValidation(0.0, 1.0, 0.5, 8.1, 0.3)
    assert reasons(START, traded) == [[], ["the turnover is 8.1, over 2 times the reference's 4"]]
    assert reasons(START, ScoredValidation(0.0, 1.0, 0.5, 7.9, 0.61))[1] == [
        "the concentration is 0.61, over 2 times the reference's 0.3"
    ]
    still = ScoredValidation(0.0, 1.0, 0.5, 0.01, 0.3)  # hardly trades: counts as trading once a year
    assert reasons(still, ScoredValidation(0.0, 1.0, 0.5, 1.9, 0.3)) == [[], []]


def test_the_correlation_is_pearsons_over_the_validations() -> None:
    watch = RewardHackingMonitor()
    for one in (at(0.0, 1.0), at(1.0, 0.9)):
        watch.check(one)
    assert math.isnan(watch.correlation)
    watch.check(at(2.0, math.nan))
    watch.check(at(2.0, 0.8))
    assert watch.correlation == pytest.approx(-1.0)
