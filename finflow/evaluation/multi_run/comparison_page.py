"""The page, the numbers and the figure of several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.report.drawing import BLACK, TIMES, Rendered, finish_wealth, line_look, render
from finflow.evaluation.report.json_schemas import ComparedMetric
from finflow.evaluation.report.metric_tables import columns
from finflow.evaluation.report.page import figure_section, verdicts_of_several
from finflow.evaluation.report.results import BASELINE, json_text
from finflow.evaluation.report.section import DASH, Cell, Finding, Row, Section, Table, render_page
from finflow.evaluation.statistics.run_statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["METRICS", "Compared", "Made", "Seeds", "make"]

FloatArray = NDArray[np.float64]

_COLUMNS = {column.key: column for column in columns(0.05)}
#: Metric -> heading, unit, decimals.
METRICS = {
    key: ("CVaR" if key == "cvar" else _COLUMNS[key].heading, _COLUMNS[key].unit, _COLUMNS[key].decimals)
    for key in get_args(ComparedMetric)
    if key in _COLUMNS
}
_DIFFERENCE = ("Sharpe over equal weight", "", 2)


@dataclass(frozen=True, eq=False)
class Compared:
    """One run.

    Attributes
    ----------
    label, judged
        Name of the run, and of the strategy that it judged.
    seed
        Of its training, where it has one.
    answer
        Of its verdict: whether it beats equal weight; None where it was not compared.
    figures : dict
        Of `METRICS`; None where undefined.
    intervals : dict
        Metric -> [low, high] or None.
    against : dict
        ``sharpe_difference``, ``dsr`` and ``spa_p``, against equal weight.
    difference_interval : list or None
    returns : float64 (days,)
    baseline : float64 (days,), or None
        Of equal weight in this run, at its costs.
    """

    label: str
    judged: str
    seed: object
    answer: str | None
    figures: Mapping[str, float | None]
    intervals: Mapping[str, Sequence[float] | None]
    against: Mapping[str, float | None]
    difference_interval: Sequence[float] | None
    returns: FloatArray
    baseline: FloatArray | None


@dataclass(frozen=True)
class Seeds:
    """Runs that differ by the seed alone.

    Attributes
    ----------
    runs, seeds
        Their labels and seeds.
    estimates
        Metric -> interquartile mean over the seeds.
    improvement
        "equal weight", or another group by its place as in "group 2" -> how likely the Sharpe ratio of a seed of this
        one is above it.
    """

    runs: tuple[str, ...]
    seeds: tuple[str, ...]
    estimates: Mapping[str, Estimate]
    improvement: Mapping[str, Estimate]


class Made(NamedTuple):
    """Files by name, and lines for a terminal."""

    files: dict[str, bytes | str]
    lines: list[str]


def make(
    runs: Sequence[Compared],
    groups: Sequence[Seeds],
    differences: Mapping[str, Mapping[str, str]],
    window: Mapping[str, object],
    panel: str,
    dates: NDArray[np.datetime64],
    choice: Section,
) -> Made:
    """Make the report of a comparison.

    Parameters
    ----------
    runs
        Over the same days of the same panel.
    groups
        Of seeds.
    differences
        Configuration key -> run -> value as JSON.
    window
        As `metrics.json` of the runs has it.
    panel
        SHA-256 of the prices.
    dates
        Of the returns.
    choice
        Section on choosing the best of them: `configuration_choice.choice_section`.
    """
    sections = [_runs(runs, differences), _groups(groups), choice, _differences(runs, differences)]
    figure = _equity(runs, dates)
    content: dict[str, object] = {section.key: dict(section.numbers) for section in sections}
    content |= {"window": dict(window), "panel": panel}
    page = render_page(
        f"{len(runs)} runs side by side",
        f"{window['start']} to {window['end']}, {window['days']:,} trading days, all figures net of costs",
        _verdicts(runs),
        [sections[0], figure_section(figure), *sections[1:]],
    )
    pictures = {f"{one.name}.png": one.png for one in (figure, *choice.figures)}
    return Made({**pictures, "metrics.json": json_text(content), "report.html": page}, _lines(runs, groups, choice))


def _verdicts(runs: Sequence[Compared]) -> Finding:
    warning = (
        "Each is of its run alone. Who picks the best of these has tried them all, which its own verdict, reached "
        "before, does not know of: see what is left of it under “Choosing the best of them”."
    )
    return verdicts_of_several({run.label: run.answer for run in runs}, warning)


def _runs(runs: Sequence[Compared], differences: Mapping[str, object]) -> Section:
    numbers = {
        run.label: {
            "judged": run.judged,
            "seed": run.seed,
            "beats_equal_weight": run.answer,
            **run.figures,
            **run.against,
            "intervals": {
                **{name: _ends(run.intervals.get(name)) for name in METRICS},
                "sharpe_difference": _ends(run.difference_interval),
            },
        }
        for run in runs
    }

    def cell(run: Compared, name: str, unit: str = "", decimals: int = 2, plus: bool = False) -> Cell:
        return Cell((run.label, name), unit, decimals, plus=plus, bounds=(run.label, "intervals", name))

    metrics = []
    for run in runs:
        cells = [cell(run, name, unit, decimals) for name, (_, unit, decimals) in METRICS.items()]
        metrics.append(Row(run.label, (run.judged, *cells)))
    against = tuple(
        Row(
            run.label,
            (
                run.answer or "not compared",
                cell(run, "sharpe_difference", plus=True),
                Cell((run.label, "dsr"), decimals=3),
                Cell((run.label, "spa_p"), decimals=3),
            ),
        )
        for run in runs
    )
    tables = (
        Table(
            "Metrics",
            ("Run", "judged", *(heading for heading, _, _ in METRICS.values())),
            tuple(metrics),
            "Below each figure: its bootstrap interval, from the run's report.",
        ),
        Table(
            "Against equal weight",
            ("Run", "beats equal weight", "Sharpe ratio over it", "DSR", "SPA, p"),
            against,
            "Of each run alone, as its own report has it.",
        ),
    )
    conditions = ", ".join(sorted(key for key in differences if key.startswith(("env.", "market."))))
    warning = (
        f"Careful: these runs were not judged under the same conditions; {conditions} differ. Their figures differ by "
        "that too."
    )
    return Section("runs", "Side by side", numbers, tables, words=(warning,) if conditions else ())


def _groups(groups: Sequence[Seeds]) -> Section:
    named = {f"group {position}": group for position, group in enumerate(groups, start=1)}
    if not groups:
        words: tuple[str, ...] = (
            "No two of these runs differ by the seed alone: nothing can be said of the luck of the seed.",
        )
        return Section("seeds", "Seeds taken together", {}, words=words)
    numbers: dict[str, object] = {
        name: {
            "runs": list(group.runs),
            "seeds": list(group.seeds),
            "interquartile_mean": _estimates(group.estimates),
            "probability_of_improvement": _estimates(group.improvement),
        }
        for name, group in named.items()
    }
    shown = {**METRICS, "sharpe_difference": _DIFFERENCE}
    means = tuple(
        Row(
            name,
            (
                ", ".join(group.seeds),
                *(
                    _estimate_cell((name, "interquartile_mean", metric), unit, decimals, group.estimates)
                    for metric, (_, unit, decimals) in shown.items()
                ),
            ),
        )
        for name, group in named.items()
    )
    others = ("equal weight", *named)
    improvement = tuple(
        Row(
            name,
            tuple(
                _estimate_cell((name, "probability_of_improvement", other), "%", 0, group.improvement)
                for other in others
            ),
        )
        for name, group in named.items()
    )
    words = (
        "Runs whose configurations differ by the seed alone: interquartile means over the seeds, each with its 95 % "
        "bootstrap interval, which a few seeds leave too narrow.",
        *(f"{name.capitalize()}: {', '.join(group.runs)}." for name, group in named.items()),
    )
    tables = (
        Table("Interquartile means", ("Runs", "seeds", *(heading for heading, _, _ in shown.values())), means),
        Table(
            "Probability of improvement",
            ("Sharpe ratio of a seed of", *(f"above {other}" for other in others)),
            improvement,
            "Of a seed drawn at random; of the column's too, where it has seeds. A half is no better than a coin.",
        ),
    )
    return Section("seeds", "Seeds taken together", numbers, tables, words=words)


def _estimates(found: Mapping[str, Estimate]) -> dict[str, object]:
    return {
        name: {"value": one.value, "interval": _ends((one.interval.low, one.interval.high))}
        for name, one in found.items()
    }


def _estimate_cell(place: tuple[str, ...], unit: str, decimals: int, known: Mapping[str, Estimate]) -> Cell | str:
    """An estimate with its interval; a dash where there is none."""
    return Cell((*place, "value"), unit, decimals, bounds=(*place, "interval")) if place[-1] in known else DASH


def _differences(runs: Sequence[Compared], differences: Mapping[str, Mapping[str, str]]) -> Section:
    rows = tuple(Row(key, tuple(values[run.label] for run in runs)) for key, values in differences.items())
    numbers: dict[str, object] = {key: dict(values) for key, values in differences.items()}
    if not rows:
        words = ("The configurations are the same in everything that decides results.",)
        return Section("differences", "Differences of configuration", numbers, words=words)
    table = Table("Keys that differ", ("Key", *(run.label for run in runs)), rows)
    return Section("differences", "Differences of configuration", numbers, (table,))


def _equity(runs: Sequence[Compared], dates: NDArray[np.datetime64]) -> Rendered:
    """Wealth of 1 invested in each run, and in equal weight as the first run has it."""
    wealth = {run.label: np.cumprod(1.0 + run.returns) for run in runs}
    base = None if runs[0].baseline is None else np.cumprod(1.0 + runs[0].baseline)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for position, (label, path) in enumerate(wealth.items()):
            colour, dash = line_look(position)
            shown = np.where(path > 0.0, path, np.nan)
            label = f"{label}  {path[-1]:.2f}{TIMES}"
            axes.plot(dates, shown, label=label, linewidth=1.6, color=colour, linestyle=dash)
        if base is not None:
            axes.plot(dates, base, color=BLACK, linestyle="--", label=f"{BASELINE}  {base[-1]:.2f}{TIMES}")
        finish_wealth(figure, axes, dates, [*wealth.values(), *([] if base is None else [base])], columns=3)

    ends = ", ".join(f"{label} {path[-1]:.2f}" for label, path in wealth.items())
    return Rendered(
        "equity",
        "Equity",
        "Value of 1 invested in each run, after costs, and in equal weight as the first run has it.",
        f"Lines on a log scale of the value of 1 invested, after costs. At the end: {ends}.",
        render(draw, 4.2),
    )


def _lines(runs: Sequence[Compared], groups: Sequence[Seeds], choice: Section) -> list[str]:
    def ratio(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}"

    width = max(len(run.label) for run in runs)
    told = [f"{'run'.ljust(width)}  Sharpe  beats equal weight"]
    told += [
        f"{run.label.ljust(width)}  {ratio(run.figures['sharpe']).rjust(6)}  {run.answer or 'not compared'}"
        for run in runs
    ]
    for group in groups:
        found = group.estimates.get("sharpe")
        if found is not None:
            low, high = found.interval.low, found.interval.high
            told.append(
                f"{len(group.seeds)} seeds: interquartile mean of the Sharpe ratio {found.value:.2f} "
                f"(95%: {low:.2f} to {high:.2f})"
            )
    overfitted, best = choice.numbers["overfitting"], choice.numbers["best"]
    if isinstance(overfitted, Mapping):
        told.append(f"choosing the best of them: probability of backtest overfitting {overfitted['pbo']:.0%}")
    if isinstance(best, Mapping):
        told.append(f"{best['name']}, as the best of {len(runs)}, beats equal weight: {best['beats_equal_weight']}")
    return told


def _ends(bounds: Sequence[float] | None) -> dict[str, float | None]:
    known = bounds is not None and all(math.isfinite(bound) for bound in bounds)
    return {"low": float(bounds[0]), "high": float(bounds[1])} if bounds and known else {"low": None, "high": None}
