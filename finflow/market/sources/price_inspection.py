"""Lines that say what finflow understands of a file or folder of prices."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from finflow.config import MarketConfig
from finflow.market.plausibility.checks import find_implausible
from finflow.market.plausibility.finding import in_table
from finflow.market.plausibility.price_notes import opening_lines
from finflow.market.sources.panel_loader import load_panel
from finflow.market.sources.price_sheet import KINDS

_OF_RUNS = (".json", ".jsonl", ".yaml", ".safetensors")


def kind_of_prices(path: Path) -> str | None:
    """The kind of file, csv or parquet, that a path to prices has or holds; None of a path to anything else."""
    if path.is_dir():
        found = {file.suffix.lower() for file in path.iterdir() if file.is_file()}
        return None if found.intersection(_OF_RUNS) else next((kind for kind in KINDS if f".{kind}" in found), None)
    return next((kind for kind in KINDS if path.suffix.lower() == f".{kind}"), None)


def describe_prices(path: Path, kind: str, market: MarketConfig) -> list[str]:
    """Say what is in a file: layout, marks, dates, bars a year, fields, assets, and what is implausible.

    Raises MarketError if it cannot be used, with the place and the remedy.
    """
    panel = load_panel(market.model_copy(update={"source": kind, "path": path}))
    facts, width = panel.provenance, max(map(len, panel.assets))
    fields = [name for name in ("open", "high", "low", "volume", "dividends") if getattr(panel, name) is not None]
    lines = [
        f"{path}: {facts['layout']}; {facts.get('marks', 'separated by commas, decimal points')}",
        opening_lines(panel)[0],
        f"bars a year: {panel.describe()['bars_per_year']}",
        f"fields: {', '.join(['close', *fields])}; {facts['adjusted']}",
    ]
    for column, asset in enumerate(panel.assets):
        rows = np.flatnonzero(panel.listed[:, column])
        first, last = panel.dates[rows[[0, -1]]]
        ends = panel.close[rows[[0, -1]], column]
        lines.append(f"  {asset:{width}}  {first} to {last}  {len(rows):>6,} bars, {ends[0]:,.6g} to {ends[1]:,.6g}")
    return [*lines, *(in_table(find_implausible(panel), most=1000) or ["nothing implausible was found"])]
