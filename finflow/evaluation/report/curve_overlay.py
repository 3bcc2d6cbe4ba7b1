"""Places of the curves and legend entries in a drawn figure, so that a page can grey out what is not asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

POINTS = 500  # of a curve, about: a figure is some 900 pixels wide
_POINT = 1.0 / 72.0  # inches


class Box(NamedTuple):
    """A rectangle in pixels of the figure, from its upper left corner."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Curve:
    """One curve of a figure, and its entry in the legend.

    Attributes
    ----------
    name : str
        As the legend has it.
    width : float
        In pixels.
    dashes : str
        As SVG's ``stroke-dasharray``; empty for a solid line.
    path : str
        As SVG's ``d``, in pixels of the figure; a new part begins after values that are missing.
    entry : Box
        Of the legend, handle and text.
    """

    name: str
    colour: str
    width: float
    dashes: str
    path: str
    entry: Box


@dataclass(frozen=True)
class CurveOverlay:
    """Curves over a figure.

    Attributes
    ----------
    width, height : float
        Of the figure, in pixels.
    area : Box
        Of the axes, which is greyed.
    curves : tuple of Curve
        In the order of the legend.
    """

    width: float
    height: float
    area: Box
    curves: tuple[Curve, ...]


def measure_curves(figure: Figure) -> CurveOverlay:
    """Find the curves of a figure with one axes and one legend under it, once it has been drawn.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Every entry of its legend is a line of its axes, under the same label.
    """
    (axes,), (legend,) = figure.axes, figure.legends
    lines = {str(line.get_label()): line for line in axes.lines}
    curves = []
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        if handle is None:
            continue
        line, (left, right) = lines[text.get_text()], (handle.get_window_extent(), text.get_window_extent())
        box = _box(figure, left.x0, min(left.y0, right.y0), right.x1, max(left.y1, right.y1))
        curves.append(_curve(figure, line, text.get_text(), box))
    width, height = figure.bbox.width, figure.bbox.height
    return CurveOverlay(width, height, _box(figure, *axes.get_window_extent().extents), tuple(curves))


def _curve(figure: Figure, line: Line2D, name: str, entry: Box) -> Curve:
    pixels = float(line.get_linewidth()) * _POINT * figure.dpi
    spots = line.get_transform().transform(line.get_xydata())
    spots[:, 1] = figure.bbox.height - spots[:, 1]
    dashes = {"--": (3.7, 1.6), "-.": (6.4, 1.6, 1.0, 1.6), ":": (1.0, 1.65)}.get(str(line.get_linestyle()), ())
    steps, drawing = [], False
    for x, y in spots[:: -max(len(spots) // POINTS, 1)][::-1]:  # the last one among them
        if np.isfinite(y):
            steps.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = bool(np.isfinite(y))
    return Curve(
        name,
        str(line.get_color()),
        round(pixels, 2),
        " ".join(f"{part * pixels:.1f}" for part in dashes),
        "".join(steps),
        entry,
    )


def _box(figure: Figure, left: float, bottom: float, right: float, top: float) -> Box:
    """A rectangle of matplotlib's, which counts from below."""
    corners = (left, figure.bbox.height - top, right - left, top - bottom)
    return Box(*(round(float(number), 1) for number in corners))
