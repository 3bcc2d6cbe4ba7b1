"""The verdict on whether a strategy beats equal weight: yes, no, or not shown; and its reasons.

Yes takes three tests that agree, all on returns net of costs:

1. the deflated Sharpe ratio of the active return (the strategy's less equal weight's) is at least 0.95;
2. Hansen's SPA test finds its mean return superior, p < 0.05; where what it was chosen among is given, some of all of
   them, and Romano and Wolf's StepM names this one;
3. the paired bootstrap interval (95 %) of the difference of Sharpe ratios lies above zero.

And all three must hold against patient equal weight too, which is rebalanced once a month: rebalancing equal
weight every day costs, and whatever merely trades less beats it without any skill (measured: inverse volatility did so
on one null market in six).

The first counts the tries, the second allows for days that hang together, the third refuses a greater return that was
only bought with greater risk. No is the reverse shown: the interval lies below zero, or the active return is negative
with 95 % confidence and the Sharpe ratio is no better either, since a lesser return may be the price of less risk.
Everything else is not shown. The levels are fixed here: a configuration cannot soften them.

A verdict of "not shown" needs the power of the window to be interpreted; its calculation and what it assumes:
docs/reference/verdict.md, Power of the window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import scipy

from finflow.arrays import FloatArray
from finflow.errors import EvidenceError
from finflow.evaluation.page.drawing import MINUS
from finflow.evaluation.page.page_numbers import Answer, Bounds, Number, about
from finflow.evaluation.statistics.bootstrap import (
    CONFIDENCE,
    NOWHERE,
    Draws,
    Interval,
    Resampling,
    draw_days,
    interval,
    resample_sharpe,
)
from finflow.evaluation.statistics.significance_tests import (
    SIZE,
    UNKNOWN,
    Superiority,
    TrackRecord,
    Tries,
    expected_maximum,
    superior_ability,
    superior_strategies,
    track_of,
)
from finflow.market.bar_frequency import BARS_PER_YEAR

POWER = 0.8


@dataclass(frozen=True)
class Reason:
    """One test of the verdict."""

    said: Annotated[str, about("Result, in words.")]
    enough: Annotated[bool, about("Enough for a yes.")]

    def __str__(self) -> str:
        return f"{'✓' if self.enough else '✗'} {self.said.replace(' -', ' ' + MINUS)}"


@dataclass(frozen=True)
class TriesCounted:
    """Tries that the deflated Sharpe ratio counts."""

    total: Annotated[int, about("Number of tries.")]
    configurations: Annotated[int, about("Configurations that the judged one was chosen among.")]
    readings_before: Annotated[int, about("Other strategies or agents that have read this test window.")]
    sharpe_deviation: Annotated[Number, about("Standard deviation of the tries' Sharpe ratios, a year.")]


@dataclass(frozen=True)
class LeastDifference:
    """Least true difference of Sharpe ratios over equal weight that the window shows with a probability of `power`."""

    power: Annotated[Number, about("Probability of a yes.")]
    of_yes: Annotated[Number, about("For a yes of the whole verdict, a year.")]
    of_interval: Annotated[Number, about("For the paired interval alone to lie above zero, a year.")]
    standard_error: Annotated[Number, about("Of the paired difference of Sharpe ratios, by the bootstrap, a year.")]


@dataclass(frozen=True)
class Verdict:
    """Verdict on the judged strategy against equal weight, with the tests behind it; ratios are annualised."""

    beats_equal_weight: Annotated[Answer, about("The answer.")]
    reasons: Annotated[tuple[Reason, ...], about("The tests, one each.")]
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
    tries: Annotated[TriesCounted, about("Tries that the DSR counts.")]


def judge(
    judged: FloatArray,
    rivals: Sequence[FloatArray],
    cash: FloatArray,
    tries: Tries,
    resampling: Resampling,
    draws: Draws | None = None,
    candidates: Mapping[str, FloatArray] | None = None,
    bars_per_year: int = BARS_PER_YEAR,
) -> Verdict:
    """Apply the three tests, and estimate the least difference that the window could have shown.

    Parameters
    ----------
    judged, cash : float64 (days,)
        Returns of the strategy, net of costs, and of cash.
    rivals
        Net returns of equal weight, and after it of patient equal weight where that was backtested: a yes must hold
        against it as well.
    draws
        Days of the resamples, where they are drawn already.
    candidates
        Name -> returns of the others that the strategy was chosen among.
    """
    days = draw_days(len(judged), resampling) if draws is None else draws
    own, *others = (resample_sharpe(returns - cash, days, bars_per_year) for returns in (judged, *rivals))
    leads = [own - other for other in others]
    tested = (
        beats(judged, rival, lead, tries, resampling, candidates or {}, bars_per_year)
        for rival, lead in zip(rivals, leads, strict=True)
    )
    verdict = next(tested)
    if verdict.beats_equal_weight == "yes" and (again := next(tested, None)) is not None:
        failed = [reason.said for reason in again.reasons if not reason.enough]
        result = " ".join(failed) if failed else "all three hold."
        reason = Reason(f"Against equal weight that is restored once a month, too: {result}", not failed)
        answer: Answer = "not shown" if failed else "yes"
        verdict = replace(verdict, beats_equal_weight=answer, reasons=(*verdict.reasons, reason))
    if verdict.spa is None:
        return verdict
    least = least_difference(judged, cash, rivals, leads, days, tries, bars_per_year)
    return replace(verdict, least_sharpe_difference=least)


def beats(
    judged: FloatArray,
    rival: FloatArray,
    leads: FloatArray,
    tries: Tries,
    resampling: Resampling,
    candidates: Mapping[str, FloatArray],
    bars_per_year: int,
) -> Verdict:
    """Apply the three tests against one reference; what the window could have shown is left open.

    ``rival`` has its net returns, (days,), and ``leads`` the paired resamples, (samples,), of the strategy's Sharpe
    ratio less its own, empty where the window is too short.
    """
    active, every = judged - rival, {"judged": judged, **candidates}
    try:
        track = track_of(active, "the active return")
        superiority = superior_ability(rival, every, resampling)
    except EvidenceError as error:
        nothing = Reason(f"Nothing can be shown here: {error}.", False)
        return _verdict("not shown", (nothing,), None, tries, bars_per_year)
    named = not candidates or "judged" in superior_strategies(rival, every, resampling)
    bounds = interval(leads)
    deflated = track.dsr(tries.total, tries.variance(track.sharpe, track.days))
    counted = "a single try" if tries.total == 1 else f"{tries.total} tries"
    reasons = (
        Reason(
            f"Confidence that the return over equal weight is no luck, after {counted}: {100 * deflated:.1f} %; a yes "
            f"needs {100 * CONFIDENCE:g} % (deflated Sharpe ratio).",
            bool(deflated >= CONFIDENCE),
        ),
        Reason(
            f"Chance of so great a lead without any skill: {100 * superiority.p_consistent:.1f} %; a yes needs less "
            f"than {100 * SIZE:g} % (SPA)" + ("." if named else ", and StepM does not name this one superior."),
            superiority.p_consistent < SIZE and named,
        ),
        Reason(
            f"The difference of Sharpe ratios lies between {bounds.low:+.2f} and {bounds.high:+.2f} (95 %, paired); "
            "a yes needs all of it above zero."
            if bounds.defined
            else "The difference of Sharpe ratios has no interval; a yes needs one above zero.",
            bounds.low > 0.0,
        ),
    )
    less = track.psr() <= 1.0 - CONFIDENCE and not (bounds.defined and np.median(leads) > 0.0)
    answer: Answer = "not shown"
    if all(reason.enough for reason in reasons):
        answer = "yes"
    elif bounds.high < 0.0 or less:
        answer = "no"
    return _verdict(answer, reasons, track, tries, bars_per_year, superiority, bounds)


def _verdict(
    answer: Answer,
    reasons: tuple[Reason, ...],
    track: TrackRecord | None,
    tries: Tries,
    bars_per_year: int,
    superiority: Superiority | None = None,
    difference: Interval = NOWHERE,
) -> Verdict:
    """The verdict with its figures, undefined without a track record."""
    known = track or UNKNOWN
    scale, variance = math.sqrt(bars_per_year), tries.variance(known.sharpe, known.days) if track else math.nan
    luck = expected_maximum(tries.total, variance) if track else math.nan
    return Verdict(
        beats_equal_weight=answer,
        reasons=reasons,
        confidence=CONFIDENCE,
        size=SIZE,
        active_sharpe=scale * known.sharpe,
        skewness=known.skewness,
        kurtosis=known.kurtosis,
        days=known.days if track else None,
        psr=known.psr(),
        dsr=known.psr(luck),
        expected_maximum=scale * luck,
        minimum_track_record=known.minimum_length(),
        sharpe_difference_interval=difference.bounds,
        least_sharpe_difference=None,
        spa=superiority,
        tries=TriesCounted(tries.total, tries.configurations, tries.others, scale * math.sqrt(variance)),
    )


def least_difference(
    judged: FloatArray,
    cash: FloatArray,
    rivals: Sequence[FloatArray],
    leads: Sequence[FloatArray],
    draws: Draws,
    tries: Tries,
    bars_per_year: int,
) -> LeastDifference | None:
    """Least annual difference of Sharpe ratios over equal weight that the window could have shown.

    Parameters
    ----------
    judged, cash : float64 (days,)
        Returns of the strategy, net of costs, and of cash.
    rivals, leads
        Net returns of equal weight, and patient equal weight; and for each the paired resamples of the difference of
        annual Sharpe ratios.
    draws : int64 (samples, days)
        Those that the resamples are of.

    Returns
    -------
    LeastDifference or None
        None where the verdict has no interval, or one of its tests cannot be made.
    """
    scale, deviation = math.sqrt(bars_per_year), float((judged - cash).std(ddof=1))
    if not all(interval(lead).defined for lead in leads):
        return None
    own = scale * float((judged - cash).mean()) / deviation
    by_interval, by_all, ratios = [], [], []
    for rival, differences in zip(rivals, leads, strict=True):
        try:
            track = track_of(judged - rival, "the active return")
        except EvidenceError:
            return None
        excess = rival - cash
        ratio = scale * float(excess.mean()) / float(excess.std(ddof=1))
        lead = own - ratio
        critical = lead - float(np.quantile(differences, (1.0 - CONFIDENCE) / 2.0))
        of_interval = ratio + (critical - (differences - lead))
        of_mean = scale * (float(excess.mean()) + _by_mean(judged - rival, track, draws, tries)) / deviation
        by_interval.append(of_interval)
        by_all += [of_interval, of_mean]
        ratios.append(ratio)
    return LeastDifference(
        POWER,
        float(np.quantile(np.max(by_all, axis=0), POWER)) - ratios[0],
        float(np.quantile(by_interval[0], POWER)) - ratios[0],
        float(leads[0].std(ddof=1)),
    )


def _by_mean(active: FloatArray, track: TrackRecord, draws: Draws, tries: Tries) -> FloatArray:
    """True mean active return of a bar at which each resample would pass SPA and the deflated Sharpe ratio."""
    luck = expected_maximum(tries.total, tries.variance(track.sharpe, track.days))
    hurdle = luck + float(scipy.stats.norm.ppf(CONFIDENCE)) * math.sqrt(track.spread / (track.days - 1))
    strayed = active[draws].mean(axis=1) - float(active.mean())
    critical = max(float(np.quantile(strayed, 1.0 - SIZE)), hurdle * float(active.std(ddof=1)))
    return np.asarray(critical - strayed, dtype=np.float64)
