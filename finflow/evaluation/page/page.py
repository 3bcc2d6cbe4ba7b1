"""Pages: sections of one document of numbers, and their three forms, which are HTML, JSON and plain text.

In the HTML each number carries `data-path` (a JSON pointer without its first slash), `data-value` (the value in full)
and `data-scale` (the factor it is multiplied by, unless that is one). Templates lie in `templates/`; everything that
they print is escaped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from finflow.evaluation.page.drawing import Rendered
from finflow.evaluation.page.page_numbers import DASH, json_text, plain
from finflow.evaluation.page.section import Cell, Section, Sentence, terminal_text

if TYPE_CHECKING:
    from jinja2 import Environment


def figure_section(figure: Rendered) -> Section:
    return Section(figure.name, figure.title, figures=(figure,))


class Tile(NamedTuple):
    """A large number at the top of a page: its heading, the number, and a small sentence under it."""

    heading: str
    cell: Cell
    beside: Sentence = ""


@dataclass(frozen=True)
class Headline(Section):
    """The box at the top of a page: a region named ``label``, with reasons after the words and tiles at its end.

    ``kind`` is the colour of its edge: ahead, behind, not-shown or not-compared.
    """

    kind: str = "not-shown"
    label: str = "Finding"
    reasons: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()

    def text(self, document: Mapping[str, Any]) -> list[str]:
        tiles = "; ".join(self._line((f"{tile.heading}: ", tile.cell), document) for tile in self.tiles)
        return [*super().text(document), *map(terminal_text, self.reasons), *([tiles] if tiles else [])]


@dataclass(frozen=True)
class Page:
    """A whole page: heading, finding, contents and sections; ``numbers`` are its document beside those of sections."""

    title: str
    subtitle: str
    finding: Headline
    sections: Sequence[Section]
    numbers: Any = None

    @cached_property
    def document(self) -> dict[str, Any]:
        """Every number, as the JSON file has them."""
        own = {section.key: section.numbers for section in self.sections if section.numbers is not None}
        return {**(plain(self.numbers) or {}), **own}

    def json(self) -> str:
        return json_text(self.document)

    def html(self) -> str:
        return _environment().get_template("page.html.j2").render(page=self)

    def text(self, *keys: str) -> list[str]:
        """Lines for a terminal: the finding, and all sections or those with these keys."""
        lines = [self.title, terminal_text(self.subtitle)]
        for section in (self.finding, *(one for one in self.sections if not keys or one.key in keys)):
            lines += ["", section.title, *section.text(self.document)]
        return lines

    def files(self, page: str = "report.html", numbers: str = "metrics.json") -> dict[str, bytes | str]:
        """Files by name: every figure, the numbers and the page."""
        drawn = {f"{figure.name}.png": figure.png for section in self.sections for figure in section.figures}
        return {**drawn, numbers: self.json(), page: self.html()}


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.globals["dash"] = DASH
    script = environment.get_template("sort.js").render()
    environment.globals["script_hash"] = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    return environment
