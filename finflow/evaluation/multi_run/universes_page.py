"""The page and the numbers of one job in several universes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from finflow.errors import EvidenceError
from finflow.evaluation.backtest import BASELINE
from finflow.evaluation.page.page_numbers import json_text
from finflow.evaluation.page.section import ROW, Cell, Row, Section, Table, make_table, render_page
from finflow.evaluation.report.report_page import verdicts_of_several
from finflow.evaluation.statistics.run_statistics import (
    DIFFERENCE,
    Estimate,
    improvement_estimate,
    interquartile_estimate,
)
from finflow.text_table import table_lines


def make(reports: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, bytes | str], list[str]]:
    """Files by name of the report of all universes, from the ``metrics.json`` of each, and lines for a terminal."""
    numbers: dict[str, dict[str, Any]] = {}
    runs: list[list[float]] = []
    for universe, content in reports.items():
        strategies, against = content["strategies"], content["against_equal_weight"]
        judged = strategies[content["agent"]]
        alone = content.get("seeds", {}).get("agents") or content.get("protocol", {}).get("paths") or {"": judged}
        numbers[universe] = {
            "judged": content["agent"],
            "beats_equal_weight": (content.get("verdict") or {}).get("beats_equal_weight"),
            "sharpe": judged["sharpe"],
            "baseline_sharpe": strategies.get(BASELINE, {}).get("sharpe"),
            DIFFERENCE: against["sharpe_difference"],
            "interval": dict(zip(("low", "high"), against["interval"] or (None, None), strict=True)),
            "agents": len(alone),
            **content["window"],
        }
        runs.append([math.nan if one["sharpe"] is None else one["sharpe"] for one in alone.values()])
    together, words = _together(list(numbers.values()), runs)
    sections = (
        Section("together", "All universes together", together, (_summary(),), words=words),
        Section("universes", "Each universe", numbers, (_table(numbers),)),
    )
    page = render_page(
        f"{len(numbers)} universes",
        "The same job in each of them, all figures net of costs",
        verdicts_of_several(
            {name: one["beats_equal_weight"] for name, one in numbers.items()},
            "Each verdict is of its universe alone: among many, some are positive by chance.",
        ),
        sections,
    )
    text = json_text({"universes": numbers, "together": together})
    return {"metrics.json": text, "report.html": page}, _lines(numbers, together)


def _together(
    universes: Sequence[Mapping[str, Any]], runs: Sequence[Sequence[float]]
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Numbers over the agents of all universes: lead over equal weight and probability of improvement; and remarks.

    ``runs`` has the Sharpe ratio of each universe's agents, or paths of a protocol, alone.
    """
    count = min(map(len, runs))
    equal = np.array([[one["baseline_sharpe"] for one in universes]] * count, dtype=np.float64)
    agents = np.array([one[:count] for one in runs]).T
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
        "answers_yes": sum(one["beats_equal_weight"] == "yes" for one in universes),
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


def _lines(numbers: Mapping[str, Mapping[str, Any]], together: Mapping[str, Any]) -> list[str]:
    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    rows = [("", "Sharpe", "of equal weight", "beats it")]
    for name, one in numbers.items():
        rows.append((name, shown(one["sharpe"]), shown(one["baseline_sharpe"]), one["beats_equal_weight"] or "-"))
    lines = table_lines(rows)
    found = together[DIFFERENCE]
    if found["value"] is not None:
        lines.append(
            f"Sharpe over equal weight, interquartile mean over all agents: {found['value']:.2f} "
            f"({found['low']:.2f} to {found['high']:.2f})"
        )
    return lines
