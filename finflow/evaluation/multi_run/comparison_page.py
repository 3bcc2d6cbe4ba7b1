"""Pages of several runs side by side: over the same days of one panel, or of one job in several universes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from finflow.arrays import DateArray, FloatArray
from finflow.errors import EvidenceError
from finflow.evaluation.backtest import BASELINE
from finflow.evaluation.page.drawing import wealth_figure
from finflow.evaluation.page.page_numbers import DASH, agreeing_decimals
from finflow.evaluation.page.section import ROW, Cell, Row, Section, Table, columns_of, figure_section, make_table
from finflow.evaluation.page.whole_page import Headline, Page
from finflow.evaluation.statistics.bootstrap import DIFFERENCE, Estimate, improvement_estimate, interquartile_estimate
from finflow.evaluation.statistics.metrics import Metrics

METRICS = ("sharpe", "annual_return", "annual_volatility", "max_drawdown", "cvar", "annual_turnover", "annual_cost")
_OVER = "Sharpe over equal weight"


@dataclass(frozen=True)
class Seeds:
    """Runs whose configurations differ by the seed alone.

    Interquartile means over the seeds are by metric, those that a run lacks left out; probabilities of improvement, of
    the Sharpe ratio of a seed, by other group or equal weight.
    """

    runs: tuple[str, ...]
    seeds: tuple[str, ...]
    interquartile_mean: Mapping[str, Estimate]
    probability_of_improvement: Mapping[str, Estimate]


def run_numbers(metrics: Mapping[str, Any], seed: object = None) -> dict[str, Any]:
    """Numbers of a run beside others, from its ``metrics.json`` and the seed of its training, where it has one."""
    judged, against = metrics["strategies"][metrics["agent"]], metrics["against_equal_weight"]
    verdict = metrics.get("verdict") or {}
    bounds = {**{name: judged.get("intervals", {}).get(name) for name in METRICS}, DIFFERENCE: against["interval"]}
    return {
        "judged": str(metrics["agent"]),
        "seed": seed,
        "beats_equal_weight": verdict.get("beats_equal_weight"),
        **{name: judged.get(name) for name in METRICS},
        DIFFERENCE: against[DIFFERENCE],
        "dsr": verdict.get("dsr"),
        "spa_p": (verdict.get("spa") or {}).get("p_consistent"),
        "intervals": {
            name: dict(zip(("low", "high"), found or (None, None), strict=True)) for name, found in bounds.items()
        },
    }


ANSWERS = {
    "yes": "beats equal weight",
    "no": "is worse than equal weight",
    "not shown": "not shown to beat equal weight",
}


def verdicts_of_several(answers: Mapping[str, str | None], warning: str) -> Headline:
    """Verdicts of several runs (None: not compared), with a warning about reading them together."""
    reasons = tuple(
        f"{name}: {ANSWERS.get(str(answer), 'not compared with equal weight')}" for name, answer in answers.items()
    )
    return Headline("", "Verdicts", label="Verdicts", reasons=reasons, notes=(warning,))


def comparison_page(
    runs: Mapping[str, Mapping[str, Any]],
    returns: Mapping[str, FloatArray],
    groups: Mapping[str, Seeds],
    differences: Mapping[str, Mapping[str, str]],
    choice: Section,
    dates: DateArray,
    facts: Mapping[str, Any],
) -> Page:
    """Page of runs over the same days of the same panel, by label.

    ``runs`` are of `run_numbers`; ``returns`` have equal weight's too, where there is one; ``differences`` are by
    configuration key and run, as JSON; ``facts`` are the ``window`` as `metrics.json` of the runs has it, and the
    ``panel``, the SHA-256 of the prices.
    """
    figure = wealth_figure(
        "equity",
        "Equity",
        "Value of 1 invested in each run, after costs, and in equal weight as the first run has it.",
        dates,
        {label: np.cumprod(1.0 + path) for label, path in returns.items()},
    )
    window = facts["window"]
    return Page(
        f"{len(runs)} runs side by side",
        f"{window['start']} to {window['end']}, {window['days']:,} bars, all figures net of costs",
        verdicts_of_several(
            {label: run["beats_equal_weight"] for label, run in runs.items()},
            "Each is of its run alone, and does not account for a choice among these runs: for the best of them, see "
            "“Choosing the best of them”.",
        ),
        [_runs(runs, differences), figure_section(figure), _groups(groups), choice, _differences(differences)],
        facts,
    )


def _runs(runs: Mapping[str, Mapping[str, Any]], differences: Mapping[str, object]) -> Section:
    def bounded(heading: str, cell: Cell) -> tuple[str, Cell]:
        return heading, replace(cell, bounds=(ROW, "intervals", cell.path[-1]))

    metrics = [bounded(*column) for column in columns_of(Metrics, ROW, names=METRICS)]
    against = (
        ("judged", Cell((ROW, "judged"))),
        ("beats equal weight", Cell((ROW, "beats_equal_weight"))),
        bounded("Sharpe ratio over it", Cell((ROW, DIFFERENCE), plus=True)),
        ("DSR", Cell((ROW, "dsr"), decimals=3)),
        ("SPA, p", Cell((ROW, "spa_p"), decimals=3)),
    )
    below = "Below each figure: its bootstrap interval, from the run's report."
    tables = (
        make_table("Metrics", "Run", runs, metrics, below),
        make_table("Against equal weight", "Run", runs, against, "Of each run alone, as its own report has it."),
    )
    conditions = ", ".join(sorted(key for key in differences if key.startswith(("env.", "market."))))
    warning = (
        f"Caution: these runs were not judged under the same conditions; {conditions} differ, which affects "
        "their figures."
    )
    return Section("runs", "Side by side", runs, tables, words=(warning,) if conditions else ())


def _groups(groups: Mapping[str, Seeds]) -> Section:
    if not groups:
        alone = ("No two of these runs differ by the seed alone: the effect of the seed cannot be estimated.",)
        return Section("seeds", "Seeds taken together", {}, words=alone)

    def column(kind: str, key: str, unit: str, decimals: int) -> Mapping[str, Cell | str]:
        """An estimate of each group with its interval; a dash where there is none."""
        return {
            name: Cell((name, kind, key, "value"), unit, decimals, bounds=(name, kind, key, "interval"))
            if key in getattr(group, kind)
            else DASH
            for name, group in groups.items()
        }

    shown = [*columns_of(Metrics, names=METRICS), (_OVER, Cell((DIFFERENCE,)))]
    means = [(name, column("interquartile_mean", cell.path[0], cell.unit, cell.decimals)) for name, cell in shown]
    improvement = [
        (f"above {other}", column("probability_of_improvement", other, "%", 0)) for other in ("equal weight", *groups)
    ]
    tables = (
        make_table("Interquartile means", "Runs", groups, means),
        make_table(
            "Probability of improvement",
            "Sharpe ratio of a seed of",
            groups,
            improvement,
            "Of a seed drawn at random; of the column's too, where it has seeds. A half is chance.",
        ),
    )
    words = (
        "Runs whose configurations differ by the seed alone: interquartile means over the seeds, each with its 95 % "
        "bootstrap interval, which a few seeds leave too narrow.",
        *(f"{name.capitalize()}, seeds {', '.join(of.seeds)}: {', '.join(of.runs)}." for name, of in groups.items()),
    )
    numbers = {name: asdict(group) for name, group in groups.items()}
    return Section("seeds", "Seeds taken together", numbers, tables, words=words)


def _differences(differences: Mapping[str, Mapping[str, str]]) -> Section:
    title = "Differences of configuration"
    if not differences:
        words = ("The configurations are the same in everything that decides results.",)
        return Section("differences", title, {}, words=words)
    columns = [(run, Cell((ROW, run))) for run in next(iter(differences.values()))]
    return Section("differences", title, differences, (make_table("Keys that differ", "Key", differences, columns),))


def universes_page(reports: Mapping[str, Mapping[str, Any]]) -> Page:
    """Page of one job in several universes, from the ``metrics.json`` of each."""
    numbers: dict[str, dict[str, Any]] = {}
    runs: list[list[float]] = []
    for universe, content in reports.items():
        found = run_numbers(content)
        alone = content.get("seeds", {}).get("agents") or content.get("protocol", {}).get("paths") or {"": found}
        numbers[universe] = {
            **{key: found[key] for key in ("judged", "beats_equal_weight", "sharpe", DIFFERENCE)},
            "baseline_sharpe": content["strategies"].get(BASELINE, {}).get("sharpe"),
            "interval": found["intervals"][DIFFERENCE],
            "agents": len(alone),
            **content["window"],
        }
        runs.append([math.nan if one["sharpe"] is None else one["sharpe"] for one in alone.values()])
    pairs = [(one["sharpe"], one["baseline_sharpe"]) for one in numbers.values()]
    places = max((agreeing_decimals(*pair) for pair in pairs if None not in pair), default=2)
    columns = (
        ("judged", Cell((ROW, "judged"))),
        ("beats equal weight", Cell((ROW, "beats_equal_weight"))),
        ("Sharpe", Cell((ROW, "sharpe"), decimals=places)),
        ("of equal weight", Cell((ROW, "baseline_sharpe"), decimals=places)),
        ("difference", Cell((ROW, DIFFERENCE), decimals=places, plus=True, bounds=(ROW, "interval"))),
        ("days", {name: f"{one['start']} to {one['end']}" for name, one in numbers.items()}),
    )
    table = make_table("Universes", "Universe", numbers, columns, "Each has a report of its own in its folder.")
    return Page(
        f"{len(numbers)} universes",
        "The same job in each of them, all figures net of costs",
        verdicts_of_several(
            {name: one["beats_equal_weight"] for name, one in numbers.items()},
            "Each verdict is of its universe alone: among many, some are positive by chance.",
        ),
        [_together(list(numbers.values()), runs), Section("universes", "Each universe", numbers, (table,))],
    )


def _together(universes: Sequence[Mapping[str, Any]], runs: Sequence[Sequence[float]]) -> Section:
    """Lead over equal weight and probability of improvement over the agents of all universes.

    ``runs`` has the Sharpe ratio of each universe's agents, or paths of a protocol, alone.
    """
    count, ends = min(map(len, runs)), ("value", "low", "high")
    equal = np.array([[one["baseline_sharpe"] for one in universes]] * count, dtype=np.float64)
    agents = np.array([one[:count] for one in runs]).T
    words: tuple[str, ...] = (
        "Intervals are of a bootstrap over agents within each universe: they cover the variation between seeds, not "
        "that between universes, whose days and often whose stocks are the same.",
    )
    lead = improvement = Estimate(math.nan)
    try:
        lead, improvement = (
            interquartile_estimate(agents - equal, seed=0, name="the agents"),
            improvement_estimate(agents, equal, seed=0),
        )
    except EvidenceError as error:
        words = (f"There are no joint figures: {error}.", *words)
    numbers: dict[str, object] = {
        "universes": len(universes),
        "agents_of_a_universe": count,
        "answers_yes": sum(one["beats_equal_weight"] == "yes" for one in universes),
        DIFFERENCE: lead.numbers(*ends),
        "improvement": improvement.numbers(*ends),
    }
    rows = (
        Row(f"{_OVER}, interquartile mean", tuple(Cell((DIFFERENCE, end)) for end in ends)),
        Row("an agent is ahead of equal weight", tuple(Cell(("improvement", end), "%", 1) for end in ends)),
    )
    table = Table("Agents of all universes", ("", "value", "from", "to"), rows)
    return Section("together", "All universes together", numbers, (table,), words=words)
