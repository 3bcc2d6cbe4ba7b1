"""Sections of a page: their numbers, how they are shown, and the templates that make HTML of them.

Numbers on a page are named by their path in `metrics.json`, so a page cannot show a number that the file does not have.
In the HTML each number carries `data-path` (a JSON pointer without its first slash), `data-value` (the value in full)
and `data-scale` (the factor it is multiplied by, unless that is one). Templates lie in `templates/`; everything that
they print is escaped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from finflow.evaluation.page.drawing import Rendered
from finflow.evaluation.page.page_numbers import DASH, UNITS, Path, find, look_up, plain, show

if TYPE_CHECKING:
    from jinja2 import Environment

ROW = "\N{ASTERISK}"  # in the path of a cell that `make_table` repeats in every row: the keys of the row


@dataclass(frozen=True)
class Cell:
    """One number of a table or sentence.

    Attributes
    ----------
    path
        Keys from the section's numbers to this one; none where the interval stands alone.
    unit
        A key of `UNITS`: "%", "×", "" for a plain number, "bp", "," for a large one, "years" for a number of days.
    decimals
        Digits after the point; with the unit "g" all digits.
    error
        Keys to a standard error that is shown with it.
    plus, keep_sign
        Show a sign where the number is positive, or rounds to zero.
    bounds
        Keys to an interval that is shown below it: a mapping with ``low`` and ``high``, a list of two, or None.
    """

    path: Path
    unit: str = ""
    decimals: int = 2
    error: Path | None = None
    plus: bool = False
    bounds: Path | None = None
    keep_sign: bool = False


Sentence = str | tuple[str | Cell, ...]


@dataclass(frozen=True)
class Row:
    """A row of a table: its heading, its cells (a text stands for itself), and whether it is the judged strategy's."""

    heading: str
    cells: tuple[Cell | str, ...]
    marked: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a heading for its first column and for each of its cells; ``heading`` prints the title above it."""

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


def make_table(
    title: str,
    head: str,
    rows: Iterable[str | tuple[Path, str]],
    columns: Sequence[tuple[str, Cell | Mapping[str, Cell | str]]],
    caption: str = "",
    *,
    marked: str | None = None,
    heading: bool = True,
) -> Table:
    """A table whose rows differ in the place of their numbers alone.

    Parameters
    ----------
    head : str
        Heading of the first column.
    rows : iterable of str or (path, str)
        Heading of each row, which also stands for `ROW` in its cells; or the keys that do, and the heading.
    columns : sequence of (str, Cell or mapping)
        Heading, and a cell with `ROW` in its paths, or heading of a row -> its own cell or text; empty for others.
    marked : str, optional
        Heading of the row that is the judged strategy's.
    """
    made = []
    for place, name in (((row,), row) if isinstance(row, str) else row for row in rows):
        cells = tuple(cell.get(name, "") if isinstance(cell, Mapping) else _placed(cell, place) for _, cell in columns)
        made.append(Row(name, cells, marked=name == marked))
    return Table(title, (head, *(name for name, _ in columns)), tuple(made), caption, heading)


def _placed(cell: Cell, place: Path) -> Cell:
    """The cell with the keys of a row in place of `ROW`."""

    def filled(pattern: Path) -> Path:
        return tuple(key for part in pattern for key in (place if part == ROW else (part,)))

    error, bounds = (None if pattern is None else filled(pattern) for pattern in (cell.error, cell.bounds))
    return replace(cell, path=filled(cell.path), error=error, bounds=bounds)


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
    numbers
        Content of `metrics.json` under the key, kept as `plain` makes it.
    words, notes
        Sentences before and after figures and tables; one with numbers in it is a sequence of texts and cells.
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

    def __post_init__(self) -> None:
        """Make JSON values of the numbers."""
        object.__setattr__(self, "numbers", plain(self.numbers))

    @property
    def nav(self) -> str | None:
        """Title in the contents; None where the section is not listed."""
        return self.title if self.short == "" else self.short

    def parts(self, sentence: Sentence) -> list[str | ShownNumber]:
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
        self, cell: Cell | str
    ) -> tuple[ShownNumber | None, ShownNumber | None, tuple[ShownNumber, ShownNumber] | None]:
        """Number, standard error and interval of a cell, as far as it has them and they are defined."""
        if isinstance(cell, str):
            return None, None, None
        number = self.shown(cell) if cell.path else None
        error = bounds = None
        if cell.error is not None and number is not None and number.text != DASH:
            error = self.shown(Cell(cell.error, cell.unit, cell.decimals))
            error = None if error.text == DASH else error
        if cell.bounds is not None and (found := find(self.numbers, cell.bounds)) is not None:
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
class Headline(Section):
    """The box at the top of a page: a region named ``label``, with reasons after the words and tiles at its end.

    ``kind`` is the colour of its edge: ahead, behind, not-shown or not-compared.
    """

    kind: str = "not-shown"
    label: str = "Finding"
    reasons: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()


def section_html(section: Section) -> str:
    return str(_environment().get_template("section.html.j2").module.section_html(section))  # type: ignore[attr-defined]


def render_page(title: str, subtitle: str, finding: Headline, sections: Sequence[Section]) -> str:
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
    script = environment.get_template("sort.js").render()
    environment.globals["script_hash"] = f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
    return environment
