"""Pages and their sections: tables and sentences, and the numbers in them, as HTML, JSON and plain text.

A number is named by its path in the page's document, which is its JSON file, so that no form of the page can show what
the file does not have. In the HTML it carries `data-path` (a JSON pointer without its first slash), `data-value` (in
full) and `data-scale` (the factor it is multiplied by, unless that is one). Templates escape all that they print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_type_hints

from pydantic.fields import FieldInfo

from finflow.evaluation.page.drawing import MINUS, TIMES, Rendered
from finflow.evaluation.page.page_numbers import DASH, THIN, UNITS, Path, Shown, find, look_up, plain, show

ROW = "\N{ASTERISK}"  # in the path of a cell that `make_table` repeats in every row: the keys of the row
WIDE = 120  # characters of a terminal
_TERMINAL = str.maketrans(
    {THIN: "", MINUS: "-", DASH: "-", TIMES: "x", "±": "+/-", "✓": "[+]", "✗": "[-]", "“": '"', "”": '"'}
)


@dataclass(frozen=True)
class Cell:
    """One number or text of a table or sentence."""

    path: Path  # keys from the section's numbers to this one; none where the interval stands alone
    unit: str = ""  # a key of `UNITS`; "" for a plain number, "," for a large one, "years" for a number of days
    decimals: int = 2  # digits after the point; with the unit "g" all digits
    error: Path | None = None  # keys to a standard error that is shown with it
    plus: bool = False  # show a sign where the number is positive
    bounds: Path | None = None  # keys to an interval shown below it: a mapping with ``low`` and ``high``, or a pair
    keep_sign: bool = False  # show a sign where the number rounds to zero


Sentence = str | tuple[str | Cell, ...]
Column = tuple[str, Cell | Mapping[str, Cell | str]]
"""Heading, and a cell with `ROW` in its paths, or heading of a row -> its own cell or text; empty for others."""


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


def columns_of(content: Any, *place: str, names: Iterable[str] | None = None) -> list[tuple[str, Cell]]:
    """Columns of the fields of a dataclass or `TypedDict` that are `Shown`: all of them in their order, or those named.

    ``place`` leads from the section's numbers to the fields, with `ROW` in it.
    """
    fields = shown_fields(content)
    return [
        (form.heading, Cell((*place, name), form.unit, form.decimals, plus=form.plus))
        for name, (form, _) in ((name, fields[name]) for name in names or fields)
    ]


def shown_fields(content: Any) -> dict[str, tuple[Shown, str]]:
    """Field that is `Shown` -> its form and description."""
    found = {}
    for name, hint in get_type_hints(content, include_extras=True).items():
        notes = {type(note): note for note in getattr(hint, "__metadata__", ())}
        if Shown in notes:
            found[name] = notes[Shown], str(notes[FieldInfo].description)
    return found


def make_table(
    title: str,
    head: str,
    rows: Iterable[str | tuple[Path, str]],
    columns: Sequence[Column],
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
    """A part of a page.

    ``numbers`` are what the document has under the key, kept as `plain` makes it; None where cells name places in the
    whole of it. A sentence with numbers in it is a sequence of texts and cells.
    """

    key: str  # anchor on the page, and key of the numbers in its document
    title: str
    numbers: Mapping[str, object] | None = None
    tables: tuple[Table, ...] = ()
    figures: tuple[Rendered, ...] = ()
    words: tuple[Sentence, ...] = ()  # before figures and tables
    notes: tuple[Sentence, ...] = ()  # after them
    facts: Mapping[str, str] | None = None  # name -> text, as a list of terms
    links: tuple[str, ...] = ()  # files beside the page
    short: str | None = ""  # title in the contents, where it is not the heading; None where it is not listed there
    more: tuple[Table, ...] = ()  # that are unfolded by a click
    folded: bool = False  # the whole section is unfolded by a click on its title

    def __post_init__(self) -> None:
        """Make JSON values of the numbers."""
        object.__setattr__(self, "numbers", plain(self.numbers))

    @property
    def blank(self) -> bool:
        """Nothing to show: its numbers are in the document alone."""
        return not (self.words or self.notes or self.tables or self.figures or self.facts or self.links)

    def parts(self, sentence: Sentence, document: Mapping[str, Any]) -> list[str | ShownNumber]:
        return [self._shown(part, document) for part in ((sentence,) if isinstance(sentence, str) else sentence)]

    def resolve(
        self, cell: Cell | str, document: Mapping[str, Any]
    ) -> tuple[str | ShownNumber | None, ShownNumber | None, tuple[ShownNumber, ShownNumber] | None]:
        """Number or text, standard error and interval of a cell, as far as it has them and they are defined."""
        if isinstance(cell, str):
            return cell, None, None
        number = self._shown(cell, document) if cell.path else None
        error = bounds = None
        if cell.error is not None and isinstance(number, ShownNumber) and number.text != DASH:
            error = self._number(replace(cell, path=cell.error, plus=False), document)
            error = None if error.text == DASH else error
        if cell.bounds is not None and (found := find(document, self._place(cell.bounds))) is not None:
            names = ("low", "high") if isinstance(found, Mapping) else ("0", "1")
            low, high = (self._number(replace(cell, path=(*cell.bounds, end)), document) for end in names)
            if DASH not in (low.text, high.text):
                bounds = low._replace(text=low.text.removesuffix(UNITS[cell.unit][1])), high
        return number, error, bounds

    def text(self, document: Mapping[str, Any]) -> list[str]:
        """Lines for a terminal: sentences, tables and facts; intervals only where the table stays narrow."""
        parts = [[self._line(said, document) for said in self.words]]
        parts += [self._table_text(table, document) for table in self.tables]
        parts += [[f"{name}: {said}" for name, said in (self.facts or {}).items()]]
        parts += [[self._line(said, document) for said in self.notes]]
        return [line for part in parts if part for line in ("", *part)][1:]

    def _place(self, path: Path) -> Path:
        return path if self.numbers is None else (self.key, *path)

    def _shown(self, part: Cell | str, document: Mapping[str, Any]) -> str | ShownNumber:
        if isinstance(part, str):
            return part
        found = find(document, self._place(part.path))
        return found if isinstance(found, str) else self._number(part, document)

    def _number(self, cell: Cell, document: Mapping[str, Any]) -> ShownNumber:
        place, scale = self._place(cell.path), UNITS[cell.unit][0]
        value = look_up(document, place)
        text = show(value, cell.unit, cell.decimals, plus=cell.plus, keep_sign=cell.keep_sign)
        pointer = "/".join(key.replace("~", "~0").replace("/", "~1") for key in place)
        full = repr(value) if math.isfinite(value) else "null"
        return ShownNumber(pointer, full, "" if scale == 1.0 else repr(scale), text)

    def _line(self, sentence: Sentence, document: Mapping[str, Any]) -> str:
        parts = self.parts(sentence, document)
        return terminal_text("".join(part if isinstance(part, str) else part.text for part in parts))

    def _table_text(self, table: Table, document: Mapping[str, Any]) -> list[str]:
        def shown(cell: Cell | str, with_bounds: bool) -> str:
            number, error, bounds = self.resolve(cell, document)
            text = number.text if isinstance(number, ShownNumber) else number or ""
            text += "" if error is None else f" ± {error.text}"
            text += f" ({bounds[0].text} to {bounds[1].text})" if with_bounds and bounds is not None else ""
            return terminal_text(text)

        for with_bounds in (True, False):
            rows = [(row.heading, *(shown(cell, with_bounds) for cell in row.cells)) for row in table.rows]
            lines = table_lines([table.columns, *rows])
            if len(lines[0]) <= WIDE:
                break
        return [*([table.title] if table.heading else []), *(f"  {line}" for line in lines)]


def terminal_text(text: str) -> str:
    """A text in the characters that every terminal has."""
    return text.translate(_TERMINAL)


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, figures to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def figure_section(figure: Rendered) -> Section:
    return Section(figure.name, figure.title, figures=(figure,))
