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
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from finflow.errors import EvidenceError
from finflow.evaluation.page.drawing import MINUS
from finflow.evaluation.page.page_numbers import Answer, about
from finflow.evaluation.statistics.bootstrap import Interval, interval
from finflow.evaluation.statistics.readings_ledger import Tries
from finflow.evaluation.statistics.significance_tests import (
    Resampling,
    Superiority,
    TrackRecord,
    expected_maximum,
    superior_ability,
    superior_strategies,
    track_of,
)

CONFIDENCE = 0.95
SIZE = 0.05

Array = NDArray[np.float64]
NAN = math.nan
NOWHERE = Interval(NAN, NAN)


@dataclass(frozen=True)
class Reason:
    """One test of the verdict."""

    said: Annotated[str, about("Result, in words.")]
    enough: Annotated[bool, about("Enough for a yes.")]

    def __str__(self) -> str:
        return f"{'✓' if self.enough else '✗'} {self.said.replace(' -', ' ' + MINUS)}"


@dataclass(frozen=True)
class Verdict:
    """The answer, and all that it rests on; numbers are NaN where they are undefined.

    Attributes
    ----------
    track
        Of the active return; None where there is none to test.
    variance, expected_maximum
        Of the tries' Sharpe ratios, and the best that chance would show among them; a bar.
    superiority
        The SPA test; None where it could not be made.
    difference
        95 % interval of the paired difference of annual Sharpe ratios.
    """

    answer: Answer
    reasons: tuple[Reason, ...]
    track: TrackRecord | None
    tries: Tries
    variance: float = NAN
    expected_maximum: float = NAN
    superiority: Superiority | None = None
    difference: Interval = NOWHERE

    @property
    def psr(self) -> float:
        """Probabilistic Sharpe ratio of the active return, against zero."""
        return NAN if self.track is None else self.track.psr()

    @property
    def dsr(self) -> float:
        return NAN if self.track is None else self.track.psr(self.expected_maximum)

    @property
    def minimum_length(self) -> float:
        """Days that it would take to be 95 % confident of a positive active return; infinite where it is negative."""
        return NAN if self.track is None else self.track.minimum_length(0.0, CONFIDENCE)


@dataclass(frozen=True)
class VerdictReference:
    """A reference that a strategy must beat: its net returns (days,), and the paired resamples (samples,) of the
    strategy's Sharpe ratio less its own, empty where the window is too short.
    """

    returns: Array
    differences: Array


def reach_verdict(
    judged: Array,
    rivals: Sequence[VerdictReference],
    tries: Tries,
    resampling: Resampling,
    candidates: Mapping[str, Array] | None = None,
) -> Verdict:
    """Apply the three tests.

    Parameters
    ----------
    judged : float64 (days,)
        Returns of the strategy, net of costs.
    rivals
        Equal weight, and after it patient equal weight where that was backtested: a yes must hold against it as well.
    candidates
        Name -> returns of the others that the strategy was chosen among.
    """
    verdict = _test(judged, rivals[0], tries, resampling, candidates)
    if verdict.answer != "yes" or len(rivals) == 1:
        return verdict
    again = _test(judged, rivals[1], tries, resampling, candidates)
    failed = [reason.said for reason in again.reasons if not reason.enough]
    result = " ".join(failed) if failed else "all three hold."
    reason = Reason(f"Against equal weight that is restored once a month, too: {result}", not failed)
    return replace(verdict, answer="not shown" if failed else "yes", reasons=(*verdict.reasons, reason))


def _test(
    judged: Array, rival: VerdictReference, tries: Tries, resampling: Resampling, candidates: Mapping[str, Array] | None
) -> Verdict:
    baseline, differences = rival.returns, rival.differences
    active = judged - baseline
    try:
        track = track_of(active, "the active return")
        superiority = superior_ability(baseline, {"judged": judged, **(candidates or {})}, resampling)
    except EvidenceError as error:
        return Verdict("not shown", (Reason(f"Nothing can be shown here: {error}.", False),), None, tries)
    named = not candidates or "judged" in superior_strategies(
        baseline, {"judged": judged, **candidates}, resampling, SIZE
    )
    variance = tries.variance(track.sharpe, track.days)
    benchmark = expected_maximum(tries.total, variance)
    bounds = interval(differences, CONFIDENCE)
    deflated, counted = track.psr(benchmark), "a single try" if tries.total == 1 else f"{tries.total} tries"
    reasons = (
        Reason(
            f"Deflated Sharpe ratio of the return over equal weight, for {counted}: {deflated:.3f}; yes needs "
            f"{CONFIDENCE:g}.",
            bool(deflated >= CONFIDENCE),
        ),
        Reason(
            f"Superior predictive ability (SPA): p = {superiority.p_consistent:.3f}; yes needs less than {SIZE:g}"
            + ("." if named else ", and StepM does not name this one among the superior."),
            superiority.p_consistent < SIZE and named,
        ),
        _paired(bounds),
    )
    less = track.psr() <= 1.0 - CONFIDENCE and not (bounds.defined and np.median(differences) > 0.0)
    answer: Answer = "not shown"
    if all(reason.enough for reason in reasons):
        answer = "yes"
    elif (bounds.defined and bounds.high < 0.0) or less:
        answer = "no"
    return Verdict(answer, reasons, track, tries, variance, benchmark, superiority, bounds)


def _paired(bounds: Interval) -> Reason:
    if not bounds.defined:
        return Reason("The difference of Sharpe ratios has no interval; yes needs one above zero.", False)
    return Reason(
        f"The difference of Sharpe ratios lies between {bounds.low:+.2f} and {bounds.high:+.2f} (95 %, paired); yes "
        "needs all of it above zero.",
        bounds.low > 0.0,
    )
