"""Sections of a report made from the rows that training logged; the test window has no part.

Generalisation (columns ``generalisation_...``, docs/reference/regularisation.md): values in training and in validation
over time, and the KL of the policy. Out-of-fold evidence, from the row logged when the finished agent was judged, and
the calibration of its critics on the advantages of actions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from finflow.evaluation.page.drawing import BLUE, GREY, PURPLE, Rendered, render
from finflow.evaluation.page.section import ROW, Cell, Section, Table, make_table
from finflow.evaluation.statistics.metrics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREFIX = "generalisation_"
PLACES = {"train": ("training", PURPLE), "validation": ("validation", BLUE)}
FIGURES = tuple(f"{place}_{kind}" for place in PLACES for kind in ("value", "sharpe"))
BEST = "validation_value"
BEST_POINT = "best by validation value"
REFERENCES = ("equal-weight", "inverse-volatility")
WINDOWS = ("training", "validation")


def sections_of_training(training: pd.DataFrame | None) -> list[Section]:
    """Sections that training's rows make: evidence out of fold and generalisation, where they were measured."""
    if training is None:
        return []
    found = (out_of_fold_section(training), generalisation_section(training))
    return [one for one in found if one is not None]


def generalisation_section(training: pd.DataFrame) -> Section | None:
    """Values in training and in validation over time, and the KL of the policy; None where none was measured."""
    column = PREFIX + "train_value"
    if column not in training:
        return None
    rows = training[training[column].notna()]
    if not len(rows):
        return None
    points = {"first": rows.iloc[0], "last": rows.iloc[-1]}
    scores = pd.to_numeric(rows[BEST], errors="coerce").to_numpy(np.float64) if BEST in rows else np.empty(0)
    if np.isfinite(scores).any():
        points["best"] = rows.iloc[int(np.nanargmax(scores))]
    keys = (*FIGURES, "gap", "kl")
    numbers: dict[str, object] = {
        name: {"update": int(row["update"]), **{key: float(row.get(PREFIX + key, math.nan)) for key in keys}}
        for name, row in points.items()
    }
    numbers["points"] = len(rows)
    words = (
        "Value is the mean reward of a decision and Sharpe the ratio a year, both net, of the policy that would be "
        "deployed, simulated in segments of an episode. The gap is training less validation. KL says how far it is "
        "from the policy as pretrained, in nats per free dimension of the action.",
    )
    return Section(
        "generalisation", "Generalisation", numbers, (_points_table(points),), (_points_figure(rows),), words
    )


def _points_table(points: dict[str, pd.Series]) -> Table:
    named = {"first": "first measured", "best": BEST_POINT, "last": "last"}
    columns = (
        ("update", Cell((ROW, "update"), ",", 0)),
        *((heading, Cell((ROW, f"{place}_value"), "%", 3)) for place, (heading, _) in PLACES.items()),
        ("gap", Cell((ROW, "gap"), "%", 3, plus=True)),
        ("Sharpe, training", Cell((ROW, "train_sharpe"))),
        ("validation", Cell((ROW, "validation_sharpe"))),
        ("KL", Cell((ROW, "kl"))),
    )
    rows = [((name,), heading) for name, heading in named.items() if name in points]
    caption = "Values and the gap in percent a decision."
    return make_table("Value, gap and KL", "point", rows, columns, caption, marked=BEST_POINT)


def _points_figure(rows: pd.DataFrame) -> Rendered:
    updates = rows["update"].to_numpy(dtype=np.float64)

    def column(name: str) -> Array:
        if PREFIX + name not in rows:
            return np.full(len(rows), np.nan)
        values: Array = rows[PREFIX + name].to_numpy(dtype=np.float64)
        return values

    moved = column("kl")
    with_kl = bool(np.isfinite(moved).any())

    def draw(figure: Figure) -> None:
        axes: list[Axes] = list(np.atleast_1d(figure.subplots(1, 2 + with_kl)))
        for kind, panel in (("value", axes[0]), ("sharpe", axes[1])):
            for place, (label, colour) in PLACES.items():
                values = column(f"{place}_{kind}")
                if np.isfinite(values).any():
                    scaled = 1e4 * values if kind == "value" else values
                    panel.plot(updates, scaled, color=colour, label=label, marker="o", markersize=3.0)
            panel.set_title("Value, basis points a decision" if kind == "value" else "Sharpe ratio a year")
            panel.set_xlabel("gradient updates")
        axes[0].legend(loc="best")
        if with_kl:
            axes[2].plot(updates, moved, color=BLUE, marker="o", markersize=3.0)
            axes[2].set_title("KL from the pretrained policy")
            axes[2].set_xlabel("gradient updates")

    gap = column("gap")
    return Rendered(
        "generalisation-curves",
        "Value in training and in validation",
        "A gap that widens between training and validation is overfitting.",
        f"Line charts over {len(rows)} points of the training. The gap in value went from {1e4 * gap[0]:.2f} to "
        f"{1e4 * gap[-1]:.2f} basis points a decision.",
        render(draw, 3.0),
    )


