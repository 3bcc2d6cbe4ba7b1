"""Figures of a search: Optuna's own plots, and the histogram of the probability of backtest overfitting."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.importance import FanovaImportanceEvaluator
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna.visualization import matplotlib as plots

from finflow.evaluation.report.drawing import DOTS_PER_INCH, WIDTH, Rendered, pyplot_restored

KEYS = 4  # of the space in one figure of slices


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
    """Draw every figure that the trials have something to show for.

    Parameters
    ----------
    importances
        Objectives whose importances can be computed.
    """
    study, first = study_of(trials, len(objective)), objective[0]
    count = sum(trial.state == TrialState.COMPLETE for trial in trials)
    drawn: list[Rendered] = []
    if count:
        drawn += [_history(study, place, name) for place, name in enumerate(objective)]
        drawn += [_front(study, objective, pair) for pair in itertools.combinations(range(len(objective)), 2)]
        drawn += [_importances(study, place, name) for place, name in enumerate(objective) if name in importances]
        drawn += [_slices(study, first, keys[start : start + KEYS]) for start in range(0, len(keys), KEYS)]
        drawn.append(_parallel(study, first, len(keys)))
    if any(trial.intermediate_values for trial in trials):
        drawn.append(_courses(study, first))
    names = [figure.name for figure in drawn]
    return [
        figure if names.index(figure.name) == place else figure.numbered(names[: place + 1].count(figure.name))
        for place, figure in enumerate(drawn)
    ]


def _value(study: Study, place: int) -> Callable[[FrozenTrial], float] | None:
    """Value of one of several objectives of a trial; None, as Optuna has it, of the only one."""
    return None if len(study.directions) == 1 else lambda trial: float(trial.values[place])


def _history(study: Study, place: int, name: str) -> Rendered:
    return Rendered(
        "history",
        "History",
        f"{name} of every completed trial; of a single objective also the best until then.",
        f"Points of the trials in their order, over the greatest {name} so far where that is the only objective.",
        _render(
            lambda: plots.plot_optimization_history(study, target=_value(study, place), target_name=name), WIDTH, 3.6
        ),
    )


def _front(study: Study, objective: Sequence[str], pair: tuple[int, int]) -> Rendered:
    names = [objective[place] for place in pair]
    png = _render(
        lambda: plots.plot_pareto_front(
            study, target_names=names, targets=lambda trial: [trial.values[place] for place in pair]
        ),
        WIDTH,
        4.0,
    )
    return Rendered(
        "front",
        "Pareto front",
        "More is better on both axes. On the front: trials that no other beats in every objective.",
        f"Scatter of the trials over {' and '.join(names)}; {len(study.best_trials)} of them on the front.",
        png,
    )


def _importances(study: Study, place: int, name: str) -> Rendered:
    png = _render(
        lambda: plots.plot_param_importances(
            study, importance_evaluator(), target=_value(study, place), target_name=name
        ),
        WIDTH,
        4.0,
    )
    return Rendered(
        "importances",
        "What mattered",
        f"Share of the differences in {name} between finished trials that each key explains, by itself and with others "
        "(fANOVA). From few trials this is rough.",
        "Bars of the share of each key.",
        png,
    )


def _slices(study: Study, name: str, keys: Sequence[str]) -> Rendered:
    png = _render(
        lambda: plots.plot_slice(study, params=list(keys), target=_value(study, 0), target_name=name), 11.0, 3.4
    )
    return Rendered(
        "slices",
        "One key at a time",
        f"{name} of every finished trial over each key; later trials are darker.",
        f"A panel of points for each of {', '.join(keys)}.",
        png,
    )


def _parallel(study: Study, name: str, keys: int) -> Rendered:
    png = _render(
        lambda: plots.plot_parallel_coordinate(study, target=_value(study, 0), target_name=name), 4.0 + 1.1 * keys, 5.0
    )
    return Rendered(
        "parallel",
        "All keys together",
        f"A line for each finished trial through its values, in the colour of its {name}.",
        f"Parallel coordinates of the trials over {keys} keys.",
        png,
    )


def _courses(study: Study, name: str) -> Rendered:
    def draw() -> Any:
        axes = plots.plot_intermediate_values(study)
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()  # a line for each trial: more than a legend has room for
        axes.set_xlabel("level: tenths of the trainings, one after another")
        axes.set_ylabel(f"{name} so far")
        return axes

    return Rendered(
        "courses",
        "How trials went",
        f"{name} of each trial at its validation points: of its trainings until then together.",
        "A line for each trial over its levels; shorter ones were stopped early.",
        _render(draw, WIDTH, 3.6),
    )


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
