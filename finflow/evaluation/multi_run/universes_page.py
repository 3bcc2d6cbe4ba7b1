"""The page and the numbers of one job in several universes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finflow.errors import EvidenceError
from finflow.evaluation.multi_run.comparison_page import Made
from finflow.evaluation.report.page import verdicts_of_several
from finflow.evaluation.report.results import BASELINE, json_text
from finflow.evaluation.report.section import Cell, Row, Section, Table, plain, render_page
from finflow.evaluation.statistics.run_statistics import (
    DIFFERENCE,
    Estimate,
    improvement_estimate,
    interquartile_estimate,
)

__all__ = ["Universe", "make"]


@dataclass(frozen=True)
class Universe:
    """Results in one universe.

    Attributes
    ----------
    name, judged
        Of the universe, and of what its report judges.
    answer
        Verdict against equal weight there; None where it was not compared.
    sharpe, baseline, difference
        Sharpe ratios of the judged one and of equal weight, and the one less the other; None where undefined.
    bounds
        Bootstrap interval of the difference, where there is one.
    runs
        Sharpe ratio of each agent, or path of a protocol, alone.
    start, end, days
        Of the judged days.
    """

    name: str
    judged: str
    answer: str | None
    sharpe: float | None
    baseline: float | None
    difference: float | None
    bounds: Sequence[float] | None
    runs: tuple[float, ...]
    start: str
    end: str
    days: int

    @classmethod
    def of(cls, name: str, content: Mapping[str, Any]) -> Universe:
        """From the ``metrics.json`` of its report."""
        strategies, against = content["strategies"], content["against_equal_weight"]
        judged = strategies[content["agent"]]
        alone = content.get("seeds", {}).get("agents") or content.get("protocol", {}).get("paths") or {"": judged}
        return cls(
            name=name,
            judged=content["agent"],
            answer=(content.get("verdict") or {}).get("beats_equal_weight"),
            sharpe=judged["sharpe"],
            baseline=strategies.get(BASELINE, {}).get("sharpe"),
            difference=against["sharpe_difference"],
            bounds=against["interval"],
            runs=tuple(math.nan if one["sharpe"] is None else float(one["sharpe"]) for one in alone.values()),
            start=content["window"]["start"],
            end=content["window"]["end"],
            days=content["window"]["days"],
        )


def make(universes: Sequence[Universe], confidence: float = 0.95, seed: int = 0) -> Made:
    """Make the report of all universes.

    Parameters
    ----------
    universes : sequence of Universe
    confidence, seed
        Of the bootstrap over agents within each universe.
    """
    numbers = {one.name: _numbers(one) for one in universes}
    together, words = _together(universes, confidence, seed)
    sections = (
        Section("together", "All universes together", together, (_summary(),), words=words),
        Section("universes", "Each universe", numbers, (_table(universes),)),
    )
    page = render_page(
        f"{len(universes)} universes",
        "The same job in each of them, all figures net of costs",
        verdicts_of_several(
            {one.name: one.answer for one in universes},
            "Each verdict is of its universe alone: of many, some come out well by luck.",
        ),
        sections,
    )
    text = json_text({"universes": numbers, "together": together})
    return Made({"metrics.json": text, "report.html": page}, _lines(universes, together))


def _numbers(one: Universe) -> dict[str, object]:
    low, high = one.bounds or (None, None)
    return {
        "judged": one.judged,
        "beats_equal_weight": one.answer,
        "sharpe": one.sharpe,
        "baseline_sharpe": one.baseline,
        DIFFERENCE: one.difference,
        "interval": {"low": low, "high": high},
        "agents": len(one.runs),
        "start": one.start,
        "end": one.end,
        "days": one.days,
    }


def _together(universes: Sequence[Universe], confidence: float, seed: int) -> tuple[dict[str, object], tuple[str, ...]]:
    """Numbers over the agents of all universes: lead over equal weight and probability of improvement; and remarks."""
    count = min(len(one.runs) for one in universes)
    equal = np.array([[math.nan if one.baseline is None else one.baseline for one in universes]] * count)
    agents = np.array([one.runs[:count] for one in universes]).T
    words: tuple[str, ...] = (
        "Intervals are of a bootstrap over agents within each universe: they tell the luck of the seed, not that of "
        "the choice of universes, whose days and often whose stocks are the same.",
    )
    lead = improvement = None
    try:
        lead = interquartile_estimate(agents - equal, seed, confidence, name="the agents")
        improvement = improvement_estimate(agents, equal, seed, confidence)
    except EvidenceError as error:
        lead = None
        words = (f"Nothing is said of all together: {error}.", *words)
    numbers: dict[str, object] = {
        "universes": len(universes),
        "agents_of_a_universe": count,
        "answers_yes": sum(one.answer == "yes" for one in universes),
        DIFFERENCE: _estimate_numbers(lead),
        "improvement": _estimate_numbers(improvement),
    }
    return numbers, words


def _estimate_numbers(found: Estimate | None) -> dict[str, object]:
    if found is None:
        return dict.fromkeys(("value", "low", "high"))
    return plain({"value": found.value, "low": found.interval.low, "high": found.interval.high})


def _table(universes: Sequence[Universe]) -> Table:
    rows = []
    for one in universes:
        cells: tuple[Cell | str, ...] = (
            one.judged,
            one.answer or "not compared",
            Cell((one.name, "sharpe")),
            Cell((one.name, "baseline_sharpe")),
            Cell((one.name, DIFFERENCE), plus=True, bounds=(one.name, "interval")),
            f"{one.start} to {one.end}",
        )
        rows.append(Row(one.name, cells))
    heads = ("Universe", "judged", "beats equal weight", "Sharpe", "of equal weight", "difference", "days")
    return Table("Universes", heads, tuple(rows), "Each has a report of its own in its folder.")


def _summary() -> Table:
    def cells(key: str, unit: str, decimals: int) -> tuple[Cell, ...]:
        return tuple(Cell((key, end), unit, decimals) for end in ("value", "low", "high"))

    rows = (
        Row("Sharpe over equal weight, interquartile mean", cells(DIFFERENCE, "", 2)),
        Row("an agent is ahead of equal weight", cells("improvement", "%", 1)),
    )
    return Table("Agents of all universes", ("", "value", "from", "to"), rows)


def _lines(universes: Sequence[Universe], together: Mapping[str, Any]) -> list[str]:
    """A table for a terminal."""

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    width = max(len(one.name) for one in universes)
    lines = [f"{'':{width}}  Sharpe  of equal weight  beats it"]
    for one in universes:
        lines.append(f"{one.name:{width}}  {shown(one.sharpe):>6}  {shown(one.baseline):>15}  {one.answer or '-'}")
    found = together[DIFFERENCE]
    if found["value"] is not None:
        lines.append(
            f"Sharpe over equal weight, interquartile mean over all agents: {found['value']:.2f} "
            f"({found['low']:.2f} to {found['high']:.2f})"
        )
    return lines
