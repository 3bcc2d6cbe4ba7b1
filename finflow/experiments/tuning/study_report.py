"""The report of a study: its page, its numbers, and the probability that its choice is overfitted."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.importance import get_param_importances
from optuna.trial import FrozenTrial, TrialState

from finflow.config import Config
from finflow.errors import EvidenceError
from finflow.evaluation.page.drawing import Rendered
from finflow.evaluation.page.page_numbers import json_text
from finflow.evaluation.page.section import ROW, Cell, Headline, Section, make_table, render_page
from finflow.evaluation.statistics.backtest_overfitting import Overfitting, overfitting, overfitting_histogram
from finflow.experiments.tuning.study import describe_values, space_of
from finflow.experiments.tuning.study_figures import draw_figures, importance_evaluator, study_of
from finflow.experiments.tuning.study_results import ATTRIBUTES, best_trial, count_tried, decode_returns, front
from finflow.experiments.tuning.trial_store import LOST
from finflow.experiments.tuning.trial_training import TrialContext
from finflow.files import write_together
from finflow.provenance import code_hash

REPORTS = "reports"
PAGE, NUMBERS, RETURNS = "report.html", "study.json", "returns.npz"
FEWEST = 4  # finished trials for importances
MOST_ROWS = 20  # of the best trials, and of those that failed
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True)
class StudyData:
    """All that the page shows."""

    title: str
    subtitle: str
    objective: tuple[str, ...]
    trials: tuple[FrozenTrial, ...]
    space: Mapping[str, BaseDistribution]
    tried: int
    facts: Mapping[str, str]

    @cached_property
    def complete(self) -> tuple[FrozenTrial, ...]:
        return tuple(trial for trial in self.trials if trial.state == TrialState.COMPLETE)

    @cached_property
    def best(self) -> FrozenTrial | None:
        """The one that ``best.yaml`` holds; None where there is none."""
        return best_trial(self.trials)

    @cached_property
    def importances(self) -> dict[str, dict[str, float]]:
        """FANOVA, objective -> key -> share; none where trials are too few or all alike."""
        importances: dict[str, dict[str, float]] = {}
        if len(self.complete) < FEWEST:
            return importances
        study = study_of(self.complete, len(self.objective))
        for place, name in enumerate(self.objective):
            if len({trial.values[place] for trial in self.complete}) < 2:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shares = get_param_importances(
                    study,
                    evaluator=importance_evaluator(),
                    target=lambda trial, place=place: trial.values[place],  # type: ignore[misc]
                )
            importances[name] = {key: float(share) for key, share in shares.items()}
        return importances


def report_study(config: Config, context: TrialContext, folder: Path, name: str, trials: Sequence[FrozenTrial]) -> Path:
    """Write the report into the study's folder: the page, its numbers and figures, and the trials' returns."""
    first, last = context.folds[0].tests[0], context.folds[-1].tests[-1]
    data = StudyData(
        title=f"Search for {' and '.join(config.tune.objective)}: {name}",
        subtitle=f"{len(trials)} trials, evaluated from {context.panel.dates[first.start]} to "
        f"{context.panel.dates[last.stop - 1]}, before the test window, net of costs",
        objective=config.tune.objective,
        trials=tuple(sorted(trials, key=lambda trial: trial.number)),
        space=space_of(config),
        tried=count_tried(config, trials),
        facts=_facts(config, context),
    )
    files: dict[Path, bytes | str] = {folder / REPORTS / name: text for name, text in study_files(data).items()}
    write_together(files)
    return folder / REPORTS / PAGE


def study_files(data: StudyData) -> dict[str, bytes | str]:
    """The page, its numbers, its figures and the trials' returns, by file name."""
    returns = returns_of(data.trials)
    overfit, without = _overfitting(returns)
    figures = draw_figures(data.trials, data.objective, list(data.space), data.importances)
    shown: list[Rendered] = []
    if overfit is not None:
        shown.append(overfitting_histogram(overfit, len(data.complete), "trials", over="the evaluated windows"))
    space = {key: describe_values(values) for key, values in data.space.items()}
    parts = [
        _best(data),
        *(
            Section(group[0].name, title, {}, figures=group)
            for title, group in ((one, tuple(few)) for one, few in groupby(figures, key=lambda figure: figure.title))
        ),
        _choice(overfit, without, shown),
        _failed(data),
        Section("space", "Search space", {}, (make_table("Space", "Key", list(space), [("values", space)]),)),
        Section(
            "settings",
            "Data and settings",
            {},
            (make_table("Settings", "", list(data.facts), [("", data.facts)]),),
        ),
    ]
    sections = [part for part in parts if part is not None]
    content: dict[str, object] = {section.key: section.numbers for section in sections if section.numbers}
    content["trials"] = [_trial_numbers(trial, data.objective) for trial in data.trials]
    content["summary"] = _counts(data)
    content["importances"] = data.importances
    page = render_page(data.title, data.subtitle, _finding(data, content, overfit), sections)
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        trials=np.array(list(returns), dtype=np.int64),
        excess=np.stack(list(returns.values()), axis=1) if returns else np.zeros((0, 0)),
    )
    pictures = {f"{figure.name}.png": figure.png for figure in (*figures, *shown)}
    return {**pictures, NUMBERS: json_text(content), RETURNS: buffer.getvalue(), PAGE: page}


