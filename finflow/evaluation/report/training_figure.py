"""The figure of how an agent learned, from the rows that training logged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.evaluation.report.drawing import BLUE, GREEN, PURPLE, Rendered, render, thinned
from finflow.evaluation.statistics.metrics import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARPE_COLUMNS = ("validation_sharpe", "sharpe")  # the first of these that the record has is drawn
PHASE_COLOURS = {"offline": PURPLE, "online": BLUE}  # any other phase is green
COLUMNS = 3  # loss panels in a row
MOST_POINTS = 600


def training(frame: pd.DataFrame) -> Rendered | None:
    """Draw the validation Sharpe ratio and every loss over the gradient updates.

    Parameters
    ----------
    frame
        Rows as training logged them, in order. Columns `phase` and `update` where there are any; the validation
        Sharpe ratio is the first of `SHARPE_COLUMNS`; every column whose name ends in "loss" gets a panel. An
        `update` that starts over in a later phase is counted on from where the phase before it ended.

    Returns
    -------
    Rendered or None
        None where the record has neither.
    """
    phases = _phases(frame)
    positions = _positions(frame, phases)
    curves = {str(name): _numbers(frame[name]) for name in frame.columns if str(name).endswith("loss")}
    curves = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    sharpe = next((_numbers(frame[name]) for name in SHARPE_COLUMNS if name in frame), np.empty(0))
    if not np.isfinite(sharpe).any():
        sharpe = np.empty(0)
    if not curves and not sharpe.size:
        return None
    rows = -(-len(curves) // COLUMNS)

    def draw(figure: Figure) -> None:
        ratios = [1.5] * bool(sharpe.size) + [1.0] * rows
        grid = figure.add_gridspec(len(ratios), COLUMNS, height_ratios=ratios)
        if sharpe.size:
            axes = figure.add_subplot(grid[0, :])
            _draw_curve(axes, positions, sharpe, phases, marker="o")
            axes.set_title("Sharpe ratio on the validation window (higher is better)")
            axes.set_xlabel("gradient updates")
            if len(np.unique(phases)) > 1:
                axes.legend(loc="best")
        for number, (name, values) in enumerate(curves.items()):
            axes = figure.add_subplot(grid[number // COLUMNS + bool(sharpe.size), number % COLUMNS])
            _draw_curve(axes, positions, values, phases, marker="")
            axes.set_title(_readable(name))

    told = []
    if sharpe.size:
        best = int(np.nanargmax(sharpe))
        told.append(f"The best validation Sharpe ratio was {sharpe[best]:.2f}, after {positions[best]:,.0f} updates.")
    if curves:
        told.append(f"Losses: {', '.join(_readable(name) for name in curves)}.")
    return Rendered(
        "training",
        "Training curves",
        "Sharpe ratio on the validation window, and the losses, over the gradient updates: offline from recorded data, "
        "online from the agent's own trading in the training window.",
        f"Line charts of the training. {' '.join(told)}",
        render(draw, 0.3 + 2.4 * bool(sharpe.size) + 1.6 * rows),
    )


def _draw_curve(axes: Axes, positions: Array, values: Array, phases: NDArray[np.str_], marker: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for phase in dict.fromkeys(phases.tolist()):
        chosen = np.flatnonzero((phases == phase) & np.isfinite(values))
        chosen = chosen[thinned(len(chosen), MOST_POINTS)]
        look: dict[str, Any] = {
            "color": PHASE_COLOURS.get(phase, GREEN),
            "marker": marker or ("o" if len(chosen) == 1 else ""),  # a line of one point is not seen
            "markersize": 3.5,
            "linewidth": 1.1,
        }
        axes.plot(positions[chosen], values[chosen], label=phase, **look)
    axes.xaxis.set_major_locator(MaxNLocator(8 if marker else 4, integer=True))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}")
    )


def _phases(frame: pd.DataFrame) -> NDArray[np.str_]:
    """Name of each row's phase, "training" where the record names none."""
    if "phase" not in frame:
        return np.full(len(frame), "training")
    return frame["phase"].fillna("training").astype(str).to_numpy(dtype=np.str_)


def _positions(frame: pd.DataFrame, phases: NDArray[np.str_]) -> Array:
    """Gradient updates done at each row, counted through all phases; the row number where none are recorded."""
    if "update" not in frame or len(frame) == 0:
        return np.arange(len(frame), dtype=np.float64)
    updates = frame["update"].ffill().fillna(0.0).to_numpy(dtype=np.float64)
    positions, done = np.empty(len(frame)), 0.0
    for phase in dict.fromkeys(phases.tolist()):
        chosen = phases == phase
        offset = done if updates[chosen][0] < done else 0.0
        positions[chosen] = updates[chosen] + offset
        done = float(positions[chosen].max())
    return positions


def _numbers(column: pd.Series) -> Array:
    """The column as floats; what is no finite number becomes NaN."""
    values = pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(values), values, np.nan)


def _readable(name: str) -> str:
    return name.replace("_", " ").replace("/", " ")
