"""Findings of an audit, and the one line that names the first component that is not clean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from finflow.evaluation.audit.shocked_panels import SHOCKS, UNPRIMED
from finflow.market.panel import MarketPanel

FOREKNOWLEDGE, OPENED = "foreknowledge", "opened"
KINDS = (*SHOCKS, UNPRIMED, FOREKNOWLEDGE, OPENED)
CLEAN, LEAK, UNSTEADY, FAILED, BEYOND_LIMIT = "clean", "LEAK", "NOT REPEATABLE", "FAILED", "BEYOND LIMIT"
NOTED = "note"


@dataclass(frozen=True)
class Finding:
    """The finding of one kind of probe in one component.

    Attributes
    ----------
    probe : str
        The kind of shock; or "foreknowledge", or "opened".
    dates : tuple of datetime64[D]
        Last dates before the shocks; the first and the last date otherwise.
    verdict : str
        "clean", "LEAK", "NOT REPEATABLE" (the same panel twice gave two answers), "FAILED" (it raised), "BEYOND LIMIT"
        (it scores more than can be known), or "note", which is no fault.
    difference : float
        The largest absolute difference; infinite where numbers, shapes or the rows themselves came or went.
    where : str
        The first leak: part, date of the row, place in the row, and the last date it was allowed to know.
    """

    component: str
    probe: str
    dates: tuple[np.datetime64, ...]
    rows: int
    verdict: str
    difference: float = 0.0
    where: str = ""

    @property
    def bad(self) -> bool:
        return self.verdict not in (CLEAN, NOTED)


class Difference(NamedTuple):
    """A difference between two answers: its size, and the bar, part and place in the row where it is."""

    size: float
    bar: int
    part: str
    place: str


def raised(error: Exception) -> str:
    """The error of a component, in one line: whatever a user's own code may raise is a finding."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def joined(passes: Iterable[Sequence[Finding]]) -> tuple[Finding, ...]:
    """Findings of several audits as one, components in the order of the first audit that has them."""
    by_name: dict[str, dict[str, list[Finding]]] = {}
    for findings in passes:
        for finding in findings:
            by_name.setdefault(finding.component, {}).setdefault(finding.probe, []).append(finding)
    return tuple(_one_of(kinds[kind]) for kinds in by_name.values() for kind in KINDS if kind in kinds)


def _one_of(findings: Sequence[Finding]) -> Finding:
    """Findings of one component and kind: the first fault speaks, then the first note."""
    worst = min(findings, key=lambda finding: (not finding.bad, finding.verdict == CLEAN))
    return replace(
        worst,
        dates=tuple(sorted({date for finding in findings for date in finding.dates})),
        rows=sum(finding.rows for finding in findings),
        difference=max(finding.difference for finding in findings),
    )


def verdict_of(findings: Sequence[Finding]) -> str | None:
    """One line that names the first component that is not clean; None where all are."""
    bad = [finding for finding in findings if finding.bad]
    if not bad:
        return None
    # What raises or will not repeat cannot be judged further: the leaks of others come first.
    unsteady = {finding.component: finding for finding in reversed(bad) if finding.verdict == UNSTEADY}
    leaks = (one for one in bad if one.verdict in (LEAK, BEYOND_LIMIT) and one.component not in unsteady)
    first = next(leaks, unsteady.get(bad[0].component, bad[0]))
    others = list(dict.fromkeys(finding.component for finding in bad if finding.component != first.component))
    more = f"; not clean either: {', '.join(others)}" if others else ""
    what = {
        LEAK: f"{first.component} looks ahead: with the future {first.probe}, {first.where}",
        UNSTEADY: f"{first.component} cannot be audited: two runs on the same input differ: {first.where}",
        BEYOND_LIMIT: f"{first.component} has foreknowledge of returns: {first.where}",
        FAILED: f"{first.component} failed in the audit ({first.probe}): {first.where}",
    }
    return what[first.verdict] + more


def summed(
    component: str, kind: str, rows: Sequence[tuple[int, int, str, Difference | None]], panel: MarketPanel
) -> Finding:
    def date(bar: int) -> np.datetime64:
        day: np.datetime64 = panel.dates[min(max(bar, 0), panel.n_bars - 1)]
        return day

    def words(last: int, verdict: str, one: Difference) -> str:
        if verdict == FAILED:
            return f"{one.part}, asked about {date(last)}"
        change = "" if one.place.startswith(("has", "is")) else f" changes by up to {one.size:.3g}"
        return f"its {one.part}{' ' * bool(one.place)}{one.place} of {date(one.bar)}{change}, known: {date(last)}"

    first = next(((last, verdict, one) for last, _, verdict, one in rows if one is not None), None)
    return Finding(
        component=component,
        probe=kind,
        dates=tuple(date(last) for last, *_ in rows),
        rows=sum(count for _, count, *_ in rows),
        verdict=first[1] if first else CLEAN,
        difference=max((one.size for *_, one in rows if one is not None), default=0.0),
        where=words(*first) if first else "",
    )
