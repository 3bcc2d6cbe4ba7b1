"""Distance of the features that an agent is judged on from those of its training, where it is judged on another market.

Features are compared as the agent reads them: each less its mean and over its deviation in the training window of its
own market. Values outside the range of training are extrapolation for the networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.page.section import ROW, Cell, Section, make_table

SHOWN = 10  # features in the table

Values = Mapping[str, NDArray[np.float64]]


def measure_distance(trained: Values, judged: Values) -> dict[str, Any]:
    """Compare features of a judged window with those of a training.

    Parameters
    ----------
    trained, judged : mapping of str to float64 (n,)
        Name -> values, of the same names; at least one value each.

    Returns
    -------
    dict
        ``outside``, the share of all values outside the range of training; ``largest`` and ``largest_of``, the largest
        shift of a feature's mean; and ``features``, by falling absolute shift: share ``outside``, ``shift`` of the mean
        and ``furthest`` value outside, both in deviations of training. One that was constant in
        training counts with a deviation of 1.
    """
    found: dict[str, dict[str, float]] = {}
    for name, values in judged.items():
        known = trained[name]
        deviation = float(known.std())
        deviation = deviation if deviation > 1e-12 else 1.0
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
    return dict(
        outside=float((shares * counts).sum() / counts.sum()),
        largest=abs(ordered[first]["shift"]),
        largest_of=first,
        features=ordered,
    )


def section(found: Mapping[str, Any]) -> Section:
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
    return Section(
        "feature_distance",
        title,
        dict(found),
        (make_table("Features", "Feature", names, columns, caption),),
        (),
        (words,),
    )