def returns_of(trials: Sequence[FrozenTrial]) -> dict[int, NDArray[np.float64]]:
    """Trial -> daily returns in excess of cash over the evaluated windows, of trials that came to their end."""
    return {
        trial.number: decode_returns(trial.user_attrs[ATTRIBUTES.excess])
        for trial in sorted(trials, key=lambda trial: trial.number)
        if trial.state == TrialState.COMPLETE and ATTRIBUTES.excess in trial.user_attrs
    }


def _overfitting(returns: dict[int, NDArray[np.float64]]) -> tuple[Overfitting | None, str]:
    if len(returns) < 2:
        return None, "There is no choice to evaluate: fewer than two trials completed."
    try:
        return overfitting(np.stack(list(returns.values()), axis=1)), ""
    except EvidenceError as error:
        return None, f"There is no probability of overfitting: {error}."


def _counts(data: StudyData) -> dict[str, object]:
    states = [_STATES.get(trial.state) for trial in data.trials]
    counted: dict[str, object] = {name: states.count(name) for name in _STATES.values()}
    counted |= {"all": len(states), "tried": data.tried, "best": None if data.best is None else data.best.number}
    counted["updates"] = sum(trial.user_attrs.get(ATTRIBUTES.updates) or 0 for trial in data.trials)
    return counted


def _finding(data: StudyData, content: Mapping[str, object], overfit: Overfitting | None) -> Headline:
    def count(name: str) -> Cell:
        return Cell(("summary", name), ",", 0)

    trials: tuple[str | Cell, ...] = (
        *(count("all"), " trials: ", count("complete"), " to their end, ", count("pruned"), " stopped early, "),
        *(count("failed"), " failed; ", count("updates"), " updates."),
    )
    if data.best is None:
        return Headline("", "No trial has a value", content, words=(trials,), within=())
    best = f"trial {data.best.number}"
    values: list[str | Cell] = []
    for name in data.objective:
        values += [f"{', ' if values else ''}{name} ", Cell(("best", best, name), "g", 3)]
    values.append(", on windows that it was chosen by: the best of many is overestimated there.")
    if overfit is not None:
        values += [" The probability that such a choice is overfitted is ", Cell(("overfitting", "pbo"), "%", 0), "."]
    counted = (
        *trials,
        " best.yaml says that it was chosen among ",
        count("tried"),
        " configurations, and the deflated Sharpe ratio of its own report takes account of that.",
    )
    return Headline("", f"Best: {best}", content, words=(tuple(values), counted), within=())


