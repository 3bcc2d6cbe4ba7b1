"""The statistics of a report beyond its metrics: the verdict and its power, track records, StepM, and overfitting.

**Power.** A verdict of "not shown" needs the power of the test to be interpreted. Suppose that the judged strategy had
earned a constant more or less every day, which moves its Sharpe ratio and its return over equal weight and leaves
every deviation as it was. Another sample of the same length then gives a yes where

1. its paired difference of Sharpe ratios is so great that the interval lies above zero: above ``d - q``, with ``d`` the
   window's difference and ``q`` the low end of its interval;
2. its mean active return passes SPA (the 95 % quantile of its resamples around their mean) and the deflated Sharpe
   ratio (``SR0 + z s / sqrt(n - 1)`` times its deviation, ``s^2`` as in `TrackRecord.spread`).

How far the two stray together is read off the paired resamples of the verdict's own bootstrap, so that days that hang
together count as they do there. For each resample there is a least Sharpe ratio for which it would have been a yes,
against equal weight and against patient equal weight; the quantile of these at the power asked for is what it takes.

It is taken from one window: the estimate of its own precision, of critical values and of the level of equal weight's
Sharpe ratio (where the strategy's risk differs from equal weight's, an equal Sharpe ratio is not an equal mean).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from finflow.errors import EvidenceError
from finflow.evaluation.backtest import Backtest
from finflow.evaluation.statistics.backtest_overfitting import Overfitting, overfitting, overfitting_numbers
from finflow.evaluation.statistics.bootstrap import CONFIDENCE, Draws, Resampling, chunks
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.significance_tests import (
    TrackRecord,
    expected_maximum,
    superior_strategies,
    track_of,
)
from finflow.evaluation.statistics.verdict import (
    SIZE,
    LeastDifference,
    Verdict,
    VerdictReference,
    reach_verdict,
)

POWER = 0.8

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SignificanceResults:
    """Results of all tests; None for what could not be made.

    ``tracks`` are of returns in excess of cash, by strategy, as `metrics.json` has them; ``superior`` are those that
    StepM finds better than equal weight. CSCV is of choosing the best of all of them by Sharpe ratio.
    """

    verdict: Verdict | None
    tracks: dict[str, dict[str, float]]
    superior: tuple[str, ...] | None
    overfitting: Overfitting | None


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
    verdict, superior = None, None
    if baseline is not None:
        own = resampled[judged.name]
        against = [
            VerdictReference(run.returns, own - resampled[run.name]) for run in (baseline, patient) if run is not None
        ]
        verdict = verdict_with_power(judged, against, tries, resampling, draws)
        rivals = {run.name: run.returns for run in runs if run.name != baseline.name}
        try:
            superior = superior_strategies(baseline.returns, rivals, resampling, SIZE)
        except EvidenceError:
            superior = None
    return SignificanceResults(verdict, {run.name: _track(run) for run in runs}, superior, cscv_of(runs))


def verdict_with_power(
    judged: Backtest, rivals: Sequence[VerdictReference], tries: Tries, resampling: Resampling, draws: Draws
) -> Verdict:
    """The verdict, and the least difference that it could have shown; None where that cannot be computed.

    Parameters as in `reach_verdict`; ``draws``, int64 (samples, days), are those of the rivals' resamples.
    """
    year = judged.bars_per_year
    verdict = reach_verdict(judged.returns, rivals, tries, resampling, bars_per_year=year)
    if verdict.spa is None:
        return verdict
    least = least_difference(judged.returns, judged.cash_returns, rivals, draws, tries, year)
    return replace(verdict, least_sharpe_difference=least)


def evidence_table(evidence: SignificanceResults) -> dict[str, object]:
    """The evidence for `metrics.json`."""
    found = evidence.overfitting
    return {
        "verdict": evidence.verdict,
        "stepm": None if evidence.superior is None else {"size": SIZE, "superior": list(evidence.superior)},
        "overfitting": None if found is None else overfitting_numbers(found, list(evidence.tracks)),
    }


def _track(run: Backtest) -> dict[str, float]:
    try:
        track = track_of(run.returns - run.cash_returns, run.name)
    except EvidenceError:
        return {"psr": math.nan, "minimum_track_record": math.nan}
    return {"psr": track.psr(), "minimum_track_record": track.minimum_length(0.0, CONFIDENCE)}


def cscv_of(runs: Sequence[Backtest]) -> Overfitting | None:
    """CSCV of choosing the best of these by Sharpe ratio; None where it cannot be made."""
    try:
        return overfitting(np.column_stack([run.returns - run.cash_returns for run in runs]))
    except EvidenceError:
        return None


def least_difference(
    judged: Array, cash: Array, rivals: Sequence[VerdictReference], draws: Draws, tries: Tries, bars_per_year: int
) -> LeastDifference | None:
    """Least annual difference of Sharpe ratios over equal weight that the window could have shown.

    Parameters
    ----------
    judged, cash : float64 (days,)
        Returns of the strategy, net of costs, and of cash.
    rivals
        Equal weight, and patient equal weight, with the paired resamples of the annual Sharpe ratios.
    draws : int64 (samples, days)
        Those that the resamples are of.

    Returns
    -------
    LeastDifference or None
        None where the verdict has no interval, or one of its tests cannot be made.
    """
    scale, deviation = math.sqrt(bars_per_year), float((judged - cash).std(ddof=1))
    if not all(len(rival.differences) and np.isfinite(rival.differences).all() for rival in rivals):
        return None
    own = scale * float((judged - cash).mean()) / deviation
    by_interval, by_all, ratios = [], [], []
    for rival in rivals:
        try:
            track = track_of(judged - rival.returns, "the active return")
        except EvidenceError:
            return None
        excess = rival.returns - cash
        ratio = scale * float(excess.mean()) / float(excess.std(ddof=1))
        lead = own - ratio
        critical = lead - float(np.quantile(rival.differences, (1.0 - CONFIDENCE) / 2.0))
        of_interval = ratio + (critical - (rival.differences - lead))
        active = _by_mean(judged - rival.returns, track, draws, tries)
        of_mean = scale * (float(excess.mean()) + active) / deviation
        by_interval.append(of_interval)
        by_all += [of_interval, of_mean]
        ratios.append(ratio)
    return LeastDifference(
        POWER,
        float(np.quantile(np.max(by_all, axis=0), POWER)) - ratios[0],
        float(np.quantile(by_interval[0], POWER)) - ratios[0],
        float(rivals[0].differences.std(ddof=1)),
    )


def _by_mean(active: Array, track: TrackRecord, draws: Draws, tries: Tries) -> Array:
    """True mean active return of a bar at which each resample would pass SPA and the deflated Sharpe ratio."""
    luck = expected_maximum(tries.total, tries.variance(track.sharpe, track.days))
    hurdle = luck + float(scipy.stats.norm.ppf(CONFIDENCE)) * math.sqrt(track.spread / (track.days - 1))
    means = np.concatenate([active[rows].mean(axis=1) for rows in chunks(draws)])
    strayed = means - float(active.mean())
    critical = max(float(np.quantile(strayed, 1.0 - SIZE)), hurdle * float(active.std(ddof=1)))
    return np.asarray(critical - strayed, dtype=np.float64)
