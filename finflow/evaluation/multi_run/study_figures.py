"""Figures of a search: history, Pareto front, importances, values of the keys, and courses of the trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from finflow.evaluation.report.drawing import (
    BLUE,
    GREY,
    LIGHT_GREY,
    ORANGE,
    VERMILION,
    Rendered,
    legend_of_figure,
    render,
)
from finflow.evaluation.report.figures import overfitting_histogram
from finflow.evaluation.statistics.backtest_overfitting import Overfitting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Searched", "Tried", "figures_of"]

COLUMNS = 4
MOST_LINES = 300  # trials drawn as lines of their own


@dataclass(frozen=True)
class Searched:
    """A key that was searched.

    Attributes
    ----------
    key, words
        Its name, and its values in words.
    log
        Logarithmic axis.
    choices
        Its values as text, where there are a few; empty for a range.
    """

    key: str
    words: str
    log: bool = False
    choices: tuple[str, ...] = ()

    def place(self, value: object) -> float:
        """Position of a value on its axis."""
        if self.choices:
            return float(self.choices.index(str(value)))
        number = float(value)  # type: ignore[arg-type]
        return math.log10(number) if self.log else number


@dataclass(frozen=True)
class Tried:
    """One trial.

    Attributes
    ----------
    number
    state
        ``complete``, ``pruned``, ``failed``, ``running`` or ``waiting``.
    values
        Its objectives; None where it has none.
    params
        Key -> value.
    course
        Level -> the first objective as it stood there.
    reason
        Reason of a failure.
    updates
        Gradient updates made.
    """

    number: int
    state: str
    values: tuple[float, ...] | None
    params: Mapping[str, object]
    course: Mapping[int, float]
    reason: str = ""
    updates: int | None = None


def figures_of(
    trials: Sequence[Tried],
    objective: Sequence[str],
    space: Sequence[Searched],
    importances: Mapping[str, Mapping[str, float]],
    front: Sequence[int],
    overfit: Overfitting | None,
) -> list[Rendered]:
    """Draw every figure that the trials have something to show for.

    Parameters
    ----------
    trials
    objective
        Names.
    space
    importances
        Objective -> key -> share.
    front
        Numbers of the best trials: one, or those that no other beats in every objective.
    overfit
        CSCV of the choice among the trials.
    """
    complete = [trial for trial in trials if trial.state == "complete" and trial.values is not None]
    made: list[Rendered | None] = []
    if complete:
        made = [
            _history(trials, complete, objective),
            _pareto(complete, objective, front) if len(objective) > 1 else None,
            _importances(importances) if importances else None,
            _slices(complete, objective[0], space),
            _parallel(complete, objective[0], space),
        ]
    made.append(_courses(trials, objective[0]))
    if overfit is not None:
        made.append(overfitting_histogram(overfit, len(complete), "trials", over="the judged windows"))
    return [figure for figure in made if figure is not None]


def _history(trials: Sequence[Tried], complete: Sequence[Tried], objective: Sequence[str]) -> Rendered:
    numbers = np.array([trial.number for trial in complete])
    values = np.array([trial.values for trial in complete], dtype=np.float64)
    unfinished = {state: [one.number for one in trials if one.state == state] for state in ("pruned", "failed")}

    def draw(figure: Figure) -> None:
        panels = np.atleast_1d(figure.subplots(len(objective), 1, sharex=True))
        for place, (axes, name) in enumerate(zip(panels, objective, strict=True)):
            axes.scatter(numbers, values[:, place], s=16, color=BLUE, label="a trial", zorder=3)
            axes.step(
                numbers, np.maximum.accumulate(values[:, place]), where="post", color=VERMILION, label="best so far"
            )
            low = float(values[:, place].min()) - 0.06 * (float(np.ptp(values[:, place])) or 1.0)
            for (state, own), marker in zip(unfinished.items(), "|x", strict=True):
                if own:
                    axes.scatter(own, np.full(len(own), low), s=22, marker=marker, color=GREY, label=state)
            axes.set_ylabel(name)
            _whole_numbers(axes)
        panels[-1].set_xlabel("trial")
        legend_of_figure(figure, panels[0])

    ends = ", ".join(f"{name} {values[:, place].max():.3g}" for place, name in enumerate(objective))
    return Rendered(
        "history",
        "History",
        "Every trial that came to its end, and the best until then; below them those stopped early, and those that "
        "failed.",
        f"Points of {len(complete)} trials in their order. Greatest values: {ends}.",
        render(draw, 1.2 + 2.4 * len(objective)),
    )


def _pareto(complete: Sequence[Tried], objective: Sequence[str], front: Sequence[int]) -> Rendered:
    values = np.array([trial.values for trial in complete], dtype=np.float64)
    best = np.array([trial.number in front for trial in complete])
    pairs = [(one, other) for one in range(len(objective)) for other in range(one + 1, len(objective))]
    rows = -(-len(pairs) // 2)

    def draw(figure: Figure) -> None:
        panels = np.atleast_1d(figure.subplots(rows, min(len(pairs), 2), squeeze=False)).flatten()
        for axes, (one, other) in zip(panels, pairs, strict=False):
            axes.scatter(values[~best, one], values[~best, other], s=14, color=GREY, label="beaten by another")
            order = np.argsort(values[best, one])
            first, second = values[best, one][order], values[best, other][order]
            dash = "o-" if len(objective) == 2 else "o"
            axes.plot(first, second, dash, markersize=5, color=BLUE, label="front")
            axes.set_xlabel(objective[one])
            axes.set_ylabel(objective[other])
        panels[0].legend()
        for axes in panels[len(pairs) :]:
            axes.set_visible(False)

    return Rendered(
        "front",
        "Pareto front",
        "More is better on every axis. On the front: trials that no other beats in every objective.",
        f"Scatter of {len(complete)} trials over {' and '.join(objective)}; {int(best.sum())} of them on the front.",
        render(draw, 3.4 * rows),
    )


def _importances(importances: Mapping[str, Mapping[str, float]]) -> Rendered:
    first = next(iter(importances.values()))
    keys = sorted(first, key=lambda key: first[key])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        height = 0.8 / len(importances)
        for place, (name, shares) in enumerate(importances.items()):
            where = np.arange(len(keys)) + (place - (len(importances) - 1) / 2) * -height
            colour = (BLUE, ORANGE, VERMILION, GREY, LIGHT_GREY)[place % 5]
            axes.barh(where, [shares.get(key, 0.0) for key in keys], height * 0.9, color=colour, label=name)
        axes.set_yticks(np.arange(len(keys)), keys)
        axes.set_xlabel("share of the variance between trials")
        axes.grid(axis="y", visible=False)
        if len(importances) > 1:
            axes.legend()

    most = ", ".join(f"{key} {first[key]:.0%}" for key in reversed(keys[-3:]))
    return Rendered(
        "importances",
        "What mattered",
        "Share of the differences between finished trials that each key explains, by itself and with others (fANOVA). "
        "From few trials this is rough.",
        f"Bars of the share of each key. Most: {most}.",
        render(draw, 0.9 + 0.3 * len(keys) * max(1.0, len(importances) / 2)),
    )


def _slices(complete: Sequence[Tried], name: str, space: Sequence[Searched]) -> Rendered:
    columns = min(COLUMNS, len(space))
    rows = -(-len(space) // columns)
    values = [trial.values[0] for trial in complete if trial.values is not None]
    numbers = [trial.number for trial in complete]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(rows, columns, squeeze=False, sharey=True)
        points: Any = None
        for axes, one in zip(panels.flatten(), space, strict=False):
            places = [one.place(trial.params[one.key]) for trial in complete]
            points = axes.scatter(places, values, c=numbers, cmap="viridis_r", s=14)
            axes.set_title(one.key.partition(".")[2], fontsize=8.5)
            _value_axis(axes, one)
        for axes in panels.flatten()[len(space) :]:
            axes.set_visible(False)
        for row in panels:
            row[0].set_ylabel(name)
        if points is not None:
            figure.colorbar(points, ax=panels, label="trial", shrink=0.6, aspect=30)

    return Rendered(
        "slices",
        "One key at a time",
        f"{name} of every finished trial over each key; later trials are darker.",
        f"A panel for each of {len(space)} keys with {len(complete)} points.",
        render(draw, 0.6 + 1.75 * rows),
    )


def _parallel(complete: Sequence[Tried], name: str, space: Sequence[Searched]) -> Rendered:
    values = np.array([trial.values[0] for trial in complete if trial.values is not None])
    table = np.array([[one.place(trial.params[one.key]) for one in space] for trial in complete])
    low, high = table.min(axis=0), table.max(axis=0)
    scaled = (table - low) / np.where(high > low, high - low, 1.0)
    order = np.argsort(values)[-MOST_LINES:]

    def draw(figure: Figure) -> None:
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        axes = figure.subplots()
        shade = Normalize(float(values.min()), float(values.max()) if np.ptp(values) > 0 else float(values.min()) + 1.0)
        colours = colormaps["viridis_r"]
        for row in order:
            axes.plot(scaled[row], color=colours(shade(values[row])), linewidth=0.9, alpha=0.75)
        labels = []
        for place, one in enumerate(space):
            ends = [_value_text(one, end) for end in (low[place], high[place])]
            axes.text(place, -0.03, ends[0], ha="center", va="top", fontsize=7.5)
            axes.text(place, 1.03, ends[1], ha="center", va="bottom", fontsize=7.5)
            labels.append(one.key.partition(".")[2])
        axes.set_xticks(range(len(space)), labels, rotation=55, ha="right", fontsize=8)
        axes.tick_params(axis="x", pad=12)
        axes.set_yticks([])
        axes.set_ylim(-0.02, 1.02)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x", color="#B0B0B0")
        figure.colorbar(ScalarMappable(shade, colours), ax=axes, label=name, shrink=0.8, aspect=30)

    return Rendered(
        "parallel",
        "All keys together",
        f"A line for each finished trial through its values, each key from the least to the greatest tried; darker "
        f"lines have more {name}.",
        f"Parallel coordinates of {len(order)} trials over {len(space)} keys.",
        render(draw, 4.4),
    )


def _courses(trials: Sequence[Tried], name: str) -> Rendered | None:
    drawn = [trial for trial in trials if trial.course][-MOST_LINES:]
    if not drawn:
        return None
    best = max((trial for trial in drawn if trial.values), key=lambda trial: trial.values or (0.0,), default=None)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        looks: dict[str, dict[str, Any]] = {
            "stopped early": {"color": ORANGE, "marker": "x", "markevery": [-1], "markersize": 4},
            "others": {"color": GREY},
        }
        labels = ["stopped early" if trial.state == "pruned" else "others" for trial in drawn]
        for place, (trial, label) in enumerate(zip(drawn, labels, strict=True)):
            levels, values = zip(*sorted(trial.course.items()), strict=True)
            shown = label if label not in labels[:place] else None  # once in the legend
            axes.plot(levels, values, linewidth=0.9, alpha=0.8, label=shown, **looks[label])
        if best is not None:
            axes.plot(*zip(*sorted(best.course.items()), strict=True), color=BLUE, linewidth=2.0, label="best")
        axes.set_xlabel("level: tenths of the trainings, one after another")
        axes.set_ylabel(f"{name} so far")
        _whole_numbers(axes)
        axes.legend()

    return Rendered(
        "courses",
        "How trials went",
        f"{name} of each trial at its validation points: of its trainings until then together.",
        f"Lines of {len(drawn)} trials over their levels, {sum(trial.state == 'pruned' for trial in drawn)} of them "
        "stopped early.",
        render(draw, 3.6),
    )


def _value_axis(axes: Axes, one: Searched) -> None:
    """Ticks of a key's axis."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.tick_params(labelsize=7.5)
    if one.choices:
        axes.set_xticks(range(len(one.choices)), one.choices, rotation=45 if len(one.choices) > 4 else 0)
        axes.set_xlim(-0.5, len(one.choices) - 0.5)
        return
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: _value_text(one, place)))


def _value_text(one: Searched, place: float) -> str:
    """A value at its place on the axis."""
    if one.choices:
        return one.choices[round(place)]
    return f"{10.0**place:.2g}" if one.log else f"{place:.3g}"


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
