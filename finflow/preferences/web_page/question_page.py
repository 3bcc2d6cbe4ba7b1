"""The page of a question as HTML: two paths side by side, without their names, which would bias the answer."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from finflow.evaluation.page.drawing import AREA_COLOURS, GREY, LIGHT_GREY
from finflow.evaluation.page.page_numbers import show
from finflow.evaluation.statistics.metrics import drawdown_series
from finflow.preferences.judged_pairs import measure
from finflow.preferences.segment_paths import PortfolioPath
from finflow.preferences.web_page.answer_session import AnswerSession

if TYPE_CHECKING:
    from jinja2 import Environment

FloatArray = NDArray[np.float64]
WIDTH, LEFT, RIGHT, ABOVE, BELOW = 520.0, 50.0, 8.0, 8.0, 8.0
"""Of a chart, and its margins, in units of the drawing."""
DATES = 18.0  # room for dates below the last chart
NAMED = len(AREA_COLOURS)  # assets that have a colour of their own
OTHERS, CASH = "others", "cash"
SMALLEST_RANGE = 0.01  # of an axis: below it, noise would fill a chart


class Tick(NamedTuple):
    """A labelled place on an axis."""

    at: float
    label: str


class Shape(NamedTuple):
    """A path of SVG: the class of its look, its ``d``, and its colour where the look does not say it."""

    look: str
    d: str
    colour: str = ""


class Chart(NamedTuple):
    """A drawing, with values on the y axis and, unless a chart below has them, dates on the x axis."""

    title: str
    note: str
    height: float
    shapes: tuple[Shape, ...]
    values: tuple[Tick, ...]
    dates: tuple[Tick, ...]


class Layer(NamedTuple):
    """An asset of the chart of weights, or several of one colour, with their places among the weights."""

    name: str
    colour: str
    columns: tuple[int, ...]


class Axis(NamedTuple):
    """Range of values that a chart shows, and its height between the margins."""

    low: float
    high: float
    height: float

    def y(self, values: FloatArray) -> FloatArray:
        """Places of values in the drawing."""
        share = (values - self.low) / (self.high - self.low)
        places: FloatArray = ABOVE + self.height * (1.0 - share)
        return places

    def ticks(self, unit: str, count: int) -> tuple[Tick, ...]:
        """Round numbers within the range."""
        from matplotlib.ticker import MaxNLocator

        found = MaxNLocator(count, steps=[1, 2, 2.5, 5, 10]).tick_values(self.low, self.high)
        tolerance = 1e-9 * (self.high - self.low)
        inside = [float(one) for one in found if self.low - tolerance <= one <= self.high + tolerance]
        step = (found[1] - found[0]) * (100.0 if unit == "%" else 1.0)
        decimals = next(digits for digits in range(9) if digits == 8 or math.isclose(step, round(step, digits)))
        return tuple(Tick(float(self.y(np.array(one))), show(one, unit, decimals)) for one in inside)


def path_charts(paths: tuple[PortfolioPath, PortfolioPath], layers: Sequence[Layer]) -> list[tuple[Chart, ...]]:
    """Charts of the paths on the left and on the right: equity, drawdown, weights and turnover, on the same scales."""
    wealth = [np.concatenate([[1.0], np.cumprod(1.0 + path.returns)]) for path in paths]
    falls = [np.concatenate([[0.0], drawdown_series(path.returns)]) for path in paths]
    most = max(float(path.turnover.max()) for path in paths)
    low, high = float(np.min(wealth)), float(np.max(wealth))
    spare = 0.05 * max(high - low, SMALLEST_RANGE)
    equity = Axis(low - spare, max(high, low + SMALLEST_RANGE) + spare, 112.0)
    drawdown = Axis(min(1.05 * float(np.min(falls)), -SMALLEST_RANGE), 0.0, 56.0)
    turnover = Axis(0.0, max(1.05 * most, SMALLEST_RANGE), 42.0)
    made: list[tuple[Chart, ...]] = []
    for path, value, fall in zip(paths, wealth, falls, strict=True):
        steps = len(path)
        x = _edges(steps)
        line = Shape("line", "M" + _points(x, equity.y(value)))
        even = Shape("even", "M" + _points(x, equity.y(np.ones(steps + 1))))
        water = Shape("water", _area(x, drawdown.y(fall), drawdown.y(np.zeros(steps + 1))))
        bars = Shape("bars", _bars(turnover.y(path.turnover), float(turnover.y(np.zeros(1))[0])))
        made.append(
            (
                _chart("Equity", "value of 1 invested", (even, line), equity, ""),
                _chart("Drawdown", "below the highest value so far", (water,), drawdown, "%"),
                _weights(path, layers),
                _chart("Turnover", "share of wealth traded", (bars,), turnover, "%", 2, _dates(path)),
            )
        )
    return made


def weight_layers(paths: tuple[PortfolioPath, PortfolioPath], assets: Sequence[str]) -> list[Layer]:
    """Layers of the weights of two paths: the assets that are held most, the others together, and cash."""
    held = np.sum([path.filled[:, :-1].mean(axis=0) for path in paths], axis=0)
    order = [int(place) for place in np.argsort(-held, kind="stable") if held[place] > 0.0]
    named = sorted(order[:NAMED])
    layers = [Layer(assets[place], colour, (place,)) for place, colour in zip(named, AREA_COLOURS, strict=False)]
    if order[NAMED:]:
        layers.append(Layer(OTHERS, GREY, tuple(order[NAMED:])))
    return [*layers, Layer(CASH, LIGHT_GREY, (len(assets),))]


def _weights(path: PortfolioPath, layers: Sequence[Layer]) -> Chart:
    axis = Axis(0.0, 1.0, 84.0)
    columns = [(column, layer.colour) for layer in layers for column in layer.columns]
    tops = np.cumsum(path.filled[:, [column for column, _ in columns]], axis=1).T
    bottoms = np.concatenate([np.zeros((1, len(path))), tops[:-1]])
    x = np.repeat(_edges(len(path)), 2)[1:-1]  # a step for each holding period
    shapes = [
        Shape("layer", _area(x, np.repeat(axis.y(top), 2), np.repeat(axis.y(bottom), 2)), colour)
        for (_, colour), bottom, top in zip(columns, bottoms, tops, strict=True)
        if (top > bottom).any()
    ]
    return _chart("Weights", "after each trade", tuple(shapes), axis, "%", 2)


def _chart(
    title: str,
    note: str,
    shapes: tuple[Shape, ...],
    axis: Axis,
    unit: str,
    ticks: int = 4,
    dates: tuple[Tick, ...] = (),
) -> Chart:
    height = ABOVE + axis.height + BELOW + (DATES if dates else 0.0)
    return Chart(title, note, height, shapes, axis.ticks(unit, ticks), dates)


def _edges(steps: int) -> FloatArray:
    """Beginning of the first holding period and the ends of all, on the x axis of the drawing, (steps + 1,)."""
    edges: FloatArray = LEFT + (WIDTH - LEFT - RIGHT) * np.arange(steps + 1.0) / steps
    return edges


def _dates(path: PortfolioPath) -> tuple[Tick, ...]:
    """Ends of the first, the middle and the last holding period."""
    steps = len(path)
    chosen = sorted({1, (steps + 1) // 2, steps}) if steps > 2 else [steps]
    edges = _edges(steps)
    return tuple(Tick(float(edges[place]), str(path.dates[place - 1])) for place in chosen)


def _points(x: FloatArray, y: FloatArray) -> str:
    """Points of a polygon in the syntax of SVG."""
    return "L".join(f"{one:.1f} {other:.1f}" for one, other in zip(x, y, strict=True))


def _area(x: FloatArray, above: FloatArray, below: FloatArray) -> str:
    """Area between two lines."""
    return f"M{_points(x, above)}L{_points(x[::-1], below[::-1])}Z"


def _bars(tops: FloatArray, ground: float) -> str:
    """Bars of holding periods, each at the beginning of its own, when the trade is made."""
    x = _edges(len(tops))
    wide = 0.7 * (x[1] - x[0])
    return "".join(
        f"M{one:.1f} {ground:.1f}V{top:.1f}h{wide:.1f}V{ground:.1f}Z" for one, top in zip(x[:-1], tops, strict=True)
    )


STYLES = "finflow.evaluation.page"  # whose style sheet the page begins with
FACTS = (
    ("return", "return", "%", True),
    ("max drawdown", "drawdown", "%", False),
    ("largest loss", "loss", "%", False),
    ("volatility a year", "volatility", "%", False),
    ("turnover a year", "turnover", "×", False),
)
"""Name on the page, name among a judge's measures, unit, and whether a sign is shown."""


