"""A part of a report that one concern makes: its numbers, and how the page shows them.

A section owns one key of `metrics.json`, and its tables say by path which of those numbers a cell shows. So a cell
cannot show a number that the file does not have.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape

from finflow.evaluation.drawing import MINUS, TIMES, Rendered

__all__ = ["Cell", "Row", "Section", "Table", "look_up", "section_html"]

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
    """

    path: Path
    unit: str = ""
    decimals: int = 2
    error: Path | None = None
    plus: bool = False


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
        Sentences before them.
    """

    key: str
    title: str
    numbers: Mapping[str, object]
    tables: tuple[Table, ...] = ()
    figures: tuple[Rendered, ...] = ()
    words: tuple[str, ...] = field(default=())


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
    words = "".join(f"<p>{escape(sentence)}</p>" for sentence in section.words)
    figures = "".join(_plot(figure) for figure in section.figures)
    tables = "".join(_table(section, table) for table in section.tables)
    return f'<section id="{escape(section.key)}"><h2>{escape(section.title)}</h2>{words}{figures}{tables}</section>\n'


def _plot(figure: Rendered) -> str:
    source = "data:image/png;base64," + base64.b64encode(figure.png).decode("ascii")
    return (
        f'<figure id="{escape(figure.name)}"><div class="scroll plot" role="region" tabindex="0" '
        f'aria-label="{escape(figure.title)}"><img src="{source}" alt="{escape(figure.alt)}"></div>'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _table(section: Section, table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    rows = ""
    for row in table.rows:
        cells = "".join(_cell(section, cell) for cell in row.cells)
        marked = ' class="agent"' if row.marked else ""
        rows += f'<tr{marked}><th scope="row">{escape(row.heading)}</th>{cells}</tr>'
    caption = f'<p class="caption">{escape(table.caption)}</p>' if table.caption else ""
    return (
        f"<h3>{escape(table.title)}</h3>"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{caption}"
    )


def _cell(section: Section, cell: Cell | str) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    value = look_up(section.numbers, cell.path)
    number = repr(value) if math.isfinite(value) else "null"
    extra = ""
    if cell.error is not None:
        error = look_up(section.numbers, cell.error)
        extra = f"<small>± {escape(show(error, cell.unit, cell.decimals))}</small>" if math.isfinite(error) else ""
    path = "/".join((section.key, *cell.path))
    shown = show(value, cell.unit, cell.decimals, plus=cell.plus)
    return f'<td data-path="{escape(path)}" data-value="{number}">{escape(shown)}{extra}</td>'


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
