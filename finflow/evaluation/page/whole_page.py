"""A whole page: what is found first, then its sections; as HTML, JSON, plain text and files."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from finflow.evaluation.page.page_numbers import DASH, json_text, plain
from finflow.evaluation.page.section import Cell, Section, Sentence, terminal_text

if TYPE_CHECKING:
    from jinja2 import Environment


class Tile(NamedTuple):
    """A large number at the top of a page: its heading, the number, and a small sentence under it."""

    heading: str
    cell: Cell
    beside: Sentence = ""


@dataclass(frozen=True)
class Headline(Section):
    """The box at the top of a page: a region named ``label``, with a picture beside its words, reasons and tiles.

    ``lead`` stands before the title; ``kind`` is the colour of the edge: ahead, behind, not-shown or not-compared.
    """

    kind: str = "not-shown"
    label: str = "Finding"
    lead: Sentence = ""
    reasons: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()

    def text(self, document: Mapping[str, Any]) -> list[str]:
        tiles = "; ".join(self._line((f"{tile.heading}: ", tile.cell), document) for tile in self.tiles)
        lead = [self._line(self.lead, document)] if self.lead else []
        return [*lead, *super().text(document), *map(terminal_text, self.reasons), *([tiles] if tiles else [])]


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
        every = (self.finding, *self.sections)
        drawn = {f"{figure.name}.png": figure.png for section in every for figure in section.figures}
        return {**drawn, numbers: self.json(), page: self.html()}


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.globals["dash"] = DASH
    script = environment.get_template("sort.js").render()
    environment.globals["script_hash"] = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    return environment
