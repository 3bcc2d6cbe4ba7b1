"""Style of all figures: colours, sizes, axes, and how a figure becomes a PNG.

Figures are made with matplotlib's object-oriented interface on the Agg canvas, so pyplot's global state is neither
used nor changed. Colours are those of Okabe and Ito, which people with any common colour vision can distinguish.
"""

from __future__ import annotations

import base64
import io
import itertools
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from finflow.arrays import DateArray, FloatArray
from finflow.evaluation.backtest import BASELINE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator


BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#000000",
)
GREY, LIGHT_GREY = "#8C8C8C", "#D9D9D9"
LINE_COLOURS = (ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY)
AREA_COLOURS = (BLUE, ORANGE, GREEN, SKY, VERMILION, PURPLE, YELLOW)
DASHES = ("-", "--", "-.", ":")
WIDTH = 8.0  # inches
DOTS_PER_INCH = 130
MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"

_STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.06,
    "axes.facecolor": "white",
    "axes.edgecolor": "#B0B0B0",
    "axes.labelcolor": "#333333",
    "axes.labelsize": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlecolor": "#333333",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.3,
    "lines.solid_joinstyle": "round",
    "font.size": 9.5,
    "text.parse_math": False,
}


@dataclass(frozen=True)
class Rendered:
    """One finished figure: a PNG, the stem of its file, texts over and under it, and one in its place."""

    name: str
    title: str
    caption: str
    alt: str
    png: bytes

    @property
    def base64(self) -> str:
        return base64.b64encode(self.png).decode("ascii")


def render(draw: Callable[[Figure], None], height: float, width: float = WIDTH) -> bytes:
    """Draw one figure of the given height and width (inches) and encode it as PNG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH)
        draw(figure)
        return _as_png(figure)


def _as_png(figure: Figure) -> bytes:
    """Encode a figure, drawn once; its savefig would draw it twice, the first time for its layout alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return buffer.getvalue()


@contextmanager
def pyplot_restored() -> Iterator[None]:
    """Let another library draw with pyplot: no windows, no messages on fonts, matplotlib's settings as before after."""
    import matplotlib
    from matplotlib import pyplot

    if matplotlib.get_backend(auto_select=False) is None:  # nobody plots in this process: open no windows
        pyplot.switch_backend("agg")
    fonts = logging.getLogger("matplotlib.font_manager")  # complains at each label that Arial is missing
    level = fonts.level
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        fonts.setLevel(logging.ERROR)
        try:
            yield
        finally:
            fonts.setLevel(level)


def line_styles(names: Sequence[str], baseline: str, judged: str = "") -> dict[str, dict[str, Any]]:
    """Colour, dash, width and order of lines: the judged one stands out, the baseline is black and dashed.

    No two of the others share both colour and dash within 24.
    """
    others = [name for name in names if name not in (judged, baseline)]
    looks = itertools.cycle(itertools.product(DASHES, LINE_COLOURS))
    styles: dict[str, dict[str, Any]] = {
        name: {"color": colour, "linestyle": dash, "linewidth": 1.1, "zorder": 2}
        for name, (dash, colour) in zip(others, looks, strict=False)
    }
    styles[baseline] = {"color": BLACK, "linestyle": "--", "linewidth": 1.4, "zorder": 3}
    return {**styles, judged: {"color": BLUE, "linewidth": 2.2, "zorder": 4}}


def percent_axis(axes: Axes) -> None:
    """Label the y axis, of fractions, in percent."""
    from matplotlib.ticker import FuncFormatter

    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{round(share * 100, 6):g}%".replace("-", MINUS)))


def log_axis(axes: Axes, values: FloatArray) -> None:
    """Log scale with round numbers on it, also where everything lies within a few percent."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    positive = values[np.isfinite(values) & (values > 0.0)]
    axes.set_yscale("log")
    if positive.size:
        axes.set_ylim(float(positive.min()) * 0.97, float(positive.max()) * 1.03)
    spread = float(positive.max() / positive.min()) if positive.size else 1.0
    steps = (1.0, 2.0, 5.0) if spread > 12.0 else (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    axes.yaxis.set_major_locator(LogLocator(subs=steps) if spread > 2.5 else MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{TIMES}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def date_axis(axes: Axes, dates: DateArray) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator: Locator = AutoDateLocator(minticks=3, maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    if len(dates) > 1:
        month = dates[0].astype("datetime64[M]").astype("datetime64[D]")
        long = len(dates) > 252  # then a few days of room show the label of the first year
        axes.set_xlim(month if long else dates[0], dates[-1])


def wealth_figure(
    name: str, title: str, caption: str, dates: DateArray, paths: Mapping[str, NDArray[Any]], judged: str = ""
) -> Rendered:
    """Lines of wealth, of 1 invested, until ruin; the legend has each name with its last value, in their order."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        plot_wealth(axes, dates, paths, judged)
        axes.set_ylabel("value of 1 invested, log scale")
        legend_of_figure(figure, axes)

    ends = ", ".join(f"{label} {path[-1]:.2f}" for label, path in _by_end(paths))
    alt = f"Line chart on a log scale of the value of 1 invested, after costs. At the end: {ends}."
    return Rendered(name, title, caption, alt, render(draw, 4.4))


def plot_wealth(axes: Axes, dates: DateArray, paths: Mapping[str, NDArray[Any]], judged: str) -> None:
    """Lines of wealth on a log scale, until ruin, each labelled with its name and last value."""
    styles = line_styles(list(paths), BASELINE, judged)
    for label, path in _by_end(paths):
        shown = np.where(path > 0.0, path, np.nan)
        axes.plot(dates, shown, label=f"{label}  {path[-1]:.2f}{TIMES}", **styles[label])
    log_axis(axes, np.concatenate(list(paths.values())))
    date_axis(axes, dates)


def _by_end(paths: Mapping[str, NDArray[Any]]) -> list[tuple[str, NDArray[Any]]]:
    return sorted(paths.items(), key=lambda item: -item[1][-1])


def legend_of_figure(figure: Figure, axes: Axes, columns: int = 4) -> None:
    """Put the legend of a panel under the whole figure, where it covers nothing, in as many columns as fit."""
    handles, labels = axes.get_legend_handles_labels()
    for count in range(columns, 0, -1):
        legend = figure.legend(
            handles, labels, loc="outside lower center", ncols=count, handlelength=1.8, columnspacing=1.4
        )
        if count == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


def thinned(steps: int, most: int) -> NDArray[np.intp]:
    """Evenly spaced row numbers, `most` of them at most, the last row among them."""
    count = min(steps, most)
    return np.unique(np.linspace(0, steps - 1, count).round().astype(np.intp)) if count else np.empty(0, dtype=np.intp)