def _best(data: StudyData) -> Section:
    several = len(data.objective) > 1
    shown = front(data.trials) if several else sorted(data.complete, key=lambda trial: trial.values, reverse=True)
    title, best = "On the front" if several else "Best trials", data.best
    numbers = {f"trial {trial.number}": _values(trial, data.objective) for trial in data.complete}
    rows = [f"trial {trial.number}" for trial in shown[:MOST_ROWS]]
    columns = [(name, Cell((ROW, name), decimals=3)) for name in data.objective]
    marked = "" if best is None else f"trial {best.number}"
    tables = [make_table(title, "Trial", rows, columns, marked=marked)]
    if best is not None:
        first = next((trial.params for trial in data.complete if trial.number == 0), {})
        values = [(marked, best.params), ("trial 0", first)]
        cells = [(name, {key: _cell(params[key]) for key in data.space if key in params}) for name, params in values]
        caption = "Trial 0 is the configuration as it was, where the space holds it."
        tables.append(make_table("The best trial's keys", "Key", list(data.space), cells, caption))
    return Section("best", "Best trials", numbers, tuple(tables))


def _choice(overfit: Overfitting | None, without: str, figures: Sequence[Rendered]) -> Section:
    key, title = "overfitting", "Choosing the best of them"
    if overfit is None:
        return Section(key, title, {}, words=(without,))
    numbers = {
        "pbo": overfit.pbo,
        "loss": overfit.loss,
        "choices": len(overfit.logits),
        "blocks": overfit.blocks,
        "days": overfit.days,
    }
    words = (
        (
            "Probability of backtest overfitting: ",
            Cell(("pbo",), "%", 1),
            ", by CSCV over ",
            Cell(("choices",), ",", 0),
            " cuts of ",
            Cell(("days",), ",", 0),
            " evaluated days into ",
            Cell(("blocks",), ",", 0),
            " blocks, for the choice by Sharpe ratio among the completed trials. A choice without skill "
            "comes near 50 %. Trials that were stopped early have no returns and are not among them.",
        ),
        ("The chosen trial lost money against cash in ", Cell(("loss",), "%", 1), " of the other halves."),
    )
    return Section(key, title, numbers, figures=tuple(figures), words=words)


def _failed(data: StudyData) -> Section | None:
    failed = {f"trial {trial.number}": _reason(trial) for trial in data.trials if trial.state == TrialState.FAIL}
    if not failed:
        return None
    more = f"The first {MOST_ROWS} of {len(failed)}." if len(failed) > MOST_ROWS else ""
    table = make_table("Why", "Trial", list(failed)[:MOST_ROWS], [("reason", failed)], more)
    return Section("failed", "Trials that failed", {}, (table,))


def _reason(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get(ATTRIBUTES.reason, LOST))


def _values(trial: FrozenTrial, objective: Sequence[str]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(objective, trial.values, strict=True)}


def _trial_numbers(trial: FrozenTrial, objective: Sequence[str]) -> dict[str, object]:
    return {
        "number": trial.number,
        "state": _STATES.get(trial.state, trial.state.name.lower()),
        "values": _values(trial, objective) if trial.state == TrialState.COMPLETE else None,
        "params": dict(trial.params),
        "course": {str(level): value for level, value in trial.intermediate_values.items() if math.isfinite(value)},
        "reason": (_reason(trial) or None) if trial.state == TrialState.FAIL else None,
        "updates": trial.user_attrs.get(ATTRIBUTES.updates),
    }


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _facts(config: Config, context: TrialContext) -> dict[str, str]:
    tune = config.tune
    windows = [context.panel.dates[[fold.tests[0].start, fold.tests[0].stop - 1]] for fold in context.folds]
    deviations = f", {tune.deviations:g} deviations off" if tune.aggregate == "cautious" else ""
    return {
        "data": str(context.panel.describe()),
        "judged windows": "; ".join(f"{first} to {last}" for first, last in windows),
        "seeds of each fold": ", ".join(map(str, context.seeds)),
        "together": tune.aggregate + deviations,
        "sampler": f"{tune.sampler}, seed {tune.seed}",
        "pruner": tune.pruner if len(tune.objective) == 1 else "none: several objectives",
        "optuna": optuna.__version__,
        "code": code_hash(),
    }
