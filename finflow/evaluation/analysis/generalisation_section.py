"""Generalisation of a training: values in training and in validation over time, and the KL of the policy.

Made from the rows that training logged (columns ``generalisation_...``, docs/reference/worlds.md). The test window has
no part.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from finflow.evaluation.report.drawing import BLUE, GREEN, PURPLE, Rendered, render
from finflow.evaluation.report.section import Cell, Row, Section, Table
from finflow.evaluation.statistics.metrics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREFIX = "generalisation_"
PLACES = {"worlds": ("worlds", GREEN), "train": ("training", PURPLE), "validation": ("validation", BLUE)}
FIGURES = tuple(f"{place}_{kind}" for place in PLACES for kind in ("value", "sharpe"))
BEST = "validation_value"


def section(training: pd.DataFrame) -> Section | None:
    """The section of a report; None where the training measured nothing of the kind.

    Parameters
    ----------
    training
        Rows as training logged them, in order.
    """
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
    numbers: dict[str, object] = {name: _point(row) for name, row in points.items()}
    numbers["points"] = len(rows)
    words = (
        "Value is the mean reward of a decision and Sharpe the ratio a year, both net, of the policy that would be "
        "deployed, played in pieces of an episode. Worlds are what it learned in; the gap is training less validation. "
        "KL says how far it is from the policy as pretrained, in nats per free dimension of the action.",
    )
    return Section("generalisation", "Generalisation", numbers, (_table(points),), (_figure(rows),), words)


def _point(row: pd.Series) -> dict[str, object]:
    keys = (*FIGURES, "gap", "kl")
    found: dict[str, object] = {"update": int(row["update"])}
    for key in keys:
        value = float(row.get(PREFIX + key, math.nan))
        found[key] = value if math.isfinite(value) else None
    return found


def _table(points: dict[str, pd.Series]) -> Table:
    heads = ("update", "worlds", "training", "validation", "gap", "Sharpe, worlds", "training", "validation", "KL")
    named = {"first": "first measured", "best": "best by validation value", "last": "last"}
    rows = []
    for name in (name for name in named if name in points):
        values = tuple(Cell((name, f"{place}_value"), "%", 3) for place in PLACES)
        sharpes = tuple(Cell((name, f"{place}_sharpe")) for place in PLACES)
        update, gap, moved = Cell((name, "update"), ",", 0), Cell((name, "gap"), "%", 3, plus=True), Cell((name, "kl"))
        rows.append(Row(named[name], (update, *values, gap, *sharpes, moved), marked=name == "best"))
    caption = "Values and the gap in percent a decision. A dash: not measured, as worlds are where there is one alone."
    return Table("Worth and distance", ("point", *heads), tuple(rows), caption)


def _figure(rows: pd.DataFrame) -> Rendered:
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
        "Worth in training and in validation",
        "Where the curves of training and validation part, the policy learns what does not last.",
        f"Line charts over {len(rows)} points of the training. The gap in value went from {1e4 * gap[0]:.2f} to "
        f"{1e4 * gap[-1]:.2f} basis points a decision.",
        render(draw, 3.0),
    )
