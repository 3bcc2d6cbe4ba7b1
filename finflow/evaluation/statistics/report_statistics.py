"""The statistics of a report beyond its metrics: the verdict, each strategy's track record, StepM, and overfitting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.page.page_numbers import Answer, Bounds, Number, about
from finflow.evaluation.statistics.backtest_overfitting import Overfitting, overfitting, overfitting_numbers
from finflow.evaluation.statistics.bootstrap import Draws
from finflow.evaluation.statistics.least_difference import LeastDifference, least_difference
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.significance_tests import (
    Resampling,
    Superiority,
    TrackRecord,
    superior_strategies,
    track_of,
)
from finflow.evaluation.statistics.verdict import CONFIDENCE, SIZE, Reason, Verdict, VerdictReference, reach_verdict
from finflow.market.bar_frequency import BARS_PER_YEAR

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SignificanceResults:
    """Results of all tests; None for what could not be made.

    Track records are in excess of cash, by strategy; ``superior`` are those that StepM finds better than equal weight.
    CSCV is of choosing the best by Sharpe ratio, ``choice`` has their names, and ``least`` is of this window.
    """

    verdict: Verdict | None
    tracks: dict[str, TrackRecord | None]
    superior: tuple[str, ...] | None
    overfitting: Overfitting | None
    choice: tuple[str, ...]
    bars_per_year: int = BARS_PER_YEAR
    least: LeastDifference | None = None


class TriesCounted(TypedDict):
    """Tries that deflate the Sharpe ratio."""

    total: Annotated[int, about("Number of tries.")]
    configurations: Annotated[int, about("Configurations that the judged one was chosen among.")]
    readings_before: Annotated[int, about("Other strategies or agents that have read this test window.")]
    sharpe_deviation: Annotated[Number, about("Standard deviation of the tries' Sharpe ratios, a year.")]


class VerdictNumbers(TypedDict):
    """Verdict on the judged strategy against equal weight, with the tests behind it."""

    beats_equal_weight: Annotated[Answer, about("The answer.")]
    reasons: Annotated[list[Reason], about("The tests, one each.")]
    confidence: Annotated[Number, about("Level that the DSR has to reach and the interval has.")]
    size: Annotated[Number, about("Level that the p-value of SPA has to stay under.")]
    active_sharpe: Annotated[Number, about("Sharpe ratio, a year, of the daily return over equal weight.")]
    skewness: Annotated[Number, about("Of that return.")]
    kurtosis: Annotated[Number, about("Of that return; 3 for a normal one.")]
    days: Annotated[int | None, about("Days of the track record.")]
    psr: Annotated[Number, about("Probabilistic Sharpe ratio of that return, against zero.")]
    dsr: Annotated[
        Number, about("Deflated Sharpe ratio: PSR against the best ratio that luck would show in the tries.")
    ]
    expected_maximum: Annotated[Number, about("That best ratio, a year.")]
    minimum_track_record: Annotated[Number, about("Days needed to be 95 % sure that active_sharpe is above zero.")]
    sharpe_difference_interval: Annotated[Bounds, about("Of the paired difference, at the verdict's level.")]
    least_sharpe_difference: Annotated[
        LeastDifference | None, about("What this window could have shown; null where it cannot be computed.")
    ]
    spa: Annotated[Superiority | None, about("SPA test; null where it cannot be made.")]
    tries: Annotated[TriesCounted, about("Tries that deflate.")]


def gather_evidence(
    judged: Backtest,
    others: Sequence[Backtest],
    baseline: Backtest | None,
    resampled: Mapping[str, Array],
    tries: Tries,
    resampling: Resampling,
    patient: Backtest | None,
    draws: Draws,
) -> SignificanceResults:
    """Make every test.

    Parameters
    ----------
    judged, others
        The strategy, and those it is compared with, over the same days.
    baseline, patient
        Equal weight (None where it is missing or is itself judged), and equal weight rebalanced once a month.
    resampled
        By strategy, its Sharpe ratio in the paired resamples, which are of ``draws``.
    """
    runs = (judged, *others)
    verdict, superior, least = None, None, None
    if baseline is not None:
        own = resampled[judged.name]
        against = [
            VerdictReference(run.returns, own - resampled[run.name]) for run in (baseline, patient) if run is not None
        ]
        verdict, least = verdict_with_power(judged, against, tries, resampling, draws)
        rivals = {run.name: run.returns for run in runs if run.name != baseline.name}
        try:
            superior = superior_strategies(baseline.returns, rivals, resampling, SIZE)
        except EvidenceError:
            superior = None
    names = tuple(run.name for run in runs)
    tracks = {run.name: _track(run) for run in runs}
    return SignificanceResults(verdict, tracks, superior, cscv_of(runs), names, judged.bars_per_year, least)


def verdict_with_power(
    judged: Backtest, rivals: Sequence[VerdictReference], tries: Tries, resampling: Resampling, draws: Draws
) -> tuple[Verdict, LeastDifference | None]:
    """The verdict, and the least difference that it could have shown; None where that cannot be computed.

    Parameters as in `reach_verdict`; ``draws``, int64 (samples, days), are those of the rivals' resamples.
    """
    verdict = reach_verdict(judged.returns, rivals, tries, resampling)
    if verdict.superiority is None:
        return verdict, None
    least = least_difference(judged.returns, judged.cash_returns, rivals, draws, tries, judged.bars_per_year)
    return verdict, least


def evidence_table(evidence: SignificanceResults) -> dict[str, object]:
    """The evidence for `metrics.json`: ratios annualised, lengths in bars, None for what there is not."""
    verdict = evidence.verdict
    found = evidence.overfitting
    return {
        "verdict": None if verdict is None else verdict_numbers(verdict, evidence.least, evidence.bars_per_year),
        "stepm": None if evidence.superior is None else {"size": SIZE, "superior": list(evidence.superior)},
        "overfitting": None if found is None else overfitting_numbers(found, evidence.choice),
    }


def track_table(track: TrackRecord | None) -> dict[str, float]:
    """A strategy's own track record, for its row of `metrics.json`: against cash."""
    if track is None:
        return {"psr": math.nan, "minimum_track_record": math.nan}
    return {"psr": track.psr(), "minimum_track_record": track.minimum_length(0.0, CONFIDENCE)}


