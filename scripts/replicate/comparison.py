"""Comparisons with published figures, to the last digit that was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

from finflow.provenance import code_hash
from scripts.evidence.tables import markdown_table


@dataclass(frozen=True)
class Comparison:
    """A figure that was computed, and the published one.

    Attributes
    ----------
    published : str or None
        In the digits of the publication, such as 0.2240 or 5.14E+15; None where none could be read.
    said : str
        Origin of the difference, or how the figure is to be read.
    """

    data: str
    what: str
    value: float
    published: str | None = None
    source: str = ""
    said: str = ""

    @property
    def shown(self) -> str:
        """The figure in the digits of the published one, or in six."""
        return f"{self.value:.6g}" if self.published is None else in_digits_of(self.published, self.value)

    @property
    def difference(self) -> str:
        """Computed less published, in units of the published digits; 0 where all of them agree."""
        if self.published is None:
            return ""
        difference = Decimal(self.shown) - Decimal(self.published)
        return "0" if not difference else f"{difference:+}"


def in_digits_of(published: str, value: float) -> str:
    """A number with as many digits as a published one has."""
    head, mark, _ = published.partition("E")
    decimals = len(head.partition(".")[2])
    return f"{value:.{decimals}E}" if mark else f"{value:.{decimals}f}"


def as_result(name: str, facts: Mapping[str, str], rows: Sequence[Comparison]) -> dict[str, Any]:
    """Content of the JSON file of a replication: rows, facts on the data and the hash of the code."""
    return {"name": name, "code": code_hash(), "facts": dict(facts), "rows": [asdict(row) for row in rows]}


def comparison_table(rows: Sequence[Comparison]) -> str:
    """The comparisons as a table in Markdown, which a terminal shows as well."""
    heads = ("data", "rule", "finflow", "published", "difference", "source", "difference explained")
    cells = [(row.data, row.what, row.shown, row.published or "", row.difference, row.source, row.said) for row in rows]
    return markdown_table(heads, cells)
