"""`report.html`: sections of the page of one run, in their order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from finflow.evaluation.analysis.decision_quality import KnownOptimum
from finflow.evaluation.backtest import BASELINE
from finflow.evaluation.page.drawing import Rendered
from finflow.evaluation.page.page_numbers import DASH, THIN, years_unit
from finflow.evaluation.page.section import (
    ROW,
    Cell,
    Row,
    Section,
    Table,
    columns_of,
    figure_section,
    make_table,
    shown_fields,
)
from finflow.evaluation.page.whole_page import Page
from finflow.evaluation.report.answer import PERCENT, finding
from finflow.evaluation.report.results import ReportData, Results
from finflow.evaluation.statistics.backtest_overfitting import overfitting_sentence
from finflow.evaluation.statistics.metrics import Metrics
from finflow.evaluation.statistics.verdict import Verdict
from finflow.market.bar_frequency import bar_name

MOST_EVENTS = 50  # of the guard, on the page
#: Sections that are open, in this order: comparison, risk, reasons, costs; a click unfolds the others.
OPEN = (
    "comparison",
    "optimum",
    "walk_forward",
    "protocol",
    "seeds",
    "stress",
    "out_of_fold",
    "weights",
    "sweeps",
    "limits",
)
FEW = 6  # rows; a longer table in a section that is open has those of the answer, and the others are folded
TRACK_CAPTION = (
    "PSR: confidence that the true Sharpe ratio is above zero. Minimum track record: how long it takes to be "
    f"95{THIN}% confident of that; a dash means never, at this ratio. StepM looks at all strategies together, and "
    "names one wrongly at most once in twenty."
)


def build_page(
    results: Results, figures: Sequence[Rendered] = (), limits: Sequence[str] = (), files: Sequence[str] = ()
) -> Page:
    """Put the page together: ``figures`` in this order, ``limits`` as sentences, and names of the files beside it."""
    data = results.data
    drawn = (*figures, *(figure for section in data.sections for figure in section.figures))
    pictures = [f"{figure.name}.png" for figure in drawn]
    facts = {f"{key[:1].upper()}{key[1:]}".replace("_", " "): _text_of(value) for key, value in data.facts.items()}
    answer = tuple(figure for figure in figures if figure.name == "answer")
    made = [
        _comparison(data),
        _optimum(data.optimum, data.agent.name),
        _evidence(results),
        _intervals(results),
        *(figure_section(figure) for figure in figures if figure not in answer),
        _experts(data),
        *data.sections,
        _guard_events(data.events),
        Section("limits", "What this report cannot show", notes=tuple(limits), short="Limits"),
        _method(data),
        Section("data", "Data and settings", facts=facts),
        Section("files", "Files beside this page", links=("metrics.json", *files, *pictures), short=None),
    ]
    dates, bar = data.agent.dates, bar_name(data.agent.bars_per_year)
    window = f"{data.agent.name}, {dates[0]} to {dates[-1]}, {len(dates):,} {bar}s, all figures net of costs"
    sections = [section for section in made if section is not None]
    few = {data.agent.name, BASELINE, *(run.name for run in data.strategies if run.is_index)}
    opened = [_shortened(section, few) for key in OPEN for section in sections if section.key == key]
    folded = [replace(section, folded=True) for section in sections if section.key not in OPEN]
    return Page(data.title, window, finding(results, answer), [*opened, *folded], results.numbers)


def _shortened(section: Section, few: set[str]) -> Section:
    """The section with the rows of a few strategies; its complete tables are folded."""

    def short(table: Table) -> Table:
        rows = tuple(row for row in table.rows if row.heading in few)
        return replace(table, rows=rows) if rows and len(table.rows) > FEW else table

    tables = section.tables if section.key == "comparison" else tuple(map(short, section.tables))
    return section if tables == section.tables else replace(section, tables=tables, more=section.tables)


def _comparison(data: ReportData) -> Section:
    """Every metric of every strategy, with the interval of the Sharpe ratio."""
    bounds = ("strategies", ROW, "intervals", "sharpe")
    shown = [
        (heading, replace(cell, bounds=bounds) if cell.path[-1] == "sharpe" else cell)
        for heading, cell in columns_of(Metrics, "strategies", ROW)
    ]
    caption = (
        f"Under each Sharpe ratio: its {PERCENT} bootstrap interval. Returns and drawdowns are after "
        "costs; a dash means undefined."
    )
    title = "Comparison of the strategies"
    table = make_table(title, "Strategy", data.names, shown, caption, marked=data.agent.name, heading=False)
    return Section("comparison", "Comparison", tables=(table,))


def _experts(data: ReportData) -> Section | None:
    if not data.experts:
        return None
    judged = data.agent.name
    rows = [(("strategies", judged), judged), *((("experts", run.name), run.name) for run in data.experts)]
    caption = "The agent, and each of its experts alone: the expert's portfolio is the aim, at the agent's trade rate."
    table = make_table("Experts", "Decides", rows, columns_of(Metrics, ROW), caption, marked=judged, heading=False)
    return Section("experts-alone", "Each expert alone", tables=(table,))


def _intervals(results: Results) -> Section:
    data, resampling = results.data, results.data.resampling
    shown = [
        (heading, replace(cell, path=(), bounds=cell.path))
        for heading, cell in columns_of(Metrics, "strategies", ROW, "intervals")
        if cell.path[-1] != "sharpe"
    ]
    caption = (
        f"{PERCENT} percentile intervals of {resampling.samples:,} stationary-bootstrap "
        f"resamples in blocks of {resampling.block_length} {bar_name(data.agent.bars_per_year)}s on average."
    )
    table = make_table("Intervals", "Strategy", data.names, shown, caption, marked=data.agent.name, heading=False)
    return Section("intervals", "Intervals of the other metrics", tables=(table,), short="Intervals")


def verdict_table(verdict: Verdict, bars_per_year: int) -> Table:
    """Table of the tests behind a verdict at the key ``verdict``."""
    least, spa = ("verdict", "least_sharpe_difference"), ("verdict", "spa")
    length = Cell(("verdict", "minimum_track_record"), years_unit(bars_per_year), 1)
    shown = [
        ("Sharpe ratio of the return over equal weight, a year", Cell(("verdict", "active_sharpe"), keep_sign=True)),
        ("PSR of that return, against zero", Cell(("verdict", "psr"), decimals=3)),
        ("DSR, deflated for the tries", Cell(("verdict", "dsr"), decimals=3)),
        ("Tries", Cell(("verdict", "tries", "total"), decimals=0)),
        ("Best Sharpe ratio that luck would show, a year", Cell(("verdict", "expected_maximum"))),
        ("Minimum track record to show a positive return over it, years", length),
    ]
    if verdict.least_sharpe_difference is not None:
        shown += [
            (f"Least Sharpe difference for a yes with a power of 80{THIN}%, a year", Cell((*least, "of_yes"))),
            ("Least Sharpe difference for its interval alone, a year", Cell((*least, "of_interval"))),
            ("Standard error of the Sharpe difference, a year", Cell((*least, "standard_error"), decimals=3)),
        ]
    if verdict.spa is not None:
        shown += [
            (f"SPA, p ({kind})", Cell((*spa, f"p_{kind}"), decimals=3)) for kind in ("consistent", "lower", "upper")
        ]
    rows = tuple(Row(heading, (cell,)) for heading, cell in shown)
    return Table("Tests against equal weight", ("Test", "Value"), rows, heading=False)


def _evidence(results: Results) -> Section:
    data, names, years = results.data, results.data.names, years_unit(results.data.agent.bars_per_year)
    superior = (results.numbers["stepm"] or {}).get("superior")
    better = {name: DASH if superior is None else "yes" if name in superior else "not shown" for name in names}
    columns_shown = (
        ("PSR against cash", Cell(("strategies", ROW, "psr"), decimals=3)),
        ("Minimum track record, years", Cell(("strategies", ROW, "minimum_track_record"), years, 1)),
        ("Better than equal weight (StepM)", {**better, BASELINE: DASH}),
    )
    tables = [make_table("Track records", "Strategy", names, columns_shown, TRACK_CAPTION, heading=False)]
    if results.verdict is not None:
        tables.insert(0, verdict_table(results.verdict, data.agent.bars_per_year))
    choice = overfitting_sentence(len(names), "strategies", "this window")
    return Section("evidence", "Tests", tables=tuple(tables), notes=() if results.overfitting is None else (choice,))


def _optimum(known: KnownOptimum | None, judged: str) -> Section | None:
    if known is None:
        return None
    columns_shown = (
        ("Score", Cell(("scores", ROW, "score"), decimals=3, error=("scores", ROW, "standard_error"))),
        ("Log growth a bar", Cell(("scores", ROW, "utility"), "%", 4)),
    )
    scored = math.isfinite(next(iter(known.scores.values())).score)
    nothing = "" if scored else " Here the optimum is not measurably better: there is no score."
    notes = (
        f"1 is the optimum, 0 is {known.window.baseline_name}, the better of equal weight and holding; ± is a standard "
        f"error. Growth is the expected log growth of the weights held under the price process, net of costs.{nothing}",
        (f"The best policy: {known.method}. In the long run it grows by ", Cell(("utility",), "%", 4), " a bar."),
        f"Its targets for an account in equal weights: {_text_of(known.policy)}.",
        f"Parameters of the price process, per bar: {_text_of(known.parameters)}.",
    )
    table = make_table("Scores", "Strategy", list(known.scores), columns_shown, marked=judged, heading=False)
    return Section("optimum", "Nearness to the optimum", vars(known), (table,), notes=notes)


def _guard_events(events: Sequence[Mapping[str, object]] | None) -> Section | None:
    if not events:
        return None
    counts = Counter(event.get("level") for event in events)
    rollbacks = sum(event.get("signal") == "rollback" for event in events)
    text = f"{counts['alarm']} alarms, {counts['warning']} warnings, {counts['info']} notes; {rollbacks} rollbacks."
    rows = tuple(
        Row(str(event.get("update")), tuple(str(event.get(name)) for name in ("phase", "level", "message")))
        for event in events[-MOST_EVENTS:]
    )
    heads = ("Update", "Phase", "Level", "Event")
    table = Table("Guard events", heads, rows, f"The last {len(rows)} of {len(events)}.", heading=False)
    return Section("guard", "Guard events", tables=(table,), words=(text,))


def _method(data: ReportData) -> Section:
    bar, resampling = bar_name(data.agent.bars_per_year), data.resampling
    bootstrap = (
        f"Intervals: stationary bootstrap, {resampling.samples:,} resamples, mean block {resampling.block_length} "
        f"{bar}s, seed {resampling.seed}. The difference against equal weight is paired: both are resampled on the "
        f"same {bar}s."
    )
    meanings = (f"{form.heading}: {meaning}" for form, meaning in shown_fields(Metrics).values())
    level = f"cvar_alpha is {data.cvar_alpha * 100:g}{THIN}%."
    return Section("method", "How the numbers are computed", notes=(*meanings, level, bootstrap), short="Method")


def _text_of(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: DASH, True: "yes", False: "no"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{str(key).replace('_', ' ')}: {_text_of(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text_of, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
