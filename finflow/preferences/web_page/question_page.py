"""The page of a question as HTML: two paths side by side, without their names, which would bias the answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from finflow.evaluation.report.report_numbers import show
from finflow.preferences.judges import measure
from finflow.preferences.segment_paths import PortfolioPath
from finflow.preferences.web_page import path_charts
from finflow.preferences.web_page.answer_session import AnswerSession
from finflow.preferences.web_page.path_charts import Chart, Layer, weight_layers

if TYPE_CHECKING:
    from jinja2 import Environment

STYLES = "finflow.evaluation.report"  # whose style sheet the page begins with
FACTS = (
    ("return", "return", "%", True),
    ("max drawdown", "drawdown", "%", False),
    ("largest loss", "loss", "%", False),
    ("volatility a year", "volatility", "%", False),
    ("turnover a year", "turnover", "×", False),
)
"""Name on the page, name among a judge's measures, unit, and whether a sign is shown."""


class Panel(NamedTuple):
    """One side of a question: its holding periods and dates, facts as names and values, and charts."""

    side: str
    span: str
    facts: tuple[tuple[str, str], ...]
    charts: tuple[Chart, ...]


class PairPage:
    """Makes the HTML of a session; ``assets`` are names, cash left out."""

    def __init__(self, assets: Sequence[str], bars_per_year: int) -> None:
        self.assets, self.bars_per_year = tuple(assets), bars_per_year

    def whole(self, session: AnswerSession, token: str, nonce: str) -> str:
        """The page; answers have to carry the token, and its style and script the nonce."""
        state = self._state(session)
        return _environment().get_template("pair_page.html.j2").render(**state, token=token, nonce=nonce)

    def part(self, session: AnswerSession) -> str:
        """The part of the page that changes with every answer."""
        return _environment().get_template("question.html.j2").render(**self._state(session))

    def _state(self, session: AnswerSession) -> dict[str, object]:
        number = session.current
        panels: tuple[Panel, ...] = ()
        layers: tuple[Layer, ...] = ()
        if number is not None:
            shown = session.questions[number].shown
            layers = weight_layers(shown, self.assets)
            charts = path_charts.path_charts(shown, layers)
            panels = tuple(self._panel(*side) for side in zip(("Left", "Right"), shown, charts, strict=True))
        return {
            "number": number,
            "panels": panels,
            "layers": layers,
            "progress": session.progress,
            "can_undo": session.can_undo,
            "file": session.file,
            "width": path_charts.WIDTH,
            "left": path_charts.LEFT,
            "right": path_charts.WIDTH - path_charts.RIGHT,
        }

    def _panel(self, side: str, path: PortfolioPath, charts: tuple[Chart, ...]) -> Panel:
        measures = measure(path, self.bars_per_year)
        facts = tuple((name, show(measures[key], unit, 1, plus=plus)) for name, key, unit, plus in FACTS)
        span = f"{len(path)} holding periods, ending {path.dates[0]} to {path.dates[-1]}"
        return Panel(side, span, facts, charts)


@functools.cache
def _environment() -> Environment:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(__package__), PackageLoader(STYLES)])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
