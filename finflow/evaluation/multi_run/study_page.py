"""The page and the numbers of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from finflow.evaluation.multi_run.study_figures import Searched, Tried, figures_of
from finflow.evaluation.report.drawing import Rendered
from finflow.evaluation.report.page import figure_section
from finflow.evaluation.report.results import json_text
from finflow.evaluation.report.section import Cell, Finding, Row, Section, Table, render_page
from finflow.evaluation.statistics.backtest_overfitting import Overfitting

__all__ = ["NUMBERS", "PAGE", "StudyData", "study_files"]

PAGE, NUMBERS = "report.html", "study.json"
MOST_ROWS = 20  # of the best trials, and of those that failed


@dataclass(frozen=True)
class StudyData:
    """All that the page shows.

    Attributes
    ----------
    title, subtitle
    objective
        Names.
    trials
    space
    importances
        Objective -> key -> share.
    front
        Numbers of the best: one, or those of the front.
    best
        Number of the one that ``best.yaml`` holds; None where there is none.
    tried
        Configurations it was chosen among.
    overfit
        CSCV of that choice.
    without_overfit
        Reason why there is none.
    facts
        Settings and provenance.
    """

    title: str
    subtitle: str
    objective: tuple[str, ...]
    trials: tuple[Tried, ...]
    space: tuple[Searched, ...]
    importances: Mapping[str, Mapping[str, float]]
    front: tuple[int, ...]
    best: int | None
    tried: int
    overfit: Overfitting | None
    without_overfit: str
    facts: Mapping[str, object]


def study_files(data: StudyData) -> dict[str, bytes | str]:
    """The page, its numbers, and its figures, by file name."""
    figures = figures_of(data.trials, data.objective, data.space, data.importances, data.front, data.overfit)
    pictures = {figure.name: figure for figure in figures}
    parts = [
        _best(data),
        *(figure_section(figure) for figure in figures if figure.name != "overfitting"),
        _overfitting(data, pictures.get("overfitting")),
        _failed(data),
        _space(data),
        _facts(data),
    ]
    sections = [part for part in parts if part is not None]
    content: dict[str, object] = {section.key: dict(section.numbers) for section in sections if section.numbers}
    content["trials"] = [_plain(trial, data.objective) for trial in data.trials]
    content["summary"] = _counts(data)
    content["importances"] = {name: dict(shares) for name, shares in data.importances.items()}
    page = render_page(data.title, data.subtitle, _finding(data, content), sections)
    return {**{f"{figure.name}.png": figure.png for figure in figures}, NUMBERS: json_text(content), PAGE: page}


def _counts(data: StudyData) -> dict[str, object]:
    states = [trial.state for trial in data.trials]
    counted: dict[str, object] = {name: states.count(name) for name in ("complete", "pruned", "failed")}
    counted |= {"all": len(states), "tried": data.tried, "best": data.best}
    counted["updates"] = sum(trial.updates or 0 for trial in data.trials)
    return counted


def _finding(data: StudyData, content: Mapping[str, object]) -> Finding:
    """The best trial's values, and the number of trials."""

    def count(name: str) -> Cell:
        return Cell(("summary", name), ",", 0)

    trials: tuple[str | Cell, ...] = (
        *(count("all"), " trials: ", count("complete"), " to their end, ", count("pruned"), " stopped early, "),
        *(count("failed"), " failed; ", count("updates"), " updates."),
    )
    best = next((trial for trial in data.trials if trial.number == data.best), None)
    if best is None or best.values is None:
        return Finding("", "No trial has a value", content, words=(trials,), within=())
    values: list[str | Cell] = []
    for name in data.objective:
        values += [f"{', ' if values else ''}{name} ", Cell(("best", f"trial {best.number}", name), "g", 3)]
    values.append(", on windows that it was chosen by: the best of many looks better there than it is.")
    if data.overfit is not None:
        values += [" The probability that such a choice is overfitted is ", Cell(("overfitting", "pbo"), "%", 0), "."]
    counted = (
        *trials,
        " best.yaml says that it was chosen among ",
        count("tried"),
        " configurations, and the deflated Sharpe ratio of its own report takes account of that.",
    )
    return Finding("", f"Best: trial {best.number}", content, words=(tuple(values), counted), within=())


