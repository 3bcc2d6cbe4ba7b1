"""The page and the numbers of one job in several universes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finflow.errors import EvidenceError
from finflow.evaluation.report.page import verdicts_of_several
from finflow.evaluation.report.report_numbers import json_text
from finflow.evaluation.report.results import BASELINE
from finflow.evaluation.report.section import ROW, Cell, Row, Section, Table, make_table, render_page
from finflow.evaluation.statistics.run_statistics import (
    DIFFERENCE,
    Estimate,
    improvement_estimate,
    interquartile_estimate,
)
from finflow.text_table import table_lines


@dataclass(frozen=True)
class Universe:
    """Results in one universe.

    Attributes
    ----------
    name
        Of the universe.
    numbers : dict
        ``judged``, what its report judges; ``beats_equal_weight``, the verdict, None where it was not compared;
        ``sharpe``, ``baseline_sharpe`` and ``sharpe_difference``, of the judged one, of equal weight, and the one less
        the other, with ``interval``, ``low`` and ``high`` of a bootstrap; number of ``agents``; ``start``, ``end`` and
        ``days`` of the judged window. None where undefined.
    runs
        Sharpe ratio of each agent, or path of a protocol, alone.
    """

    name: str
    numbers: Mapping[str, Any]
    runs: tuple[float, ...]

    @classmethod
    def of(cls, name: str, content: Mapping[str, Any]) -> Universe:
        """From the ``metrics.json`` of its report."""
        strategies, against = content["strategies"], content["against_equal_weight"]
        judged = strategies[content["agent"]]
        alone = content.get("seeds", {}).get("agents") or content.get("protocol", {}).get("paths") or {"": judged}
        numbers = {
            "judged": content["agent"],
            "beats_equal_weight": (content.get("verdict") or {}).get("beats_equal_weight"),
            "sharpe": judged["sharpe"],
            "baseline_sharpe": strategies.get(BASELINE, {}).get("sharpe"),
            DIFFERENCE: against["sharpe_difference"],
            "interval": dict(zip(("low", "high"), against["interval"] or (None, None), strict=True)),
            "agents": len(alone),
            **content["window"],
        }
        return cls(name, numbers, tuple(math.nan if one["sharpe"] is None else one["sharpe"] for one in alone.values()))


def make(universes: Sequence[Universe]) -> tuple[dict[str, bytes | str], list[str]]:
    """Files by name of the report of all universes, and lines for a terminal."""
    numbers = {one.name: one.numbers for one in universes}
    together, words = _together(universes)
    sections = (
        Section("together", "All universes together", together, (_summary(),), words=words),
        Section("universes", "Each universe", numbers, (_table(numbers),)),
    )
    page = render_page(
        f"{len(universes)} universes",
        "The same job in each of them, all figures net of costs",
        verdicts_of_several(
            {one.name: one.numbers["beats_equal_weight"] for one in universes},
            "Each verdict is of its universe alone: among many, some are positive by chance.",
        ),
        sections,
    )
    text = json_text({"universes": numbers, "together": together})
    return {"metrics.json": text, "report.html": page}, _lines(universes, together)


def _together(universes: Sequence[Universe]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Numbers over the agents of all universes: lead over equal weight and probability of improvement; and remarks."""
    count = min(len(one.runs) for one in universes)
    equal = np.array([[one.numbers["baseline_sharpe"] for one in universes]] * count, dtype=np.float64)
    agents = np.array([one.runs[:count] for one in universes]).T
    words: tuple[str, ...] = (
        "Intervals are of a bootstrap over agents within each universe: they cover the variation between seeds, not "
        "that between universes, whose days and often whose stocks are the same.",
    )
    lead = improvement = None
    try:
        lead = interquartile_estimate(agents - equal, seed=0, name="the agents")
        improvement = improvement_estimate(agents, equal, seed=0)
    except EvidenceError as error:
        lead = None
        words = (f"There are no joint figures: {error}.", *words)
    numbers: dict[str, object] = {
        "universes": len(universes),
        "agents_of_a_universe": count,
        "answers_yes": sum(one.numbers["beats_equal_weight"] == "yes" for one in universes),
        DIFFERENCE: _estimate_numbers(lead),
        "improvement": _estimate_numbers(improvement),
    }
    return numbers, words


def _estimate_numbers(found: Estimate | None) -> dict[str, object]:
    if found is None:
        return dict.fromkeys(("value", "low", "high"))
    return {"value": found.value, "low": found.interval.low, "high": found.interval.high}


def _table(numbers: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = (
        ("judged", {name: one["judged"] for name, one in numbers.items()}),
        ("beats equal weight", {name: one["beats_equal_weight"] or "not compared" for name, one in numbers.items()}),
        ("Sharpe", Cell((ROW, "sharpe"))),
        ("of equal weight", Cell((ROW, "baseline_sharpe"))),
        ("difference", Cell((ROW, DIFFERENCE), plus=True, bounds=(ROW, "interval"))),
        ("days", {name: f"{one['start']} to {one['end']}" for name, one in numbers.items()}),
    )
    caption = "Each has a report of its own in its folder."
    return make_table("Universes", "Universe", list(numbers), columns, caption)


def _summary() -> Table:
    def cells(key: str, unit: str, decimals: int) -> tuple[Cell, ...]:
        return tuple(Cell((key, end), unit, decimals) for end in ("value", "low", "high"))

    rows = (
        Row("Sharpe over equal weight, interquartile mean", cells(DIFFERENCE, "", 2)),
        Row("an agent is ahead of equal weight", cells("improvement", "%", 1)),
    )
    return Table("Agents of all universes", ("", "value", "from", "to"), rows)


def _lines(universes: Sequence[Universe], together: Mapping[str, Any]) -> list[str]:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    rows = [("", "Sharpe", "of equal weight", "beats it")]
    for name, one in ((one.name, one.numbers) for one in universes):
        rows.append((name, shown(one["sharpe"]), shown(one["baseline_sharpe"]), one["beats_equal_weight"] or "-"))
    lines = table_lines(rows)
    found = together[DIFFERENCE]
    if found["value"] is not None:
        lines.append(
            f"Sharpe over equal weight, interquartile mean over all agents: {found['value']:.2f} "
            f"({found['low']:.2f} to {found['high']:.2f})"
        )
    return lines
