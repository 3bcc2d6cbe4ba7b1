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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.cores import ForkedCalls
from finflow.market.panel import MarketPanel
from finflow.training.audit.shocked_panels import CUT, REPEAT, SHOCKS, UNPRIMED, shocked

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


def joined(findings: Iterable[Finding]) -> tuple[Finding, ...]:
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


def raised(error: Exception) -> str:
    """The error of a component, in one line: whatever a user's own code may raise is a finding."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class Rows(NamedTuple):
    """Part of an answer.

    Attributes
    ----------
    values : array (rows, ...)
    bars : int array (rows,)
        The bar that each row belongs to; a bar may have several rows, or none.
    lag : int
        Row i may use bars up to ``bars[i] - lag``.
    tolerance : float
        Difference that rounding may leave, relative to values over one. Zero, unless sums vary in order.
    """

    values: NDArray[Any]
    bars: NDArray[np.int64]
    lag: int = 0
    tolerance: float = 0.0

    def until(self, end: int) -> Rows:
        kept = self.bars <= end
        return self._replace(values=self.values[kept], bars=self.bars[kept])


Answer = Mapping[str, Rows]
Ask = Callable[[MarketPanel, int], Answer]


def by_bar(values: NDArray[Any]) -> Rows:
    """One row a bar, from the first bar on."""
    return Rows(values, np.arange(len(values), dtype=np.int64))


def rows_by_bar(tables: Mapping[str, NDArray[Any] | None]) -> Answer:
    """Tables with one row a bar, without those that there are not."""
    return {name: by_bar(table) for name, table in tables.items() if table is not None}


class Probe(NamedTuple):
    """A question: is anything known at `last` of what came after it?"""

    last: int
    kind: str


@dataclass(frozen=True)
class Component:
    """A component to audit.

    ``answer(panel, last)`` gives parts by name. It is asked first with the panel as it is, for every `last` (the last
    bar that other futures share), so that it may confine its answer to rows near that bar. ``suits(last, kind)`` says
    which probes it can be put to.
    """

    name: str
    answer: Ask
    suits: Callable[[int, str], bool] = lambda last, kind: True

    def ask(self, panel: MarketPanel, last: int) -> Answer | str:
        """Answer, or the error that it raised."""
        try:
            return self.answer(panel, last)
        except Exception as error:
            return raised(error)


Unprimed = Mapping[tuple[int, int], "Answer | str"]


def unprimed(panel: MarketPanel, components: Sequence[Component], lasts: Iterable[int], seed: int = 0) -> Unprimed:
    """Answers to a replaced future in a process that has answered nothing before, by component and last bar.

    A component that caches the first market that it sees, and answers from it later, gives the same answer to every
    probe. A copy of this process that sees another future first caches that one. Call it before any other probe;
    each component is asked at the first of `lasts` that suits it. Empty where processes cannot be copied.
    """
    others: dict[int, MarketPanel] = {}

    def ask(place: tuple[int, int]) -> Answer | str:
        index, last = place
        if last not in others:
            others[last] = shocked(panel, "replaced", last, seed)
        answer = components[index].ask(others[last], last)
        return (
            answer if isinstance(answer, str) else {name: rows.until(last + rows.lag) for name, rows in answer.items()}
        )

    answers: dict[tuple[int, int], Answer | str] = {}
    calls: ForkedCalls[tuple[int, int], Answer | str] | None = ForkedCalls.start(ask, waited_for=True)
    if calls is None:
        return answers
    asked: set[int] = set()
    with suppress(EOFError):  # it has ended early: then missing answers are not compared
        for last in sorted(lasts):
            for index, component in enumerate(components):
                if index not in asked and component.suits(last, UNPRIMED):
                    asked.add(index)
                    calls.begin((index, last))
                    answers[index, last] = calls.result()
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
    first = first or {}
    kinds: dict[int, list[str]] = {last: [] for _, last in first}
    for probe in probes:
        kinds.setdefault(probe.last, []).append(probe.kind)
    for last, wanted in sorted(kinds.items()):
        before = {
            index: component.ask(panel, last)
            for index, component in enumerate(components)
            if (index, last) in first or any(component.suits(last, kind) for kind in wanted)
        }
        for kind in (*wanted, UNPRIMED):
            other = None if kind == UNPRIMED else shocked(panel, kind, last, seed)
            for index, known in before.items():
                component, after = components[index], first.get((index, last))
                if other is not None:
                    suits = component.suits(last, kind)
                    after = (known if isinstance(known, str) else component.ask(other, last)) if suits else None
                if after is not None:
                    found.append((index, _judged(component.name, Probe(last, kind), panel, known, after)))
    return joined(finding for _, finding in sorted(found, key=lambda one: one[0]))


class _Difference(NamedTuple):
    """A difference between two answers: its size, and the bar, part and place in the row where it is."""

    size: float
    bar: int
    part: str
    place: str


def _judged(name: str, probe: Probe, panel: MarketPanel, before: Answer | str, after: Answer | str) -> Finding:
    """The finding of one probe: the first difference, with the size of the largest."""

    def date(bar: int) -> np.datetime64:
        day: np.datetime64 = panel.dates[min(max(bar, 0), panel.n_bars - 1)]
        return day

    known = date(probe.last)
    clean = Finding(name, probe.kind, (known,), 0, CLEAN)
    if isinstance(before, str) or isinstance(after, str):  # with the one future it may work, and with the other not
        error = before if isinstance(before, str) else after
        return replace(clean, verdict=FAILED, difference=np.inf, where=f"{error}, asked about {known}")
    compared, differences = _compare(before, after, probe)
    if not differences:
        return replace(clean, rows=compared)
    first, size = min(differences, key=lambda one: one.bar), max(one.size for one in differences)
    change = "" if first.place.startswith(("has", "is")) else f" changes by up to {size:.3g}"
    return replace(
        clean,
        rows=compared,
        verdict=UNSTEADY if probe.kind == REPEAT else LEAK,
        difference=size,
        where=f"its {' '.join(filter(None, first[2:]))} of {date(first.bar)}{change}, known: {known}",
    )


def _compare(before: Answer, after: Answer, probe: Probe) -> tuple[int, list[_Difference]]:
    """Count the rows compared, and find the first difference of each part."""
    if probe.kind == CUT:  # a run that began with the end of the panel has no rows left
        after = {**{name: rows.until(-1) for name, rows in before.items()}, **after}
    if lone := sorted(set(before) ^ set(after)):
        return 0, [_Difference(np.inf, probe.last, lone[0], "is there or not")]
    found = [_compared(name, rows, after[name], probe) for name, rows in before.items()]
    return sum(count for count, _ in found), [one for _, one in found if one is not None]


def _compared(name: str, before: Rows, after: Rows, probe: Probe) -> tuple[int, _Difference | None]:
    end = probe.last + before.lag
    if probe.kind == REPEAT:
        end = int(max(before.bars.max(initial=-1), after.bars.max(initial=-1)))
    elif probe.kind == CUT:  # rows of a decision need a bar after them, which may be gone
        end = min(end, max(int(after.bars.max(initial=-1)), probe.last - 1))
    (left, bars, *_), (right, others, *_) = before.until(end), after.until(end)
    if not np.array_equal(bars, others):
        common = min(len(bars), len(others))
        at = int(np.append(np.flatnonzero(bars[:common] != others[:common]), common)[0])
        return len(bars), _Difference(np.inf, int((bars if at < len(bars) else others)[at]), name, "has other rows")
    if left.shape != right.shape or left.dtype != right.dtype:
        return len(bars), _Difference(np.inf, end, name, f"has the shape {right.shape} and not {left.shape}")
    same = left == right
    if left.dtype.kind == "f":
        same |= np.isnan(left) & np.isnan(right)
        if before.tolerance > 0.0:
            same |= np.isclose(left, right, rtol=before.tolerance, atol=before.tolerance)
    if same.all():
        return len(bars), None
    wrong = np.argwhere(~same)
    where = wrong[np.argmin(bars[wrong[:, 0]])]
    place = ", ".join(str(int(index)) for index in where[1:])
    return len(bars), _Difference(_size(left, right, same), int(bars[where[0]]), name, f"[{place}]" if place else "")


def _size(left: NDArray[Any], right: NDArray[Any], same: NDArray[np.bool_]) -> float:
    if left.dtype.kind not in "fiub":
        return float("inf")
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(left[~same].astype(np.float64) - right[~same].astype(np.float64))
    return float(np.where(np.isnan(apart), np.inf, apart).max())
