"""One report of the same job in several universes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from finflow.evaluation.multi_run import universes_page
from finflow.evaluation.multi_run.universes_page import Universe
from finflow.files import write_together
from finflow.training.judging.held_out import REPORTS, Outcome

__all__ = ["report_universes"]


def report_universes(names: Sequence[str], outcomes: Sequence[Outcome], folder: Path) -> list[str]:
    """Report the universes together, from the numbers of each one's own report.

    Returns
    -------
    list of str
        What to tell, with where the page is.
    """
    found = []
    for name, outcome in zip(names, outcomes, strict=True):
        content = json.loads(outcome.report.with_name("metrics.json").read_text("utf-8"))
        found.append(Universe.of(name, content))
    made = universes_page.make(found)
    write_together({folder / REPORTS / file: content for file, content in made.files.items()})
    return [*made.lines, f"report: {folder / REPORTS / 'report.html'}"]
