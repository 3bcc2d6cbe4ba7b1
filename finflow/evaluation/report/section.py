"""Sections of a page: their numbers, how they are shown, and the templates that make HTML of them.

Numbers on a page are named by their path in `metrics.json`, so a page cannot show a number that the file does not have.
In the HTML each number carries `data-path` (a JSON pointer without its first slash), `data-value` (the value in full)
and `data-scale` (the factor it is multiplied by, unless that is one). Templates lie in `templates/`; everything that
they print is escaped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from finflow.evaluation.report.drawing import MINUS, TIMES, Rendered
from finflow.market.panel import BARS_PER_YEAR

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "DASH",
    "THIN",
    "Cell",
    "Finding",
    "Range",
    "Row",
    "Section",
    "Sentence",
    "Table",
    "Tile",
    "look_up",
    "plain",
    "render_page",
    "section_html",
    "show",
]

THIN = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"
#: Unit -> factor that a value is multiplied by to be shown, and what follows the number.
UNITS = {
    "": (1.0, ""),
    "%": (100.0, f"{THIN}%"),
    "bp": (1.0, f"{THIN}bp"),
    TIMES: (1.0, TIMES),
    ",": (1.0, ""),
    "g": (1.0, ""),
    "years": (1.0 / BARS_PER_YEAR, ""),
}

Path = tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One number of a table or sentence.

    Attributes
    ----------
    path
        Keys from the section's numbers to this one.
    unit
        "%", "×", "" for a plain number, "bp", "," for a large one, "years" for a number of days, or "g" for one
        written with significant digits.
    decimals
        Digits after the point; with "g" all digits.
    error
        Keys to a standard error that is shown with it.
    plus
        Show a sign where the number is positive.
    bounds
        Keys to an interval that is shown below it: a mapping with ``low`` and ``high``, a list of two, or None.
    keep_sign
        Show the sign of a number that rounds to zero.
    """

    path: Path
    unit: str = ""
    decimals: int = 2
    error: Path | None = None
    plus: bool = False
    bounds: Path | None = None
    keep_sign: bool = False


@dataclass(frozen=True)
class Range:
    """An interval that fills a cell of its own; see `Cell` for the attributes."""

    bounds: Path
    unit: str = ""
    decimals: int = 2
    plus: bool = False


Sentence = str | tuple[str | Cell, ...]


@dataclass(frozen=True)
class Row:
    """A row of a table: its heading, its cells (a text stands for itself), and whether it is the judged strategy's."""

    heading: str
    cells: tuple[Cell | Range | str, ...]
    marked: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a heading for its first column and for each of its cells.

    Attributes
    ----------
    title
        Name of the table; above it unless `heading` is false.
    columns, rows
    caption
        Text under the table.
    heading
        Print the title.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    heading: bool = True

    def __post_init__(self) -> None:
        """Refuse a row whose cells do not stand under the headings."""
        for row in self.rows:
            if len(row.cells) + 1 != len(self.columns):
                raise ValueError(
                    f"{row.heading} of {self.title} has {len(row.cells)} cells for {len(self.columns) - 1}"
                )