def verdict_numbers(verdict: Verdict, least: LeastDifference | None, bars_per_year: int) -> VerdictNumbers:
    """The verdict, and what it could have shown, for `metrics.json`: ratios annualised, lengths in bars."""
    scale, track, tries = math.sqrt(bars_per_year), verdict.track, verdict.tries
    return {
        "beats_equal_weight": verdict.answer,
        "reasons": list(verdict.reasons),
        "confidence": CONFIDENCE,
        "size": SIZE,
        "active_sharpe": math.nan if track is None else scale * track.sharpe,
        "skewness": math.nan if track is None else track.skewness,
        "kurtosis": math.nan if track is None else track.kurtosis,
        "days": None if track is None else track.days,
        "psr": verdict.psr,
        "dsr": verdict.dsr,
        "expected_maximum": scale * verdict.expected_maximum,
        "minimum_track_record": verdict.minimum_length,
        "sharpe_difference_interval": verdict.difference.bounds,
        "least_sharpe_difference": least,
        "spa": verdict.superiority,
        "tries": {
            "total": tries.total,
            "configurations": tries.configurations,
            "readings_before": tries.others,
            "sharpe_deviation": scale * math.sqrt(verdict.variance) if verdict.variance >= 0.0 else math.nan,
        },
    }


def _track(run: Backtest) -> TrackRecord | None:
    try:
        return track_of(run.returns - run.cash_returns, run.name)
    except EvidenceError:
        return None


def cscv_of(runs: Sequence[Backtest]) -> Overfitting | None:
    """CSCV of choosing the best of these by Sharpe ratio; None where it cannot be made."""
    try:
        return overfitting(np.column_stack([run.returns - run.cash_returns for run in runs]))
    except EvidenceError:
        return None
