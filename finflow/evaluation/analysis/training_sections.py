"""Sections of a report made from the rows that training logged; the test window has no part.

Generalisation (columns ``generalisation_...``, docs/reference/regularisation.md): values in training and in validation
over time, and the KL of the policy. Out-of-fold evidence, from the row logged when the finished agent was judged, and
the calibration of its critics on the advantages of actions. Where an agent is judged on another market, the distance
of the features there from those of its training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from finflow.arrays import FloatArray
from finflow.evaluation.page.drawing import BLUE, PURPLE, Rendered, render
from finflow.evaluation.page.section import ROW, Cell, Section, make_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREFIX = "generalisation_"
PLACES = {"train": ("training", PURPLE), "validation": ("validation", BLUE)}
FIGURES = tuple(f"{place}_{kind}" for place in PLACES for kind in ("value", "sharpe"))
KEYS = (*FIGURES, "gap", "kl")
BEST = "validation_value"
BEST_POINT = "best by validation value"
REFERENCES = ("equal-weight", "inverse-volatility")
WINDOWS = ("training", "validation")


def sections_of_training(training: pd.DataFrame | None) -> list[Section]:
    """Sections that training's rows make: evidence out of fold and generalisation, where they were measured."""
    found = () if training is None else (out_of_fold_section(training), generalisation_section(training))
    return [one for one in found if one is not None]


def generalisation_section(training: pd.DataFrame) -> Section | None:
    """Values in training and in validation over time, and the KL of the policy; None where none was measured."""
    rows = training.reindex(columns=["update", BEST, *(PREFIX + key for key in KEYS)])
    rows = rows.set_axis(["update", "score", *KEYS], axis=1).apply(pd.to_numeric, errors="coerce")
    rows = rows[rows["train_value"].notna()]
    if rows.empty:
        return None
    points = {"first": rows.iloc[0], "last": rows.iloc[-1]}
    if rows["score"].notna().any():
        points["best"] = rows.iloc[int(np.nanargmax(rows["score"]))]
    numbers: dict[str, object] = {
        name: {"update": int(row["update"]), **{key: float(row[key]) for key in KEYS}} for name, row in points.items()
    }
    numbers["points"] = len(rows)
    named = {"first": "first measured", "best": BEST_POINT, "last": "last"}
    columns = (
        ("update", Cell((ROW, "update"), ",", 0)),
        *((heading, Cell((ROW, f"{place}_value"), "%", 3)) for place, (heading, _) in PLACES.items()),
        ("gap", Cell((ROW, "gap"), "%", 3, plus=True)),
        ("Sharpe, training", Cell((ROW, "train_sharpe"))),
        ("validation", Cell((ROW, "validation_sharpe"))),
        ("KL", Cell((ROW, "kl"))),
    )
    places = [((name,), heading) for name, heading in named.items() if name in points]
    caption = "Values and the gap in percent a decision."
    table = make_table("Value, gap and KL", "point", places, columns, caption, marked=BEST_POINT)
    words = (
        "Value is the mean reward of a decision and Sharpe the ratio a year, both net, of the policy that would be "
        "deployed, simulated in segments of an episode. The gap is training less validation. KL says how far it is "
        "from the policy as pretrained, in nats per free dimension of the action.",
    )
    drawn = (_points_figure(rows),) if len(rows) > 2 else ()
    return Section("generalisation", "Generalisation", numbers, (table,), drawn, words)


def _points_figure(points: pd.DataFrame) -> Rendered:
    columns: dict[str, FloatArray] = {str(name): points[name].to_numpy(np.float64) for name in points}
    updates, gap = columns["update"], columns["gap"]
    panels: dict[str, list[tuple[FloatArray, str, str | None]]] = {
        "Value, basis points a decision": [
            (1e4 * columns[f"{place}_value"], colour, label) for place, (label, colour) in PLACES.items()
        ],
        "Sharpe ratio a year": [
            (columns[f"{place}_sharpe"], colour, label) for place, (label, colour) in PLACES.items()
        ],
    }
    if np.isfinite(columns["kl"]).any():
        panels["KL from the pretrained policy"] = [(columns["kl"], BLUE, None)]

    def draw(figure: Figure) -> None:
        every = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, (title, lines) in zip(every, panels.items(), strict=True):
            for values, colour, label in lines:
                axes.plot(updates, values, color=colour, label=label, marker="o", markersize=3.0)
            axes.set_title(title)
            axes.set_xlabel("gradient updates")
        every[0].legend(loc="best")

    return Rendered(
        "generalisation-curves",
        "Value in training and in validation",
        "A gap that widens between training and validation is overfitting.",
        f"Line charts over {len(points)} points of the training. The gap in value went from {1e4 * gap[0]:.2f} to "
        f"{1e4 * gap[-1]:.2f} basis points a decision.",
        render(draw, 3.0),
    )


#: Key of a figure of the blocks -> its column in the rows of training, heading, unit and decimals.
BLOCKS_SHOWN = {
    "t_statistic": ("out_of_fold_t", "t", "", 1),
    "selection": ("out_of_fold_selection", "allowance", "", 1),
    "gain": ("out_of_fold_gain", "gain a bar", "%", 4),
    "confidence": ("confidence", "confidence", "%", 0),
    "confidence_unshrunk": ("confidence_unshrunk", "before shrinkage", "%", 0),
    "forgone": ("out_of_fold_forgone", "lost to shrinkage", "%", 4),
}