def out_of_fold_section(training: pd.DataFrame) -> Section | None:
    """Out-of-fold evidence, and the calibration of the critics; None where the training has none."""
    if "out_of_fold_t" not in training:
        return None
    rows = training[training["out_of_fold_t"].notna()]
    if not len(rows):
        return None
    row = rows.iloc[-1]
    critics = {window: _agreement(row, window) for window in WINDOWS if f"{window}_advantage_groups" in row}
    reference = REFERENCES[int(row["reference"])]
    numbers: dict[str, object] = {
        "reference": reference,
        "confidence": float(row["confidence"]),
        "confidence_unshrunk": float(row["confidence_unshrunk"]),
        "t_statistic": float(row["out_of_fold_t"]),
        "selection": float(row["out_of_fold_selection"]),
        "gain": float(row["out_of_fold_gain"]),
        "forgone": float(row["out_of_fold_forgone"]),
        "critics": critics,
    }
    columns = (
        ("t", Cell((ROW, "t_statistic"), decimals=1)),
        ("allowance", Cell((ROW, "selection"), decimals=1)),
        ("gain a bar", Cell((ROW, "gain"), "%", 4, plus=True)),
        ("confidence", Cell((ROW, "confidence"), "%", 0)),
        ("before shrinkage", Cell((ROW, "confidence_unshrunk"), "%", 0)),
        ("lost to shrinkage", Cell((ROW, "forgone"), "%", 4)),
    )
    caption = "Gain and what is lost to shrinkage in percent of log return a day, the unit of the reward."
    over = [((), f"over {reference.replace('-', ' ')}")]
    tables = [make_table("Evidence of the blocks", "gain", over, columns, caption)]
    if critics:
        tables.append(_critics_table(list(critics)))
    figures = (_critics_figure(critics),) if critics else ()
    return Section("out_of_fold", "Out-of-sample evidence", numbers, tuple(tables), figures, _words(row, reference))


def _agreement(row: pd.Series, window: str) -> dict[str, Any]:
    """Agreement in a window, as training logged it: groups as lists of estimate, exact advantage and error."""
    groups = zip(*json.loads(row[f"{window}_advantage_groups"]), strict=True)
    return dict(
        slope=float(row[f"{window}_advantage_slope"]),
        slope_error=float(row[f"{window}_advantage_slope_error"]),
        correlation=float(row[f"{window}_advantage_correlation"]),
        groups=[dict(critics=estimated, exact=exact, error=error) for estimated, exact, error in groups],
    )


def _words(row: pd.Series, reference: str) -> tuple[str, ...]:
    held = reference.replace("-", " ")
    how = (
        "The training years were cut into blocks; for each a policy was trained without it and backtested on it, net "
        "of costs. The stage of training and the blend with a reference that gained most there, less one "
        "standard error over the blocks, were chosen, and the blend was shrunk by 1 - 3 / t²."
    )
    found = "The learned policy has the weight that this evidence supports."
    if not row["confidence"] > 0.0:
        found = f"Nothing was found that holds out of sample; this agent holds {held}."
    return how, found


def _critics_table(windows: list[str]) -> Table:
    columns = (
        ("slope", Cell((ROW, "slope"))),
        ("standard error", Cell((ROW, "slope_error"))),
        ("correlation", Cell((ROW, "correlation"))),
    )
    rows = [(("critics", window), window) for window in windows]
    caption = (
        "Exact advantages of many actions in the same state, regressed on those of the critics: a slope of 1 "
        "means that an estimated advantage of x was x on average."
    )
    return make_table("Calibration of the critics", "window", rows, columns, caption)


def _critics_figure(critics: Mapping[str, Mapping[str, Any]]) -> Rendered:
    def draw(figure: Figure) -> None:
        panels: list[Axes] = list(np.atleast_1d(figure.subplots(1, len(critics), sharex=True, sharey=True)))
        for panel, (window, agreement) in zip(panels, critics.items(), strict=True):
            groups = agreement["groups"]
            estimated, exact, error = (np.array([one[key] for one in groups]) for key in ("critics", "exact", "error"))
            ends = [float(estimated.min()), float(estimated.max())]
            panel.plot(ends, ends, color=GREY, linewidth=1.0, label="calibrated")
            label = "tenth of the actions"
            panel.errorbar(estimated, exact, 2.0 * error, color=BLUE, fmt="o", markersize=3.5, label=label)
            panel.set_title(window)
            panel.set_xlabel("advantage by the critics")
        panels[0].set_ylabel("exact advantage")
        panels[0].legend(loc="best")

    slopes = ", ".join(f"{window} {agreement['slope']:.2f}" for window, agreement in critics.items())
    return Rendered(
        "critics-and-moves",
        "Calibration of the critics",
        "Actions in tenths by the critics' advantage; bars are two standard errors over blocks of bars. Both in "
        "the unit of rewards, over the decisions in which differences fade.",
        f"Charts of exact advantage over the critics' for {len(critics)} windows; slopes: {slopes}.",
        render(draw, 3.0),
    )
