"""Audit for look-ahead, by inputs and outputs alone.

The engine does not depend on the audited code. A component is a function of a panel whose answer has rows that belong
to bars, and each row may use the bars up to its own less a lag. The engine calls it with the panel as it is and again
with other futures (`shocked_panels`): rows that precede the change must be equal to the last bit, whatever the cause of
a leak. Limitations are in docs/reference/audit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.arrays import IntArray
from finflow.cores import ForkedCalls
from finflow.errors import typed_line
from finflow.market.panel import MarketPanel
from finflow.training.audit.shocked_panels import CUT, REPEAT, SHOCKS, UNPRIMED, shocked

FOREKNOWLEDGE, OPENED = "foreknowledge", "opened"
KINDS = (*SHOCKS, UNPRIMED, FOREKNOWLEDGE, OPENED)
CLEAN, NOTED = "clean", "note"
LEAK, UNSTEADY, FAILED, BEYOND_LIMIT = "LEAK", "NOT REPEATABLE", "FAILED", "BEYOND LIMIT"


@dataclass(frozen=True)
class Finding:
    """The finding of one kind of probe in one component.

    Verdicts are "clean", "LEAK", "NOT REPEATABLE" (the same panel twice gave two answers), "FAILED" (it raised),
    "BEYOND LIMIT" (it scores more than can be known), or "note", which is no fault.
    """

    component: str
    probe: str  # the kind of shock; or "foreknowledge", or "opened"
    dates: tuple[np.datetime64, ...]  # the last before the shocks; the first and the last date otherwise
    rows: int
    verdict: str
    difference: float = 0.0  # the largest; infinite where numbers, shapes or the rows themselves came or went
    where: str = ""  # the first leak: part, date of the row, place in the row, and the last date it was allowed to know

    @property
    def bad(self) -> bool:
        return self.verdict not in (CLEAN, NOTED)


def join_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """One finding for each component and kind, components in their first order: the first fault or note speaks."""
    by_name: dict[str, dict[str, list[Finding]]] = {}
    for finding in findings:
        by_name.setdefault(finding.component, {}).setdefault(finding.probe, []).append(finding)
    return tuple(
        replace(
            min(same, key=lambda finding: (not finding.bad, finding.verdict == CLEAN)),
            dates=tuple(sorted({date for finding in same for date in finding.dates})),
            rows=sum(finding.rows for finding in same),
            difference=max(finding.difference for finding in same),
        )
        for kinds in by_name.values()
        for same in (kinds[kind] for kind in KINDS if kind in kinds)
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


class Rows(NamedTuple):
    """Part of an answer."""

    values: NDArray[Any]  # (rows, ...)
    bars: IntArray  # (rows,), the bar that each row belongs to; a bar may have several rows, or none
    lag: int = 0  # row i may use bars up to ``bars[i] - lag``
    tolerance: float = 0.0  # of rounding, relative to values over one; zero, unless sums vary in order

    def until(self, end: int) -> Rows:
        kept = self.bars <= end
        return self._replace(values=self.values[kept], bars=self.bars[kept])


Answer = Mapping[str, Rows]
Ask = Callable[[MarketPanel, int], Answer]


def rows_by_bar(tables: Mapping[str, NDArray[Any] | None]) -> Answer:
    """Tables with one row a bar, from the first bar on; without those that there are not."""
    return {name: Rows(table, np.arange(len(table))) for name, table in tables.items() if table is not None}


class Probe(NamedTuple):
    """A question: is anything known at `last` of what came after it?"""

    last: int
    kind: str


@dataclass(frozen=True)
class Component:
    """A component to audit.

    ``answer(panel, last)`` gives parts by name, of which those near `last` (the last bar that other futures share) are
    enough. ``suits(last, kind)`` says which probes it can be put to, ``quick`` whether it can be put to many.
    """

    name: str
    answer: Ask
    suits: Callable[[int, str], bool] = lambda last, kind: True
    quick: bool = False

    def ask(self, panel: MarketPanel, last: int) -> Answer | str:
        """Answer, or the error that it raised: whatever a user's own code may raise is a finding."""
        try:
            return self.answer(panel, last)
        except Exception as error:
            return typed_line(error)


Unprimed = Mapping[tuple[int, int], "Answer | str"]


def unprimed(panel: MarketPanel, components: Sequence[Component], lasts: Iterable[int], seed: int = 0) -> Unprimed:
    """Answers to a replaced future in a process that has answered nothing before, by component and last bar.

    A component that caches the first market that it sees, and answers from it later, gives the same answer to every
    probe. A copy of this process that sees another future first caches that one. Call it before any other probe;
    each component is asked at the first of `lasts` that suits it. Empty where processes cannot be copied.
    """
    other = cache(lambda last: shocked(panel, "replaced", last, seed))

    def ask(place: tuple[int, int]) -> Answer | str:
        index, last = place
        answer = components[index].ask(other(last), last)
        return answer if isinstance(answer, str) else {k: rows.until(last + rows.lag) for k, rows in answer.items()}

    places: dict[int, int] = {}
    for last in sorted(lasts):
        suited = (index for index, component in enumerate(components) if component.suits(last, UNPRIMED))
        places = dict.fromkeys(suited, last) | places
    answers: dict[tuple[int, int], Answer | str] = {}
    calls: ForkedCalls[tuple[int, int], Answer | str] | None = ForkedCalls.start(ask, waited_for=True)
    if calls is None:
        return answers
    with suppress(EOFError):  # it has ended early: then missing answers are not compared
        for place in places.items():
            calls.begin(place)
            answers[place] = calls.result()
    calls.end()
    return answers