class ShownNumber(NamedTuple):
    """A number as the page has it: JSON pointer, value in full, factor (empty for one) and text."""

    path: str
    value: str
    scale: str
    text: str


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes
    ----------
    key
        Key in `metrics.json`, and anchor on the page.
    title
        Heading on the page.
    numbers
        Content of `metrics.json` under the key: mappings of text to numbers, text, None, lists or further mappings.
    tables, figures
    words
        Sentences before figures and tables; one with numbers in it is a sequence of texts and cells.
    notes
        Sentences after them.
    facts
        Name -> text, as a list of terms.
    links
        Files beside the page.
    within
        Path of the numbers in `metrics.json`, where it is not the key.
    short
        Title in the contents, where it is not the heading; None for a section that is not listed there.
    """

    key: str
    title: str
    numbers: Mapping[str, object]
    tables: tuple[Table, ...] = ()
    figures: tuple[Rendered, ...] = ()
    words: tuple[Sentence, ...] = ()
    notes: tuple[Sentence, ...] = ()
    facts: Mapping[str, str] | None = None
    links: tuple[str, ...] = ()
    within: Path | None = None
    short: str | None = ""

    @property
    def nav(self) -> str | None:
        """Title in the contents; None where the section is not listed."""
        return self.title if self.short == "" else self.short

    def parts(self, sentence: Sentence) -> list[str | ShownNumber]:
        """Texts and numbers of a sentence."""
        parts = (sentence,) if isinstance(sentence, str) else sentence
        return [part if isinstance(part, str) else self.shown(part) for part in parts]

    def shown(self, cell: Cell, *, unit: bool = True) -> ShownNumber:
        """A number of the section, with its unit or without."""
        value, (scale, suffix) = look_up(self.numbers, cell.path), UNITS[cell.unit]
        text = show(value, cell.unit, cell.decimals, plus=cell.plus, keep_sign=cell.keep_sign)
        within = (self.key,) if self.within is None else self.within
        pointer = "/".join(key.replace("~", "~0").replace("/", "~1") for key in (*within, *cell.path))
        full = repr(value) if math.isfinite(value) else "null"
        return ShownNumber(
            pointer, full, "" if scale == 1.0 else repr(scale), text if unit else text.removesuffix(suffix)
        )

    def resolve(
        self, cell: Cell | Range | str
    ) -> tuple[ShownNumber | None, ShownNumber | None, tuple[ShownNumber, ShownNumber] | None]:
        """Number, standard error and interval of a cell, as far as it has them and they are defined."""
        if isinstance(cell, str):
            return None, None, None
        number = error = bounds = None
        if isinstance(cell, Cell):
            number = self.shown(cell)
            if cell.error is not None and number.text != DASH:
                error = self.shown(Cell(cell.error, cell.unit, cell.decimals))
                error = None if error.text == DASH else error
        if cell.bounds is not None and (found := _find(self.numbers, cell.bounds)) is not None:
            names = ("low", "high") if isinstance(found, Mapping) else ("0", "1")
            low, high = (Cell((*cell.bounds, end), cell.unit, cell.decimals, plus=cell.plus) for end in names)
            if all(math.isfinite(look_up(self.numbers, end.path)) for end in (low, high)):
                bounds = (self.shown(low, unit=False), self.shown(high))
        return number, error, bounds


class Tile(NamedTuple):
    """A large number at the top of a page: its heading, the number, and a small sentence under it."""

    heading: str
    cell: Cell
    beside: Sentence = ""


@dataclass(frozen=True)
class Finding(Section):
    """The box at the top of a page.

    Attributes
    ----------
    kind
        Colour of its edge: ahead, behind, not-shown or not-compared.
    label
        Name of the region.
    reasons
        A list after the words.
    tiles
        Large numbers at its end.
    """

    kind: str = "not-shown"
    label: str = "Finding"
    reasons: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()


def look_up(numbers: Mapping[str, object], path: Path) -> float:
    """The number at a path; NaN for None.

    Raises
    ------
    KeyError
        If there is none: a table must not show what the file does not have.
    """
    found = _find(numbers, path)
    if found is None:
        return math.nan
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise KeyError(f"{'/'.join(path)} is no number")
    return float(found)


def _find(numbers: object, path: Path) -> object:
    found = numbers
    for key in path:
        if isinstance(found, Sequence) and not isinstance(found, str) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, Mapping) and key in found:
            found = found[key]
        else:
            raise KeyError("/".join(path))
    return found


def show(value: float, unit: str = "", decimals: int = 2, *, plus: bool = False, keep_sign: bool = False) -> str:
    """Write a number with its unit; a dash where it is undefined."""
    if not math.isfinite(value):
        return DASH
    scale, suffix = UNITS[unit]
    text = format(value * scale, f"{'+' * plus}{',' * (unit == ',')}.{decimals}{'g' if unit == 'g' else 'f'}")
    if not keep_sign and float(text.replace(",", "")) == 0.0:
        text = text.lstrip("+-")
    return text.replace("-", MINUS) + suffix


def plain(values: Mapping[str, float]) -> dict[str, object]:
    """Numbers for `metrics.json`: None for what is not finite."""
    return {key: float(value) if math.isfinite(value) else None for key, value in values.items()}


def section_html(section: Section) -> str:
    """The section as it stands on the page."""
    return str(_environment().get_template("section.html.j2").module.section_html(section))  # type: ignore[attr-defined]


def render_page(title: str, subtitle: str, finding: Finding, sections: Sequence[Section]) -> str:
    """A whole page: heading, finding, contents and sections."""
    template = _environment().get_template("page.html.j2")
    return template.render(title=title, subtitle=subtitle, finding=finding, sections=sections)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(__package__), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    environment.globals["dash"] = DASH
    return environment
