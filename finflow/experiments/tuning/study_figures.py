"""Figures of a search: Optuna's own plots, and the histogram of the probability of backtest overfitting."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.importance import FanovaImportanceEvaluator
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as plots

from finflow.evaluation.page.drawing import DOTS_PER_INCH, WIDTH, Rendered, pyplot_restored

KEYS = 4  # of the space in one figure of slices
TITLES = {
    "history": "History",
    "front": "Pareto front",
    "importances": "What mattered",
    "slices": "One key at a time",
    "parallel": "All keys together",
    "courses": "How trials went",
}


def study_of(trials: Sequence[FrozenTrial], objectives: int) -> Study:
    """A study in memory that holds some trials, in the order of their numbers, for Optuna's functions."""
    study = optuna.create_study(directions=[StudyDirection.MAXIMIZE] * objectives)
    study.add_trials(sorted(trials, key=lambda trial: trial.number))
    return study


def importance_evaluator() -> FanovaImportanceEvaluator:
    """FANOVA, the same each time."""
    return FanovaImportanceEvaluator(seed=0)


def draw_figures(
    trials: Sequence[FrozenTrial], objective: Sequence[str], keys: Sequence[str], importances: Mapping[str, object]
) -> list[Rendered]:
    """Draw every figure that the trials have something to show for; importances of the objectives that have them."""
    study, first = study_of(trials, len(objective)), objective[0]
    drawn: list[Rendered] = []

    def add(name: str, caption: str, words: str, draw: Callable[[], Any], *size: float) -> None:
        before = sum(figure.title == TITLES[name] for figure in drawn)
        file = f"{name}-{before + 1}" if before else name
        drawn.append(Rendered(file, TITLES[name], caption, words, _render(draw, *(size or (WIDTH, 3.6)))))

    def of(place: int) -> dict[str, Any]:
        """Target of Optuna's plots: one of several objectives, or None for the only one."""
        target = None if len(objective) == 1 else lambda trial: float(trial.values[place])
        return {"target": target, "target_name": objective[place]}

    complete = any(trial.state == TrialState.COMPLETE for trial in trials)
    for place, name in enumerate(objective if complete else ()):
        add(
            "history",
            f"{name} of every completed trial; of a single objective also the best until then.",
            f"Points of the trials in their order, over the greatest {name} so far where that is the only objective.",
            partial(plots.plot_optimization_history, study, **of(place)),
        )
    for one, other in itertools.combinations(range(len(objective)), 2) if complete else ():
        names = [objective[one], objective[other]]
        add(
            "front",
            "More is better on both axes. On the front: trials that no other beats in every objective.",
            f"Scatter of the trials over {' and '.join(names)}; {len(study.best_trials)} of them on the front.",
            partial(plots.plot_pareto_front, study, target_names=names, targets=partial(_values_at, (one, other))),
            WIDTH,
            4.0,
        )
    for place, name in enumerate(objective if complete else ()):
        if name in importances:
            add(
                "importances",
                f"Share of the differences in {name} between finished trials that each key explains, by itself and "
                "with others (fANOVA). From few trials this is rough.",
                "Bars of the share of each key.",
                partial(plots.plot_param_importances, study, importance_evaluator(), **of(place)),
                WIDTH,
                4.0,
            )
    if complete:
        for shown in (list(keys[start : start + KEYS]) for start in range(0, len(keys), KEYS)):
            add(
                "slices",
                f"{first} of every finished trial over each key; later trials are darker.",
                f"A panel of points for each of {', '.join(shown)}.",
                partial(plots.plot_slice, study, params=shown, **of(0)),
                11.0,
                3.4,
            )
        add(
            "parallel",
            f"A line for each finished trial through its values, in the colour of its {first}.",
            f"Parallel coordinates of the trials over {len(keys)} keys.",
            partial(plots.plot_parallel_coordinate, study, **of(0)),
            4.0 + 1.1 * len(keys),
            5.0,
        )
    if any(trial.intermediate_values for trial in trials):
        add(
            "courses",
            f"{first} of each trial at its validation points: of its trainings until then together.",
            "A line for each trial over its levels; shorter ones were stopped early.",
            partial(_courses, study, first),
        )
    return drawn


def _values_at(places: tuple[int, int], trial: FrozenTrial) -> list[float]:
    return [trial.values[place] for place in places]


def _courses(study: Study, name: str) -> Any:
    axes = plots.plot_intermediate_values(study)
    legend = axes.get_legend()
    if legend is not None:
        legend.remove()  # a line for each trial: more than a legend has room for
    axes.set_xlabel("level: tenths of the trainings, one after another")
    axes.set_ylabel(f"{name} so far")
    return axes


def _render(draw: Callable[[], Any], width: float, height: float) -> bytes:
    """Encode a plot of Optuna's as PNG; width and height in inches."""
    from matplotlib import pyplot

    with pyplot_restored():
        axes = np.atleast_1d(np.asarray(draw(), dtype=object)).flat[0]
        for side in ("left", "center"):
            axes.set_title("", loc=side)
        figure = axes.get_figure()
        figure.suptitle("")
        figure.set_size_inches(width, height)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight", metadata={"Software": None})
        pyplot.close(figure)
    return buffer.getvalue()