def audit(
    panel: MarketPanel,
    components: Sequence[Component],
    probes: Iterable[Probe],
    seed: int = 0,
    first: Unprimed | None = None,
) -> tuple[Finding, ...]:
    """Put every component to every probe that suits it: a finding for each component and kind, in their order.

    Components are in the order in which one rests on another, so that the first that leaks is the likely cause;
    ``seed`` is of the synthetic futures, and ``first`` from `unprimed`.
    """
    found: list[tuple[int, Finding]] = []
    kinds: dict[int, list[str]] = {last: [] for _, last in first or {}}
    for probe in probes:
        kinds.setdefault(probe.last, []).append(probe.kind)
    for last, wanted in sorted(kinds.items()):
        others = {kind: shocked(panel, kind, last, seed) for kind in wanted}
        for index, component in enumerate(components):
            answers = {UNPRIMED: after} if (after := (first or {}).get((index, last))) is not None else {}
            suited = [kind for kind in wanted if component.suits(last, kind)]
            if suited or answers:
                before = component.ask(panel, last)
                failed = isinstance(before, str)
                answers |= {kind: before if failed else component.ask(others[kind], last) for kind in suited}
                judged = (_judged(component.name, Probe(last, kind), panel, before, answers[kind]) for kind in answers)
                found += [(index, finding) for finding in judged]
    return join_findings(finding for _, finding in sorted(found, key=lambda one: one[0]))


def _judged(name: str, probe: Probe, panel: MarketPanel, before: Answer | str, after: Answer | str) -> Finding:
    """The finding of one probe: the first difference, with the size of the largest."""
    known = panel.dates[probe.last]
    if isinstance(before, str) or isinstance(after, str):  # with the one future it may work, and with the other not
        error = before if isinstance(before, str) else after
        return Finding(name, probe.kind, (known,), 0, FAILED, np.inf, f"{error}, asked about {known}")
    if probe.kind == CUT:  # a run that began with the end of the panel has no rows left
        after = {**{part: rows.until(-1) for part, rows in before.items()}, **after}
    found = [(probe.last, np.inf, part, "is there or not") for part in sorted(before.keys() ^ after.keys())]
    compared = 0
    for part in [part for part in before if part in after]:
        count, differences = _compared(part, before[part], after[part], probe)
        compared, found = compared + count, found + differences
    if not found:
        return Finding(name, probe.kind, (known,), compared, CLEAN)
    bar, _, part, words = min(found, key=lambda one: one[0])
    date = panel.dates[min(max(bar, 0), panel.n_bars - 1)]
    where, largest = f"its {part} of {date} {words}, known: {known}", max(size for _, size, *_ in found)
    return Finding(name, probe.kind, (known,), compared, UNSTEADY if probe.kind == REPEAT else LEAK, largest, where)


def _compared(part: str, before: Rows, after: Rows, probe: Probe) -> tuple[int, list[tuple[int, float, str, str]]]:
    """Count the rows that may not know what came after; and bar, size, place and words of a difference in them."""
    end = probe.last + before.lag
    if probe.kind == REPEAT:
        end = int(max(before.bars.max(initial=-1), after.bars.max(initial=-1)))
    elif probe.kind == CUT:  # rows of a decision need a bar after them, which may be gone
        end = min(end, max(int(after.bars.max(initial=-1)), probe.last - 1))
    (left, bars, *_), (right, others, *_) = before.until(end), after.until(end)
    if not np.array_equal(bars, others):
        lone = set(bars.tolist()) ^ set(others.tolist())
        return len(bars), [(min(lone, default=end), np.inf, part, "has other rows")]
    if left.shape != right.shape or left.dtype != right.dtype:
        return len(bars), [(end, np.inf, part, f"has the shape {right.shape} and not {left.shape}")]
    same, apart = left == right, np.full(left.shape, np.inf)
    if left.dtype.kind in "fiub":
        left, right = left.astype(np.float64), right.astype(np.float64)
        same = np.isclose(left, right, rtol=before.tolerance, atol=before.tolerance, equal_nan=True)
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.nan_to_num(np.abs(left - right), nan=np.inf, posinf=np.inf)
    if same.all():
        return len(bars), []
    wrong, size = np.argwhere(~same), float(apart[~same].max())
    row, *place = wrong[np.argmin(bars[wrong[:, 0]])].tolist()
    where = f"{part} {place}" if place else part
    return len(bars), [(int(bars[row]), size, where, f"changes by up to {size:.3g}")]