def evidence_of(training: pd.DataFrame) -> pd.Series | None:
    """The row logged when the finished agent was judged on the blocks left out; None where it was not."""
    found = training[training["out_of_fold_t"].notna()] if "out_of_fold_t" in training else training[:0]
    return None if found.empty else found.iloc[-1]


def held_instead(evidence: pd.Series) -> str:
    """Reference that has what the learned policy has not, in words."""
    return REFERENCES[int(evidence["reference"])].replace("-", " ")


def out_of_fold_section(training: pd.DataFrame) -> Section | None:
    """Out-of-fold evidence, and the calibration of the critics; None where the training has none."""
    if (row := evidence_of(training)) is None:
        return None
    critics = {
        window: {name: float(row[f"{window}_advantage_{name}"]) for name in ("slope", "slope_error", "correlation")}
        for window in WINDOWS
        if f"{window}_advantage_slope" in row
    }
    reference, held = REFERENCES[int(row["reference"])], held_instead(row)
    numbers: dict[str, object] = {key: float(row[column]) for key, (column, *_) in BLOCKS_SHOWN.items()}
    numbers |= {"reference": reference, "critics": critics}
    columns = [
        (heading, Cell((ROW, key), unit, decimals, plus=key == "gain"))
        for key, (_, heading, unit, decimals) in BLOCKS_SHOWN.items()
    ]
    caption = "Gain and what is lost to shrinkage in percent of log return a day, the unit of the reward."
    tables = [make_table("Evidence of the blocks", "gain", [((), f"over {held}")], columns, caption)]
    if critics:
        measured = (("slope", "slope"), ("standard error", "slope_error"), ("correlation", "correlation"))
        caption = (
            "Exact advantages of many actions in the same state, regressed on those of the critics: a slope of 1 "
            "means that an estimated advantage of x was x on average."
        )
        windows = [(("critics", window), window) for window in critics]
        cells = [(heading, Cell((ROW, key))) for heading, key in measured]
        tables.append(make_table("Calibration of the critics", "window", windows, cells, caption))
    words = (
        "The training years were cut into blocks; for each a policy was trained without it and backtested on it, net "
        "of costs. The stage of training and the blend with a reference that gained most there, less one "
        "standard error over the blocks, were chosen, and the blend was shrunk by 1 - 3 / t².",
        "The learned policy has the weight that this evidence supports."
        if row["confidence"] > 0.0
        else f"Nothing was found that holds out of sample; this agent holds {held}.",
    )
    return Section("out_of_fold", "Out-of-sample evidence", numbers, tuple(tables), words=words)


SHOWN = 10  # features in the table of distances
Values = Mapping[str, FloatArray]


def measure_distance(trained: Values, judged: Values) -> dict[str, Any]:
    """Compare values of features, by name, in a judged window with those in a training window.

    Features are compared as the agent reads them, each scaled by the training window of its own market. Gives
    ``outside``, the share of all values outside the range of training, which are extrapolation for the networks;
    ``largest`` and ``largest_of``, the largest shift of a feature's mean; and ``features``, by falling absolute shift:
    share ``outside``, ``shift`` of the mean and ``furthest`` value outside, both in deviations of training. One that
    was constant in training counts with a deviation of 1.
    """
    found: dict[str, dict[str, float]] = {}
    for name, values in judged.items():
        known = trained[name]
        deviation = float(known.std()) if known.std() > 1e-12 else 1.0
        beyond = np.maximum(known.min() - values, values - known.max())
        found[name] = dict(
            outside=float((beyond > 0.0).mean()),
            shift=(float(values.mean()) - float(known.mean())) / deviation,
            furthest=max(0.0, float(beyond.max())) / deviation,
        )
    ordered = dict(sorted(found.items(), key=lambda item: -abs(item[1]["shift"])))
    counts = np.array([len(judged[name]) for name in ordered])
    shares = np.array([one["outside"] for one in ordered.values()])
    first = next(iter(ordered))
    outside = float((shares * counts).sum() / counts.sum())
    return dict(outside=outside, largest=abs(ordered[first]["shift"]), largest_of=first, features=ordered)


def distance_section(found: Mapping[str, Any]) -> Section:
    title = "Distance from the market of training"
    if "features" not in found:
        return Section("feature_distance", title, dict(found), words=(f"{found['unknown']}.",))
    words: tuple[str | Cell, ...] = (
        "The agent was trained on another market. Of the values that it reads here, ",
        Cell(("outside",), "%", 2),
        " lie outside the range of its training; the mean of ",
        str(found["largest_of"]),
        " is ",
        Cell(("largest",), "", 2),
        " deviations of training away, further than that of any other feature. Features are scaled by the training "
        "window of each market, as the agent reads them.",
    )
    names = list(found["features"])[:SHOWN]
    columns = (
        ("Mean less that of training, in deviations", Cell(("features", ROW, "shift"), "", 2, plus=True)),
        ("Outside the range of training", Cell(("features", ROW, "outside"), "%", 2)),
        ("Furthest outside, in deviations", Cell(("features", ROW, "furthest"), "", 2)),
    )
    more = len(found["features"]) - len(names)
    caption = f"The {len(names)} that differ most; metrics.json has the other {more}." if more else ""
    table = make_table("Features", "Feature", names, columns, caption)
    return Section("feature_distance", title, dict(found), (table,), words=(words,))
