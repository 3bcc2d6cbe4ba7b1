"""Generalisation of a training: values in training and in validation over time, and the KL of the policy.

Made from the rows that training logged (columns ``generalisation_...``, docs/reference/worlds.md). The test window has
no part.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, NotRequired

import numpy as np
import pandas as pd
from typing_extensions import TypedDict

from finflow.evaluation.report.drawing import BLUE, GREEN, PURPLE, Rendered, render
from finflow.evaluation.report.report_numbers import Number, about
from finflow.evaluation.report.section import ROW, Cell, Section, Table, make_table
from finflow.evaluation.statistics.metrics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREFIX = "generalisation_"
PLACES = {"worlds": ("worlds", GREEN), "train": ("training", PURPLE), "validation": ("validation", BLUE)}
FIGURES = tuple(f"{place}_{kind}" for place in PLACES for kind in ("value", "sharpe"))
BEST = "validation_value"
BEST_POINT = "best by validation value"


class GeneralisationPoint(TypedDict):
    """Value of the policy at one point of its training."""

    update: Annotated[int, about("Gradient updates before it.")]
    worlds_value: Annotated[Number, about("Mean reward of a decision in the synthetic training markets.")]
    worlds_sharpe: Annotated[Number, about("Sharpe ratio a year, net, in the synthetic training markets.")]
    train_value: Annotated[Number, about("Mean reward of a decision in the real training window.")]
    train_sharpe: Annotated[Number, about("Sharpe ratio a year, net, in the real training window.")]
    validation_value: Annotated[Number, about("Mean reward of a decision in the validation window.")]
    validation_sharpe: Annotated[Number, about("Sharpe ratio a year, net, in the validation window.")]
    gap: Annotated[Number, about("Value in training less that in validation.")]
    kl: Annotated[Number, about("KL from the pretrained policy, nats per free dimension of the action.")]


class Generalisation(TypedDict):
    """Generalisation of the training; the test window has no part in it."""

    points: Annotated[int, about("Points measured.")]
    first: Annotated[GeneralisationPoint, about("The first measured.")]
    best: NotRequired[Annotated[GeneralisationPoint, about("The best by validation value.")]]
    last: Annotated[GeneralisationPoint, about("The last.")]


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
        "deployed, simulated in segments of an episode. Worlds are what it learned in; the gap is training less "
        "validation. KL says how far it is from the policy as pretrained, in nats per free dimension of the action.",
    )
    return Section("generalisation", "Generalisation", numbers, (_table(points),), (_figure(rows),), words)


def _point(row: pd.Series) -> dict[str, object]:
    measured = {key: float(row.get(PREFIX + key, math.nan)) for key in (*FIGURES, "gap", "kl")}
    return {"update": int(row["update"]), **measured}


def _table(points: dict[str, pd.Series]) -> Table:
    named = {"first": "first measured", "best": BEST_POINT, "last": "last"}
    columns = (
        ("update", Cell((ROW, "update"), ",", 0)),
        *((heading, Cell((ROW, f"{place}_value"), "%", 3)) for place, (heading, _) in PLACES.items()),
        ("gap", Cell((ROW, "gap"), "%", 3, plus=True)),
        ("Sharpe, worlds", Cell((ROW, "worlds_sharpe"))),
        ("training", Cell((ROW, "train_sharpe"))),
        ("validation", Cell((ROW, "validation_sharpe"))),
        ("KL", Cell((ROW, "kl"))),
    )
    rows = [((name,), heading) for name, heading in named.items() if name in points]
    caption = "Values and the gap in percent a decision. A dash: not measured, as worlds are where there is one alone."
    return make_table("Value, gap and KL", "point", rows, columns, caption, marked=BEST_POINT)


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
        "Value in training and in validation",
        "A gap that widens between training and validation is overfitting.",
        f"Line charts over {len(rows)} points of the training. The gap in value went from {1e4 * gap[0]:.2f} to "
        f"{1e4 * gap[-1]:.2f} basis points a decision.",
        render(draw, 3.0),
    )