def _best(data: StudyData) -> Section:
    """The best trials, and the keys of the best."""
    complete = [trial for trial in data.trials if trial.values is not None and trial.state == "complete"]
    shown = sorted(complete, key=lambda trial: trial.values or (), reverse=True)[:MOST_ROWS]
    if len(data.objective) > 1:
        shown = [trial for trial in complete if trial.number in data.front][:MOST_ROWS]
    numbers = {f"trial {trial.number}": _values(trial, data.objective) for trial in complete}
    rows = tuple(
        Row(
            f"trial {trial.number}",
            tuple(Cell((f"trial {trial.number}", name), decimals=3) for name in data.objective),
            marked=trial.number == data.best,
        )
        for trial in shown
    )
    tables = [Table("On the front" if len(data.objective) > 1 else "Best trials", ("Trial", *data.objective), rows)]
    best = next((trial for trial in complete if trial.number == data.best), None)
    if best is not None:
        first = next((trial for trial in complete if trial.number == 0), None)
        lines = tuple(
            Row(one.key, (_said(best.params[one.key]), "" if first is None else _said(first.params[one.key])))
            for one in data.space
        )
        caption = "Trial 0 is the configuration as it was, where the space holds it."
        tables.append(Table("The best trial's keys", ("Key", f"trial {best.number}", "trial 0"), lines, caption))
    return Section("best", "Best trials", numbers, tuple(tables))


def _overfitting(data: StudyData, figure: Rendered | None) -> Section:
    """PBO of the choice."""
    found = data.overfit
    if found is None:
        return Section("overfitting", "Choosing the best of them", {}, words=(data.without_overfit,))
    numbers: dict[str, object] = {
        "pbo": found.pbo,
        "loss": found.loss,
        "slope": found.slope if math.isfinite(found.slope) else None,
        "choices": len(found.logits),
        "blocks": found.blocks,
        "days": found.days,
    }
    words = (
        (
            "Probability of backtest overfitting: ",
            Cell(("pbo",), "%", 1),
            ", by CSCV over ",
            Cell(("choices",), ",", 0),
            " cuts of ",
            Cell(("days",), ",", 0),
            " judged days into ",
            Cell(("blocks",), ",", 0),
            " blocks, for the choice by Sharpe ratio among the trials that came to their end. A choice without skill "
            "comes near 50 %. Trials that were stopped early have no returns and are not among them.",
        ),
        (
            "The chosen trial lost money against cash in ",
            Cell(("loss",), "%", 1),
            " of the other halves.",
        ),
    )
    figures = () if figure is None else (figure,)
    return Section("overfitting", "Choosing the best of them", numbers, figures=figures, words=words)


def _failed(data: StudyData) -> Section | None:
    failed = [trial for trial in data.trials if trial.state == "failed"]
    if not failed:
        return None
    rows = tuple(Row(f"trial {trial.number}", (trial.reason,)) for trial in failed[:MOST_ROWS])
    more = f"The first {MOST_ROWS} of {len(failed)}." if len(failed) > MOST_ROWS else ""
    return Section("failed", "Trials that failed", {}, (Table("Why", ("Trial", "reason"), rows, more),))


def _space(data: StudyData) -> Section:
    rows = tuple(Row(one.key, (one.words,)) for one in data.space)
    return Section("space", "What was searched", {}, (Table("Space", ("Key", "values"), rows),))


def _facts(data: StudyData) -> Section:
    rows = tuple(Row(name, (str(value),)) for name, value in data.facts.items())
    return Section("settings", "Data and settings", {}, (Table("Settings", ("", ""), rows),))


def _values(trial: Tried, objective: Sequence[str]) -> dict[str, float | None]:
    values = trial.values or (math.nan,) * len(objective)
    return {name: float(value) if math.isfinite(value) else None for name, value in zip(objective, values, strict=True)}


def _plain(trial: Tried, objective: Sequence[str]) -> dict[str, object]:
    return {
        "number": trial.number,
        "state": trial.state,
        "values": None if trial.values is None else _values(trial, objective),
        "params": dict(trial.params),
        "course": {str(level): value for level, value in trial.course.items() if math.isfinite(value)},
        "reason": trial.reason or None,
        "updates": trial.updates,
    }


def _said(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
