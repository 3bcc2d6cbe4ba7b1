"""Tables of the page of evidence, from the figures that were kept."""

from __future__ import annotations

from pathlib import Path

from finflow.errors import FinflowError
from scripts.evidence.results import kept_results
from scripts.replicate.comparison import Comparison, comparison_table

_HEADINGS = {
    "demiguel": "1/N and its rivals",
    "olmar": "OLMAR",
    "pamr": "PAMR",
    "tsmom": "Sign of time-series momentum",
}


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
