"""The report of a study: its page and figures, its numbers, and the probability that its choice is overfitted."""

from __future__ import annotations

import io
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as plots

from finflow.config import Config
from finflow.evaluation.page.drawing import DOTS_PER_INCH, WIDTH, Rendered, pyplot_restored
from finflow.evaluation.page.section import ROW, Cell, Section, Sentence, make_table
from finflow.evaluation.page.whole_page import Headline, Page
from finflow.evaluation.statistics.backtest_overfitting import choice_section
from finflow.experiments.tuning.study import (
    EXCESS,
    UPDATES,
    Space,
    best_trial,
    count_tried,
    decode_returns,
    describe_values,
    reason_of,
    space_of,
)
from finflow.experiments.tuning.trial_store import TrialStore
from finflow.experiments.tuning.trial_training import TrialContext
from finflow.files import write_together
from finflow.provenance import code_hash

REPORTS = "reports"
PAGE, NUMBERS, RETURNS = "report.html", "study.json", "returns.npz"
FEWEST = 4  # finished trials for importances
MOST_ROWS = 20  # of the best trials, and of those that failed
KEYS = 4  # of the space in one figure of slices
_EVALUATOR = FanovaImportanceEvaluator(seed=0)


@dataclass(frozen=True)
class StudyData:
    """All that the page shows; the trials are in the order of their numbers."""

    title: str
    subtitle: str
    objective: tuple[str, ...]
    trials: tuple[FrozenTrial, ...]
    space: Space
    tried: int
    facts: Mapping[str, str]

    @cached_property
    def study(self) -> Study:
        """The trials in memory, for Optuna's functions."""
        study = optuna.create_study(directions=[StudyDirection.MAXIMIZE] * len(self.objective))
        study.add_trials(self.trials)
        return study

    @cached_property
    def complete(self) -> tuple[FrozenTrial, ...]:
        return tuple(trial for trial in self.trials if trial.state == TrialState.COMPLETE)

    @cached_property
    def best(self) -> str:
        """Name of the best trial; empty where none has a value."""
        best = best_trial(self.study)  # which numbers trials anew
        return "" if best is None else f"trial {self.trials[best.number].number}"

    @cached_property
    def importances(self) -> dict[str, dict[str, float]]:
        """FANOVA of the completed trials, objective -> key -> share; none where they are too few or all alike."""
        values = {name: {trial.values[place] for trial in self.complete} for place, name in enumerate(self.objective)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {
                name: get_param_importances(self.study, evaluator=_EVALUATOR, target=partial(_value, place))
                for place, (name, several) in enumerate(values.items())
                if len(self.complete) >= FEWEST and len(several) > 1
            }


def report_study(config: Config, context: TrialContext, folder: Path, store: TrialStore) -> Path:
    """Write the report into the study's folder: the page, its numbers and figures, and the trials' returns."""
    dates, tests, trials = context.panel.dates, [fold.tests[0] for fold in context.folds], tuple(store.trials)
    data = StudyData(
        title=f"Search for {' and '.join(config.tune.objective)}: {store.study.study_name}",
        subtitle=f"{len(trials)} trials, evaluated from {dates[tests[0].start]} to {dates[tests[-1].stop - 1]}, before "
        "the test window, net of costs",
        objective=config.tune.objective,
        trials=trials,
        space=space_of(config),
        tried=count_tried(config, trials),
        facts={
            "data": str(context.panel.describe()),
            "judged windows": "; ".join(f"{dates[test.start]} to {dates[test.stop - 1]}" for test in tests),
            "seeds of each fold": ", ".join(map(str, context.seeds)),
            "sampler": f"{config.tune.sampler}, seed {config.tune.seed}",
            "pruner": config.tune.pruner if len(config.tune.objective) == 1 else "none: several objectives",
            "optuna": optuna.__version__,
            "code": code_hash(),
        },
    )
    write_together({folder / REPORTS / name: text for name, text in study_files(data).items()})
    return folder / REPORTS / PAGE


def study_files(data: StudyData) -> dict[str, bytes | str]:
    """The page, its numbers, its figures and the trials' returns, by file name."""
    known = [trial for trial in data.complete if EXCESS in trial.user_attrs]
    returns = {trial.number: decode_returns(trial.user_attrs[EXCESS]) for trial in known}
    excess = np.stack(list(returns.values()), axis=1) if returns else np.zeros((0, 0))
    choice = choice_section(excess, [_name(trial) for trial in known], "the evaluated windows", what="trials")
    drawn = itertools.groupby(draw_study_figures(data), key=lambda figure: figure.title)
    figures = [(title, tuple(group)) for title, group in drawn]
    space = {key: describe_values(values) for key, values in data.space.items()}
    sections = [
        _best(data),
        *(Section(group[0].name, title, figures=group) for title, group in figures),
        choice,
        *_failed(data.trials),
        Section("space", "Search space", tables=(make_table("Space", "Key", space, [("values", space)]),)),
        Section("settings", "Data and settings", facts=data.facts),
    ]
    numbers = {
        "trials": [_trial_numbers(trial, data.objective) for trial in data.trials],
        "summary": _counts(data),
        "importances": data.importances,
    }
    page = Page(data.title, data.subtitle, _finding(data, choice), sections, numbers)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, trials=np.array(list(returns), dtype=np.int64), excess=excess)
    return {**page.files(PAGE, NUMBERS), RETURNS: buffer.getvalue()}


