"""The page of a question as HTML: two paths side by side, without their names, which would bias the answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from finflow.evaluation.page.page_numbers import show
from finflow.preferences.judges import measure
from finflow.preferences.segment_paths import PortfolioPath
from finflow.preferences.web_page.answer_session import AnswerSession
from finflow.preferences.web_page.path_charts import LEFT, RIGHT, WIDTH, Chart, path_charts, weight_layers

if TYPE_CHECKING:
    from jinja2 import Environment

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
