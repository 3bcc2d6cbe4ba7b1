"""Comparisons with published figures, to the last digit that was published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from finflow.errors import FinflowError
from finflow.provenance import code_hash
from scripts.evidence.results import kept_results
from scripts.evidence.tables import markdown_table

DGU, OLPS, PAMR = "DeMiguel et al. 2009, table 3", "log of the toolbox OLPS, 2015", "Li et al. 2012, cumulative wealth"
NAIVE_DIVERSIFICATION = {
    "1/N": "0.2240",
    "mean-variance, in sample": "0.2851",
    "mean-variance": "0.2186",
    "mean-variance, long only": "0.1084",
    "minimum variance": "0.2493",
    "minimum variance, long only": "0.2493",
    "market": "0.1138",
}
"""Monthly Sharpe ratios, of the data set MKT/SMB/HML, by policy."""
WEALTH: dict[tuple[str, str], tuple[str, str]] = {
    ("djia", "buy-and-hold"): ("0.764361", OLPS),
    ("djia", "crp"): ("0.812726", OLPS),
    ("djia", "pamr"): ("0.680050", OLPS),
    ("djia", "olmar"): ("2.537232", OLPS),
    ("djia", "olmar, opening of the toolbox"): ("2.537232", OLPS),
    ("nyse_o", "pamr"): ("5.14E+15", PAMR),
}
"""Wealth at the end, of 1 invested, by data set and rule: the figure and its source."""
_HEADINGS = {"demiguel": "1/N and its rivals", "olmar": "OLMAR", "pamr": "PAMR"}


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


def replication_page(path: Path) -> str:
    """Every replication whose figures were kept, each with its data and the code that made it.

    Raises
    ------
    FinflowError
        If there are none.
    """
    kept = kept_results(path)
    if not kept:
        raise FinflowError("no figures were kept: python -m scripts.replicate NAME --save makes them")
    return "".join(_section(kept[name]) for name in _HEADINGS if name in kept)


def _section(kept: dict[str, object]) -> str:
    name, facts, rows = str(kept["name"]), kept["facts"], kept["rows"]
    assert isinstance(facts, dict)
    assert isinstance(rows, list)
    table = comparison_table([Comparison(**row) for row in rows])
    return f"\n## {_HEADINGS[name]}\n\n{table}\nData: {facts['data']}.\n\nCode {kept['code']}.\n"
