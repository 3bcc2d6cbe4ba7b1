"""The page, the numbers and the figure of several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.backtest import BASELINE
from finflow.evaluation.page.drawing import BLACK, Rendered, draw_wealth, line_style, render
from finflow.evaluation.page.page_numbers import DASH, json_text
from finflow.evaluation.page.section import ROW, Cell, Section, make_table, render_page
from finflow.evaluation.report.metric_tables import columns
from finflow.evaluation.report.report_page import figure_section, verdicts_of_several
from finflow.evaluation.statistics.run_statistics import Estimate
from finflow.text_table import table_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

_COLUMNS = {column.key: column for column in columns(0.05)}
_SHOWN = ("sharpe", "annual_return", "annual_volatility", "max_drawdown", "cvar", "annual_turnover", "annual_cost")
#: Metric -> heading, unit, decimals.
METRICS = {
    key: ("CVaR" if key == "cvar" else _COLUMNS[key].heading, _COLUMNS[key].unit, _COLUMNS[key].decimals)
    for key in _SHOWN
}
_DIFFERENCE = ("Sharpe over equal weight", "", 2)


@dataclass(frozen=True, eq=False)
class Compared:
    """One run: its label, and the daily returns of what it judged and of equal weight at its costs (None without one).

    ``numbers`` are its metrics and their ``intervals``, verdict (``beats_equal_weight``, ``dsr``, ``spa_p``),
    ``judged`` strategy and ``seed``.
    """

    label: str
    numbers: Mapping[str, Any]
    returns: FloatArray
    baseline: FloatArray | None

    @classmethod
    def of(
        cls, label: str, metrics: Mapping[str, Any], seed: object, returns: FloatArray, baseline: FloatArray | None
    ) -> Compared:
        """From the ``metrics.json`` of its report, the seed of its training, where it has one, and returns."""
        judged, against = metrics["strategies"][metrics["agent"]], metrics["against_equal_weight"]
        verdict = metrics.get("verdict") or {}
        bounds = {name: judged.get("intervals", {}).get(name) for name in METRICS}
        numbers = {
            "judged": str(metrics["agent"]),
            "seed": seed,
            "beats_equal_weight": verdict.get("beats_equal_weight"),
            **{name: judged.get(name) for name in METRICS},
            "sharpe_difference": against["sharpe_difference"],
            "dsr": verdict.get("dsr"),
            "spa_p": (verdict.get("spa") or {}).get("p_consistent"),
            "intervals": {
                name: dict(zip(("low", "high"), found or (None, None), strict=True))
                for name, found in {**bounds, "sharpe_difference": against["interval"]}.items()
            },
        }
        return cls(label, numbers, returns, baseline)


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


def make(
    runs: Sequence[Compared],
    groups: Sequence[Seeds],
    differences: Mapping[str, Mapping[str, str]],
    window: Mapping[str, object],
    panel: str,
    dates: NDArray[np.datetime64],
    choice: Section,
) -> tuple[dict[str, bytes | str], list[str]]:
    """Files by name of a comparison of runs over the same days of the same panel, and lines for a terminal.

    ``differences`` are by configuration key and run, as JSON; ``window`` is as `metrics.json` of the runs has it,
    ``panel`` the SHA-256 of the prices, and ``choice`` of `configuration_choice.choice_section`.
    """
    sections = [_runs(runs, differences), _groups(groups), choice, _differences(runs, differences)]
    figure = _equity(runs, dates)
    content: dict[str, object] = {section.key: section.numbers for section in sections}
    content |= {"window": dict(window), "panel": panel}
    page = render_page(
        f"{len(runs)} runs side by side",
        f"{window['start']} to {window['end']}, {window['days']:,} trading days, all figures net of costs",
        verdicts_of_several(
            {run.label: run.numbers["beats_equal_weight"] for run in runs},
            "Each is of its run alone, and does not account for a choice among these runs: for the best of them, see "
            "“Choosing the best of them”.",
        ),
        [sections[0], figure_section(figure), *sections[1:]],
    )
    pictures = {f"{one.name}.png": one.png for one in (figure, *choice.figures)}
    files: dict[str, bytes | str] = {**pictures, "metrics.json": json_text(content), "report.html": page}
    return files, _lines(runs, groups, choice)


def _runs(runs: Sequence[Compared], differences: Mapping[str, object]) -> Section:
    numbers = {run.label: run.numbers for run in runs}

    def cell(name: str, unit: str = "", decimals: int = 2, plus: bool = False) -> Cell:
        return Cell((ROW, name), unit, decimals, plus=plus, bounds=(ROW, "intervals", name))

    tables = (
        make_table(
            "Metrics",
            "Run",
            list(numbers),
            (
                ("judged", {run.label: run.numbers["judged"] for run in runs}),
                *((heading, cell(name, unit, digits)) for name, (heading, unit, digits) in METRICS.items()),
            ),
            "Below each figure: its bootstrap interval, from the run's report.",
        ),
        make_table(
            "Against equal weight",
            "Run",
            list(numbers),
            (
                (
                    "beats equal weight",
                    {run.label: run.numbers["beats_equal_weight"] or "not compared" for run in runs},
                ),
                ("Sharpe ratio over it", cell("sharpe_difference", plus=True)),
                ("DSR", Cell((ROW, "dsr"), decimals=3)),
                ("SPA, p", Cell((ROW, "spa_p"), decimals=3)),
            ),
            "Of each run alone, as its own report has it.",
        ),
    )
    conditions = ", ".join(sorted(key for key in differences if key.startswith(("env.", "market."))))
    warning = (
        f"Caution: these runs were not judged under the same conditions; {conditions} differ, which affects "
        "their figures."
    )
    return Section("runs", "Side by side", numbers, tables, words=(warning,) if conditions else ())


def _groups(groups: Sequence[Seeds]) -> Section:
    named = {f"group {position}": group for position, group in enumerate(groups, start=1)}
    if not groups:
        words: tuple[str, ...] = (
            "No two of these runs differ by the seed alone: the effect of the seed cannot be estimated.",
        )
        return Section("seeds", "Seeds taken together", {}, words=words)
    means, improvement = "interquartile_mean", "probability_of_improvement"

    def column(key: str, estimate: str, unit: str, decimals: int) -> Mapping[str, Cell | str]:
        """An estimate of each group with its interval; a dash where there is none."""
        cells = {
            name: Cell((name, key, estimate, "value"), unit, decimals, bounds=(name, key, estimate, "interval"))
            for name in named
        }
        return {name: cell if estimate in getattr(named[name], key) else DASH for name, cell in cells.items()}

    shown = {**METRICS, "sharpe_difference": _DIFFERENCE}
    words = (
        "Runs whose configurations differ by the seed alone: interquartile means over the seeds, each with its 95 % "
        "bootstrap interval, which a few seeds leave too narrow.",
        *(f"{name.capitalize()}: {', '.join(group.runs)}." for name, group in named.items()),
    )
    tables = (
        make_table(
            "Interquartile means",
            "Runs",
            list(named),
            [
                ("seeds", {name: ", ".join(group.seeds) for name, group in named.items()}),
                *((heading, column(means, metric, unit, digits)) for metric, (heading, unit, digits) in shown.items()),
            ],
        ),
        make_table(
            "Probability of improvement",
            "Sharpe ratio of a seed of",
            list(named),
            [(f"above {other}", column(improvement, other, "%", 0)) for other in ("equal weight", *named)],
            "Of a seed drawn at random; of the column's too, where it has seeds. A half is chance.",
        ),
    )
    return Section("seeds", "Seeds taken together", named, tables, words=words)


def _differences(runs: Sequence[Compared], differences: Mapping[str, Mapping[str, str]]) -> Section:
    title = "Differences of configuration"
    if not differences:
        words = ("The configurations are the same in everything that decides results.",)
        return Section("differences", title, {}, words=words)
    columns = [(run.label, {key: values[run.label] for key, values in differences.items()}) for run in runs]
    table = make_table("Keys that differ", "Key", list(differences), columns)
    return Section("differences", title, differences, (table,))


def _equity(runs: Sequence[Compared], dates: NDArray[np.datetime64]) -> Rendered:
    paths = {run.label: np.cumprod(1.0 + run.returns) for run in runs}
    ends = ", ".join(f"{label} {path[-1]:.2f}" for label, path in paths.items())
    styles = {label: {**line_style(position), "linewidth": 1.6} for position, label in enumerate(paths)}
    if runs[0].baseline is not None:
        paths[BASELINE] = np.cumprod(1.0 + runs[0].baseline)
        styles[BASELINE] = {"color": BLACK, "linestyle": "--"}

    def draw(figure: Figure) -> None:
        draw_wealth(figure, dates, paths, styles, columns=3)

    return Rendered(
        "equity",
        "Equity",
        "Value of 1 invested in each run, after costs, and in equal weight as the first run has it.",
        f"Lines on a log scale of the value of 1 invested, after costs. At the end: {ends}.",
        render(draw, 4.2),
    )


def _lines(runs: Sequence[Compared], groups: Sequence[Seeds], choice: Section) -> list[str]:
    rows = [("run", "Sharpe", "beats equal weight")]
    for run in runs:
        sharpe = run.numbers["sharpe"]
        rows.append(
            (run.label, "-" if sharpe is None else f"{sharpe:.2f}", run.numbers["beats_equal_weight"] or "not compared")
        )
    lines = table_lines(rows)
    for group in groups:
        found = group.interquartile_mean.get("sharpe")
        if found is not None:
            low, high = found.interval.low, found.interval.high
            lines.append(
                f"{len(group.seeds)} seeds: interquartile mean of the Sharpe ratio {found.value:.2f} "
                f"(95%: {low:.2f} to {high:.2f})"
            )
    overfitted, best = choice.numbers["overfitting"], choice.numbers["best"]
    if isinstance(overfitted, Mapping):
        lines.append(f"choosing the best of them: probability of backtest overfitting {overfitted['pbo']:.0%}")
    if isinstance(best, Mapping):
        lines.append(f"{best['name']}, as the best of {len(runs)}, beats equal weight: {best['beats_equal_weight']}")
    return lines
