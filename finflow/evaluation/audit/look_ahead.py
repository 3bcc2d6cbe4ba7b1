"""Audit for look-ahead, by inputs and outputs alone.

The engine does not depend on the audited code. A component is a function of a panel whose answer has rows that belong
to bars, and each row may use the bars up to its own less a lag. The engine calls it with the panel as it is and again
with other futures (`finflow.evaluation.audit.shocked_panels`): rows that precede the change must be equal to the last
bit, whatever the cause of a leak. Limitations are in docs/reference/audit.md.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.audit.findings import CLEAN, FAILED, KINDS, LEAK, UNSTEADY, Difference, Finding, raised, summed
from finflow.evaluation.audit.shocked_panels import CUT, REPEAT, UNPRIMED, shocked
from finflow.market.panel import MarketPanel

PATIENCE = 300.0  # seconds for one answer of the other process


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


def by_bar(values: NDArray[Any]) -> Rows:
    """One row a bar, from the first bar on."""
    return Rows(values, np.arange(len(values), dtype=np.int64))


Answer = Mapping[str, Rows]


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
    answer: Callable[[MarketPanel, int], Answer]
    suits: Callable[[int, str], bool] = lambda last, kind: True


Unprimed = Mapping[tuple[int, int], "Answer | str"]


def unprimed(panel: MarketPanel, components: Sequence[Component], lasts: Iterable[int], seed: int = 0) -> Unprimed:
    """Answers to a replaced future in a process that has answered nothing before, by component and last bar.

    A component that caches the first market that it sees, and answers from it later, gives the same answer to every
    probe. A copy of this process that sees another future first caches that one. Call it before any other probe;
    each component is asked at the first of `lasts` that suits it. Empty where processes cannot be copied.
    """
    if sys.platform == "darwin" or "fork" not in multiprocessing.get_all_start_methods():
        return {}
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer_first, args=(sender, panel, components, sorted(lasts), seed), daemon=True)
    child.start()
    sender.close()
    answers: dict[tuple[int, int], Answer | str] = {}
    try:
        while receiver.poll(PATIENCE):
            place, answer = receiver.recv()
            answers[place] = answer
    except EOFError:  # it has sent all, or ended early: then missing answers are not compared
        pass
    finally:
        child.kill()
        child.join()
        receiver.close()
    return answers


def _answer_first(
    sender: Connection, panel: MarketPanel, components: Sequence[Component], lasts: Sequence[int], seed: int
) -> None:
    asked: set[int] = set()
    for last in lasts:
        other = shocked(panel, "replaced", last, seed)
        for index, component in enumerate(components):
            if index not in asked and component.suits(last, UNPRIMED):
                asked.add(index)
                answer = _ask(component, other, last)
                if not isinstance(answer, str):
                    answer = {name: rows.until(last + rows.lag) for name, rows in answer.items()}
                sender.send(((index, last), answer))
    sender.close()


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
    found: dict[tuple[int, str], list[tuple[int, int, str, Difference | None]]] = {}
    kinds: dict[int, list[str]] = {}
    for probe in probes:
        kinds.setdefault(probe.last, []).append(probe.kind)
    first = first or {}
    for _, last in first:
        kinds.setdefault(last, [])
    for last, wanted in sorted(kinds.items()):
        before = [
            _ask(part, panel, last) if (i, last) in first or any(part.suits(last, k) for k in wanted) else None
            for i, part in enumerate(components)
        ]
        for kind in wanted:
            other = shocked(panel, kind, last, seed)
            for index, component in enumerate(components):
                known = before[index]
                if known is None or not component.suits(last, kind):
                    continue
                after = known if isinstance(known, str) else _ask(component, other, last)
                found.setdefault((index, kind), []).append((last, *_judge(known, after, last, kind)))
        for index, known in enumerate(before):
            if known is not None and (index, last) in first:
                judged = _judge(known, first[index, last], last, UNPRIMED)
                found.setdefault((index, UNPRIMED), []).append((last, *judged))
    return tuple(
        summed(components[index].name, kind, rows, panel)
        for (index, kind), rows in sorted(found.items(), key=lambda item: (item[0][0], KINDS.index(item[0][1])))
    )


def _ask(component: Component, panel: MarketPanel, last: int) -> Answer | str:
    try:
        return component.answer(panel, last)
    except Exception as error:
        return raised(error)


def _judge(before: Answer | str, after: Answer | str, last: int, kind: str) -> tuple[int, str, Difference | None]:
    """Rows compared, the verdict, and the first difference with the size of the largest."""
    if isinstance(before, str):
        return 0, FAILED, Difference(np.inf, last, before, "")
    if isinstance(after, str):  # it worked with the one future and not with the other
        return 0, FAILED, Difference(np.inf, last, after, "")
    if kind == CUT:  # a run that began with the end of the panel has no rows left
        after = {**{name: rows.until(-1) for name, rows in before.items()}, **after}
    if set(before) != set(after):
        part = sorted(set(before) ^ set(after))[0]
        return 0, UNSTEADY if kind == REPEAT else LEAK, Difference(np.inf, last, part, "is there or not")
    compared, differences = 0, []
    for name, rows in before.items():
        count, difference = _compared(name, rows, after[name], last, kind)
        compared += count
        differences += [difference] if difference is not None else []
    if not differences:
        return compared, CLEAN, None
    first = min(differences, key=lambda one: one.bar)
    largest = max(one.size for one in differences)
    return compared, UNSTEADY if kind == REPEAT else LEAK, first._replace(size=largest)


def _compared(name: str, before: Rows, after: Rows, last: int, kind: str) -> tuple[int, Difference | None]:
    end = last + before.lag
    if kind == REPEAT:
        end = int(max(before.bars.max(initial=-1), after.bars.max(initial=-1)))
    elif kind == CUT:  # rows of a decision need a bar after them, which may be gone
        end = min(end, max(int(after.bars.max(initial=-1)), last - 1))
    (left, bars, *_), (right, others, *_) = before.until(end), after.until(end)
    if not np.array_equal(bars, others):
        common = min(len(bars), len(others))
        apart = np.flatnonzero(bars[:common] != others[:common])
        at = int(apart[0]) if apart.size else common
        return len(bars), Difference(np.inf, int((bars if at < len(bars) else others)[at]), name, "has other rows")
    if left.shape != right.shape or left.dtype != right.dtype:
        return len(bars), Difference(np.inf, end, name, f"has the shape {right.shape} and not {left.shape}")
    if len(bars) == 0:
        return 0, None
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
    return len(bars), Difference(_size(left, right, same), int(bars[where[0]]), name, f"[{place}]" if place else "")


def _size(left: NDArray[Any], right: NDArray[Any], same: NDArray[np.bool_]) -> float:
    if left.dtype.kind not in "fiub":
        return float("inf")
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(left[~same].astype(np.float64) - right[~same].astype(np.float64))
    return float(np.where(np.isnan(apart), np.inf, apart).max())
