"""A part of a report that one concern makes: its numbers, and how the page shows them.

A section owns one key of `metrics.json`, and its tables say by path which of those numbers a cell shows. So a cell
cannot show a number that the file does not have. On the page every number carries where the file has it (`data-path`, a
JSON pointer without its first slash), its value in full (`data-value`), and by what it was multiplied to be shown
(`data-scale`, where that is not one): a test reads them all back.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from finflow.evaluation.report.drawing import MINUS, TIMES, Rendered

__all__ = [
    "DASH",
    "THIN",
    "Cell",
    "Row",
    "Section",
    "Sentence",
    "Table",
    "framed",
    "look_up",
    "number",
    "plain",
    "plot",
    "section_html",
    "show",
    "stated",
]

THIN = "\N{NARROW NO-BREAK SPACE}"
DASH = "\N{EN DASH}"

Path = tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """One number of a table.

    Attributes
    ----------
    path
        Keys from the section's numbers to this one.
    unit
        "%", "×", "" for a plain number, "bp", or "," for a large one.
    decimals
        Digits after the point.
    error
        Keys to a standard error that is shown with it.
    plus
        Whether a sign is shown where it is positive.
    bounds
        Keys to an interval, a mapping with ``low`` and ``high``, that is shown below it.
    """

    path: Path
    unit: str = ""
    decimals: int = 2
    error: Path | None = None
    plus: bool = False
    bounds: Path | None = None


Sentence = str | tuple[str | Cell, ...]


@dataclass(frozen=True)
class Row:
    """A line of a table: what it is of, its cells (a text stands for itself), and whether it is the judged one."""

    heading: str
    cells: tuple[Cell | str, ...]
    marked: bool = False


@dataclass(frozen=True)
class Table:
    """A table with a heading for its first column and for each of its cells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""

    def __post_init__(self) -> None:
        """Refuse a row whose cells do not stand under the headings."""
        for row in self.rows:
            if len(row.cells) + 1 != len(self.columns):
                raise ValueError(
                    f"{row.heading} of {self.title} has {len(row.cells)} cells for {len(self.columns) - 1}"
                )


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
        What `metrics.json` has under the key: mappings of text to numbers, text, None, lists or further mappings.
    tables, figures
        What the page shows of it.
    words
        Sentences before them; one with numbers in it is a sequence of texts and cells.
    """

    key: str
    title: str
    numbers: Mapping[str, object]
    tables: tuple[Table, ...] = ()
    figures: tuple[Rendered, ...] = ()
    words: tuple[Sentence, ...] = field(default=())


def look_up(numbers: Mapping[str, object], path: Path) -> float:
    """The number at a path; NaN for None.

    Raises
    ------
    KeyError
        If there is none: a table must not show what the file does not have.
    """
    found: object = numbers
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            raise KeyError("/".join(path))
        found = found[key]
    if found is None:
        return math.nan
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise KeyError(f"{'/'.join(path)} is no number")
    return float(found)


def section_html(section: Section) -> str:
    """The section as it stands on the page; everything is escaped."""
    words = "".join(f"<p>{_sentence(section, sentence)}</p>" for sentence in section.words)
    figures = "".join(plot(figure) for figure in section.figures)
    tables = "".join(_table(section, table) for table in section.tables)
    return f'<section id="{escape(section.key)}"><h2>{escape(section.title)}</h2>{words}{figures}{tables}</section>\n'


def stated(path: Sequence[str | int], value: float, scale: float = 1.0) -> str:
    """Attributes of an element that shows a number: where `metrics.json` has it, and its value in full."""
    pointer = "/".join(str(key).replace("~", "~0").replace("/", "~1") for key in path)
    full = repr(float(value)) if math.isfinite(value) else "null"
    scaled = "" if scale == 1.0 else f' data-scale="{scale!r}"'
    return f' data-path="{escape(pointer)}" data-value="{full}"{scaled}'


def number(path: Sequence[str | int], value: float, shown: str, scale: float = 1.0) -> str:
    """A number inside a sentence, as HTML; the text is escaped."""
    return f"<span{stated(path, value, scale)}>{escape(shown)}</span>"


def plot(figure: Rendered, *, anchor: bool = True) -> str:
    """A figure with its caption, as HTML; with its name as an anchor, unless it stands where that is one already."""
    source = "data:image/png;base64," + base64.b64encode(figure.png).decode("ascii")
    name = f' id="{escape(figure.name)}"' if anchor else ""
    return (
        f'<figure{name}><div class="scroll plot" role="region" tabindex="0" '
        f'aria-label="{escape(figure.title)}"><img src="{source}" alt="{escape(figure.alt)}"></div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def framed(label: str, head: str, rows: str) -> str:
    """A table of these rows (HTML) in a frame that scrolls where it is too wide."""
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table><thead>{head}</thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _table(section: Section, table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = ""
    for row in table.rows:
        cells = "".join(_cell(section, cell) for cell in row.cells)
        marked = ' class="agent"' if row.marked else ""
        rows += f'<tr{marked}><th scope="row">{escape(row.heading)}</th>{cells}</tr>'
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    return f"<h3>{escape(table.title)}</h3>{framed(table.title, f'<tr>{head}</tr>', rows)}{caption}"


def _sentence(section: Section, sentence: Sentence) -> str:
    parts = (sentence,) if isinstance(sentence, str) else sentence
    return "".join(escape(part) if isinstance(part, str) else _number(section, part) for part in parts)


def _number(section: Section, cell: Cell, unit: bool = True) -> str:
    """A number of the section inside a sentence, with its unit or without."""
    value, scale = look_up(section.numbers, cell.path), 100.0 if cell.unit == "%" else 1.0
    shown = show(value, cell.unit, cell.decimals, plus=cell.plus)
    if not unit and cell.unit != ",":
        shown = shown.removesuffix(cell.unit).removesuffix(THIN)
    return number((section.key, *cell.path), value, shown, scale)


def _cell(section: Section, cell: Cell | str) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    value, scale = look_up(section.numbers, cell.path), 100.0 if cell.unit == "%" else 1.0
    extra = ""
    if cell.error is not None:
        error = look_up(section.numbers, cell.error)
        said = number((section.key, *cell.error), error, show(error, cell.unit, cell.decimals), scale)
        extra = f"<small>± {said}</small>" if math.isfinite(error) else ""
    if cell.bounds is not None:
        low, high = (Cell((*cell.bounds, end), cell.unit, cell.decimals, plus=cell.plus) for end in ("low", "high"))
        if all(math.isfinite(look_up(section.numbers, end.path)) for end in (low, high)):
            extra += f"<small>{_number(section, low, unit=False)} to {_number(section, high)}</small>"
    shown = show(value, cell.unit, cell.decimals, plus=cell.plus)
    return f"<td{stated((section.key, *cell.path), value, scale)}>{escape(shown)}{extra}</td>"


def show(value: float, unit: str = "", decimals: int = 2, *, plus: bool = False) -> str:
    """Write a number with its unit; a dash where it is undefined."""
    if not math.isfinite(value):
        return DASH
    if unit == ",":
        return f"{value:,.{decimals}f}".replace("-", MINUS)
    scaled = value * 100.0 if unit == "%" else value
    number = f"{scaled:+.{decimals}f}" if plus else f"{scaled:.{decimals}f}"
    if float(number) == 0.0:
        number = number.lstrip("+-")
    suffix = {"%": f"{THIN}%", "bp": f"{THIN}bp", TIMES: TIMES, "": ""}[unit]
    return number.replace("-", MINUS) + suffix


def plain(values: Mapping[str, float]) -> dict[str, object]:
    """Numbers for `metrics.json`: None for what is not finite."""
    return {key: float(value) if math.isfinite(value) else None for key, value in values.items()}
