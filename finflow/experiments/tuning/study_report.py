"""The report of a study: its page and figures, its numbers, and the probability that its choice is overfitted."""

from __future__ import annotations

import io
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as plots

from finflow.config import Config
from finflow.errors import EvidenceError
from finflow.evaluation.page.drawing import DOTS_PER_INCH, WIDTH, Rendered, pyplot_restored
from finflow.evaluation.page.page import Headline, Page
from finflow.evaluation.page.section import ROW, Cell, Section, make_table
from finflow.evaluation.statistics.backtest_overfitting import Overfitting, overfitting, overfitting_histogram
from finflow.experiments.tuning.study import Space, describe_values, space_of
from finflow.experiments.tuning.study_results import (
    ATTRIBUTES,
    best_trial,
    count_tried,
    decode_returns,
    front,
    reason_of,
)
from finflow.experiments.tuning.trial_training import TrialContext
from finflow.files import write_together
from finflow.provenance import code_hash

REPORTS = "reports"
PAGE, NUMBERS, RETURNS = "report.html", "study.json", "returns.npz"
FEWEST = 4  # finished trials for importances
MOST_ROWS = 20  # of the best trials, and of those that failed
KEYS = 4  # of the space in one figure of slices
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
_EVALUATOR = FanovaImportanceEvaluator(seed=0)


@dataclass(frozen=True)
class StudyData:
    """All that the page shows."""

    title: str
    subtitle: str
    objective: tuple[str, ...]
    trials: tuple[FrozenTrial, ...]
    space: Space
    tried: int
    facts: Mapping[str, str]

    @cached_property
    def complete(self) -> tuple[FrozenTrial, ...]:
        return tuple(trial for trial in self.trials if trial.state == TrialState.COMPLETE)

    @cached_property
    def study(self) -> Study:
        """The trials in the order of their numbers, in memory, for Optuna's functions."""
        study = optuna.create_study(directions=[StudyDirection.MAXIMIZE] * len(self.objective))
        study.add_trials(self.trials)
        return study

    @cached_property
    def importances(self) -> dict[str, dict[str, float]]:
        """FANOVA of the completed trials, objective -> key -> share; none where they are too few or all alike."""
        importances: dict[str, dict[str, float]] = {}
        if len(self.complete) < FEWEST:
            return importances
        for place, name in enumerate(self.objective):
            if len({trial.values[place] for trial in self.complete}) < 2:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shares = get_param_importances(self.study, evaluator=_EVALUATOR, target=partial(_value, place))
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
    write_together({folder / REPORTS / name: text for name, text in study_files(data).items()})
    return folder / REPORTS / PAGE


def study_files(data: StudyData) -> dict[str, bytes | str]:
    """The page, its numbers, its figures and the trials' returns, by file name."""
    known = [trial for trial in data.complete if ATTRIBUTES.excess in trial.user_attrs]
    returns = {trial.number: decode_returns(trial.user_attrs[ATTRIBUTES.excess]) for trial in known}
    excess = np.stack(list(returns.values()), axis=1) if returns else np.zeros((0, 0))
    overfit, without = _overfitting(excess)
    drawn = itertools.groupby(draw_figures(data), key=lambda figure: figure.title)
    figures = [(title, tuple(group)) for title, group in drawn]
    space = {key: describe_values(values) for key, values in data.space.items()}
    sections = [
        _best(data),
        *(Section(group[0].name, title, figures=group) for title, group in figures),
        _choice(overfit, without, len(data.complete)),
        *_failed(data.trials),
        Section("space", "Search space", tables=(make_table("Space", "Key", space, [("values", space)]),)),
        Section("settings", "Data and settings", facts=data.facts),
    ]
    numbers = {
        "trials": [_trial_numbers(trial, data.objective) for trial in data.trials],
        "summary": _counts(data),
        "importances": data.importances,
    }
    page = Page(data.title, data.subtitle, _finding(data, overfit), sections, numbers)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, trials=np.array(list(returns), dtype=np.int64), excess=excess)
    return {**page.files(PAGE, NUMBERS), RETURNS: buffer.getvalue()}


def _overfitting(excess: NDArray[np.float64]) -> tuple[Overfitting | None, str]:
    try:
        return overfitting(excess), ""
    except EvidenceError as error:
        return None, f"There is no probability of overfitting: {error}."


def _counts(data: StudyData) -> dict[str, object]:
    states, best = [_STATES.get(trial.state) for trial in data.trials], best_trial(data.trials)
    return {
        **{name: states.count(name) for name in _STATES.values()},
        "all": len(states),
        "tried": data.tried,
        "best": None if best is None else best.number,
        "updates": sum(trial.user_attrs.get(ATTRIBUTES.updates) or 0 for trial in data.trials),
    }


def _finding(data: StudyData, overfit: Overfitting | None) -> Headline:
    def count(name: str) -> Cell:
        return Cell(("summary", name), ",", 0)

    trials: tuple[str | Cell, ...] = (
        *(count("all"), " trials: ", count("complete"), " to their end, ", count("pruned"), " stopped early, "),
        *(count("failed"), " failed; ", count("updates"), " updates."),
    )
    chosen = best_trial(data.trials)
    if chosen is None:
        return Headline("", "No trial has a value", words=(trials,))
    best = f"trial {chosen.number}"
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
    return Headline("", f"Best: {best}", words=(tuple(values), counted))


def _best(data: StudyData) -> Section:
    several = len(data.objective) > 1
    shown = front(data.trials) if several else sorted(data.complete, key=lambda trial: trial.values, reverse=True)
    title, best = "On the front" if several else "Best trials", best_trial(data.trials)
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