def _counts(data: StudyData) -> dict[str, object]:
    states = Counter(_state(trial) for trial in data.trials)
    return {
        **{name: states[name] for name in ("complete", "pruned", "failed")},
        "all": len(data.trials),
        "tried": data.tried,
        "best": int(data.best.removeprefix("trial ")) if data.best else None,
        "updates": sum(trial.user_attrs.get(UPDATES) or 0 for trial in data.trials),
    }


def _state(trial: FrozenTrial) -> str:
    return "failed" if trial.state == TrialState.FAIL else trial.state.name.lower()


def _finding(data: StudyData, choice: Section) -> Headline:
    names = ("all", "complete", "pruned", "failed", "updates", "tried")
    count = {name: Cell(("summary", name), ",", 0) for name in names}
    trials: Sentence = (
        *(count["all"], " trials: ", count["complete"], " to their end, ", count["pruned"], " stopped early, "),
        *(count["failed"], " failed; ", count["updates"], " updates."),
    )
    if not data.best:
        return Headline("", "No trial has a value", words=(trials,))
    figures = {name: Cell(("best", data.best, name), "g", 3) for name in data.objective}
    chosen: Sentence = (
        *(part for name, figure in figures.items() for part in (f"{name} ", figure, ", ")),
        "on windows that it was chosen by: the best of many is overestimated there.",
    )
    if choice.figures:
        chance = Cell((choice.key, "overfitting", "pbo"), "%", 0)
        chosen = (*chosen, " The probability that such a choice is overfitted is ", chance, ".")
    counted = (
        *trials,
        " best.yaml says that it was chosen among ",
        count["tried"],
        " configurations, and the deflated Sharpe ratio of its own report takes account of that.",
    )
    return Headline("", f"Best: {data.best}", words=(chosen, counted))


def _best(data: StudyData) -> Section:
    numbers = {_name(trial): _values(trial, data.objective) for trial in data.complete}
    title, shown = "Best trials", sorted(data.complete, key=lambda trial: trial.values, reverse=True)
    if len(data.objective) > 1:
        title, shown = "On the front", [data.trials[trial.number] for trial in data.study.best_trials]
    columns = [(name, Cell((ROW, name), decimals=3)) for name in data.objective]
    tables = [make_table(title, "Trial", [_name(trial) for trial in shown[:MOST_ROWS]], columns, marked=data.best)]
    if data.best:
        params = {_name(trial): trial.params for trial in data.complete}
        shown_params = [(name, params.get(name, {})) for name in (data.best, "trial 0")]
        cells = [(name, {key: _cell(value) for key, value in own.items()}) for name, own in shown_params]
        caption = "Trial 0 is the configuration as it was, where the space holds it."
        tables.append(make_table("The best trial's keys", "Key", list(data.space), cells, caption))
    return Section("best", "Best trials", numbers, tuple(tables))


def _name(trial: FrozenTrial) -> str:
    return f"trial {trial.number}"