def page_html(
    session: AnswerSession,
    template: str = "question.html.j2",
    *,
    assets: Sequence[str],
    bars_per_year: int,
    **facts: str,
) -> str:
    """HTML of the question that is asked: the part of the page that changes with every answer, or the whole page.

    Parameters
    ----------
    template : str
        ``pair_page.html.j2`` for the whole page.
    assets : sequence of str
        Names of the assets, cash left out.
    facts
        ``token`` that answers carry, and ``nonce`` of the style and script of the whole page.
    """
    number = session.current
    panels, layers = [], []
    if number is not None:
        shown = session.questions[number].shown
        layers = weight_layers(shown, assets)
        charts = path_charts(shown, layers)
        panels = [_panel(*side, bars_per_year) for side in zip(("Left", "Right"), shown, charts, strict=True)]
    ends = {"width": WIDTH, "left": LEFT, "right": WIDTH - RIGHT}
    state = {"session": session, "number": number, "panels": panels, "layers": layers, **ends, **facts}
    return _environment().get_template(template).render(state)


def _panel(side: str, path: PortfolioPath, charts: Sequence[Chart], bars_per_year: int) -> dict[str, object]:
    measures = measure(path, bars_per_year)
    facts = [(name, show(measures[key], unit, 1, plus=plus)) for name, key, unit, plus in FACTS]
    span = f"{len(path)} holding periods, ending {path.dates[0]} to {path.dates[-1]}"
    return {"side": side, "span": span, "facts": facts, "charts": charts}


@functools.cache
def _environment() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(__package__), PackageLoader(STYLES)])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