def _choice(overfit: Overfitting | None, without: str, among: int) -> Section:
    key, title = "overfitting", "Choosing the best of them"
    if overfit is None:
        return Section(key, title, words=(without,))
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
    figure = overfitting_histogram(overfit, among, "trials", over="the evaluated windows")
    return Section(key, title, numbers, figures=(figure,), words=words)


def _failed(trials: Sequence[FrozenTrial]) -> list[Section]:
    failed = {f"trial {trial.number}": reason_of(trial) for trial in trials if trial.state == TrialState.FAIL}
    more = f"The first {MOST_ROWS} of {len(failed)}." if len(failed) > MOST_ROWS else ""
    table = make_table("Why", "Trial", list(failed)[:MOST_ROWS], [("reason", failed)], more)
    return [Section("failed", "Trials that failed", tables=(table,))] if failed else []


def _values(trial: FrozenTrial, objective: Sequence[str]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(objective, trial.values, strict=True)}


def _trial_numbers(trial: FrozenTrial, objective: Sequence[str]) -> dict[str, object]:
    return {
        "number": trial.number,
        "state": _STATES.get(trial.state, trial.state.name.lower()),
        "values": _values(trial, objective) if trial.state == TrialState.COMPLETE else None,
        "params": dict(trial.params),
        "course": {str(level): value for level, value in trial.intermediate_values.items() if math.isfinite(value)},
        "reason": (reason_of(trial) or None) if trial.state == TrialState.FAIL else None,
        "updates": trial.user_attrs.get(ATTRIBUTES.updates),
    }


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _facts(config: Config, context: TrialContext) -> dict[str, str]:
    tune = config.tune
    windows = [context.panel.dates[[fold.tests[0].start, fold.tests[0].stop - 1]] for fold in context.folds]
    return {
        "data": str(context.panel.describe()),
        "judged windows": "; ".join(f"{first} to {last}" for first, last in windows),
        "seeds of each fold": ", ".join(map(str, context.seeds)),
        "sampler": f"{tune.sampler}, seed {tune.seed}",
        "pruner": tune.pruner if len(tune.objective) == 1 else "none: several objectives",
        "optuna": optuna.__version__,
        "code": code_hash(),
    }


def draw_figures(data: StudyData) -> list[Rendered]:
    """Draw every figure that the trials have something to show for, with Optuna's own plots."""
    study, first, keys, drawn = data.study, data.objective[0], list(data.space), list[Rendered]()

    def add(
        name: str, title: str, caption: str, draw: Callable[[], Any], width: float = WIDTH, height: float = 4.0
    ) -> None:
        before = sum(figure.title == title for figure in drawn)
        file = f"{name}-{before + 1}" if before else name
        drawn.append(Rendered(file, title, caption, f"{title}: {caption}", _render(draw, width, height)))

    def of(place: int) -> dict[str, Any]:
        """Target of Optuna's plots: one of several objectives, or None for the only one."""
        target = None if len(data.objective) == 1 else partial(_value, place)
        return {"target": target, "target_name": data.objective[place]}

    objectives = list(enumerate(data.objective)) if data.complete else []
    for place, name in objectives:
        caption = f"{name} of every completed trial; of a single objective also the best until then."
        add("history", "History", caption, partial(plots.plot_optimization_history, study, **of(place)))
    for (one, name), (other, second) in itertools.combinations(objectives, 2):
        targets = partial(_values_at, (one, other))
        caption = "More is better on both axes. On the front: trials that no other beats in every objective."
        front_of = partial(plots.plot_pareto_front, study, target_names=[name, second], targets=targets)
        add("front", "Pareto front", caption, front_of)
    for place, name in objectives:
        if name in data.importances:
            add(
                "importances",
                "What mattered",
                f"Share of the differences in {name} between finished trials that each key explains, by itself and "
                "with others (fANOVA). From few trials this is rough.",
                partial(plots.plot_param_importances, study, _EVALUATOR, **of(place)),
            )
    if objectives:
        caption = f"{first} of every finished trial over each key; later trials are darker."
        for start in range(0, len(keys), KEYS):
            slices = partial(plots.plot_slice, study, params=keys[start : start + KEYS], **of(0))
            add("slices", "One key at a time", caption, slices, 11.0, 3.4)
        caption = f"A line for each finished trial through its values, in the colour of its {first}."
        parallel = partial(plots.plot_parallel_coordinate, study, **of(0))
        add("parallel", "All keys together", caption, parallel, 4.0 + 1.1 * len(keys), 5.0)
    if any(trial.intermediate_values for trial in data.trials):
        caption = f"{first} of each trial at its validation points; shorter lines were stopped early."
        add("courses", "How trials went", caption, partial(_courses, study, first))
    return drawn


def _value(place: int, trial: FrozenTrial) -> float:
    return float(trial.values[place])


def _values_at(places: tuple[int, int], trial: FrozenTrial) -> list[float]:
    return [trial.values[place] for place in places]


def _courses(study: Study, name: str) -> Any:
    axes = plots.plot_intermediate_values(study)
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()  # a line for each trial: more than a legend has room for
    axes.set(xlabel="level: tenths of the trainings, one after another", ylabel=f"{name} so far")
    return axes


def _render(draw: Callable[[], Any], width: float, height: float) -> bytes:
    """Encode a plot of Optuna's as PNG; width and height in inches."""
    from matplotlib import pyplot

    with pyplot_restored():
        axes = np.atleast_1d(np.asarray(draw(), dtype=object)).flat[0]
        axes.set_title("")
        figure = axes.get_figure()
        figure.suptitle("")
        figure.set_size_inches(width, height)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight", metadata={"Software": None})
        pyplot.close(figure)
    return buffer.getvalue()