def _failed(trials: Sequence[FrozenTrial]) -> list[Section]:
    failed = {_name(trial): reason_of(trial) for trial in trials if trial.state == TrialState.FAIL}
    more = f"The first {MOST_ROWS} of {len(failed)}." if len(failed) > MOST_ROWS else ""
    table = make_table("Why", "Trial", list(failed)[:MOST_ROWS], [("reason", failed)], more)
    return [Section("failed", "Trials that failed", tables=(table,))] if failed else []


def _values(trial: FrozenTrial, objective: Sequence[str]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(objective, trial.values, strict=True)}


def _trial_numbers(trial: FrozenTrial, objective: Sequence[str]) -> dict[str, object]:
    return {
        "number": trial.number,
        "state": _state(trial),
        "values": _values(trial, objective) if trial.state == TrialState.COMPLETE else None,
        "params": dict(trial.params),
        "course": {str(level): value for level, value in trial.intermediate_values.items() if math.isfinite(value)},
        "reason": (reason_of(trial) or None) if trial.state == TrialState.FAIL else None,
        "updates": trial.user_attrs.get(UPDATES),
    }


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def draw_study_figures(data: StudyData) -> list[Rendered]:
    """Draw every figure that the trials have something to show for, with Optuna's own plots."""
    study, first, keys, drawn = data.study, data.objective[0], list(data.space), list[Rendered]()
    objectives = list(enumerate(data.objective)) if data.complete else []
    targets: list[dict[str, Any]] = [
        {"target": partial(_value, place) if len(data.objective) > 1 else None, "target_name": name}
        for place, name in objectives
    ]

    def add(
        name: str, title: str, caption: str, draw: Callable[[], Any], size: tuple[float, float] = (WIDTH, 4.0)
    ) -> None:
        before = sum(figure.title == title for figure in drawn)
        file = f"{name}-{before + 1}" if before else name
        drawn.append(Rendered(file, title, caption, f"{title}: {caption}", _render(draw, size)))

    for place, name in objectives:
        caption = f"{name} of every completed trial; of a single objective also the best until then."
        add("history", "History", caption, partial(plots.plot_optimization_history, study, **targets[place]))
    for (one, name), (other, second) in itertools.combinations(objectives, 2):
        caption = "More is better on both axes. On the front: trials that no other beats in every objective."
        both = partial(lambda places, trial: [trial.values[place] for place in places], (one, other))
        front = partial(plots.plot_pareto_front, study, target_names=[name, second], targets=both)
        add("front", "Pareto front", caption, front)
    for name in data.importances:
        caption = (
            f"Share of the differences in {name} between finished trials that each key explains, by itself and with "
            "others (fANOVA). From few trials this is rough."
        )
        importances = partial(plots.plot_param_importances, study, _EVALUATOR, **targets[data.objective.index(name)])
        add("importances", "What mattered", caption, importances)
    if objectives:
        caption = f"{first} of every finished trial over each key; later trials are darker."
        for start in range(0, len(keys), KEYS):
            slices = partial(plots.plot_slice, study, params=keys[start : start + KEYS], **targets[0])
            add("slices", "One key at a time", caption, slices, (11.0, 3.4))
        caption = f"A line for each finished trial through its values, in the colour of its {first}."
        parallel = partial(plots.plot_parallel_coordinate, study, **targets[0])
        add("parallel", "All keys together", caption, parallel, (4.0 + 1.1 * len(keys), 5.0))
    if any(trial.intermediate_values for trial in data.trials):
        caption = f"{first} of each trial at its validation points; shorter lines were stopped early."
        add("courses", "How trials went", caption, partial(_courses, study, first))
    return drawn


def _value(place: int, trial: FrozenTrial) -> float:
    return float(trial.values[place])


def _courses(study: Study, name: str) -> Any:
    axes = plots.plot_intermediate_values(study)
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()  # a line for each trial: more than a legend has room for
    axes.set(xlabel="level: tenths of the trainings, one after another", ylabel=f"{name} so far")
    return axes


def _render(draw: Callable[[], Any], size: tuple[float, float]) -> bytes:
    """Encode a plot of Optuna's as PNG; width and height in inches."""
    from matplotlib import pyplot

    with pyplot_restored():
        axes = np.atleast_1d(np.asarray(draw(), dtype=object)).flat[0]
        axes.set_title("")
        figure = axes.get_figure()
        figure.suptitle("")
        figure.set_size_inches(*size)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight", metadata={"Software": None})
        pyplot.close(figure)
    return buffer.getvalue()
