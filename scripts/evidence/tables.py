"""Markdown tables of evidence, and the figures in their cells."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


def markdown_table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table with one line a row, ended by a line break."""
    titles = list(heads)
    lines = [_line(titles), "|" + "---|" * len(titles), *map(_line, rows)]
    return "\n".join(lines) + "\n"


def table_of(rows: Sequence[Mapping[str, object]]) -> str:
    """A table of rows that map each heading to its cell; empty without rows."""
    return markdown_table(rows[0], (row.values() for row in rows)) if rows else ""


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |".replace("|  |", "| |").replace("|  |", "| |")


def half_width(values: NDArray[np.float64]) -> float:
    """Half the width of the 95 % interval of a mean (Student's t)."""
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))


def mean_interval(values: ArrayLike, decimals: int = 2) -> str:
    """Mean of the finite values, with half the width of its 95 % interval where there are several."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return "none"
    return f"{known.mean():.{decimals}f}" + (f" ± {half_width(known):.{decimals}f}" if len(known) > 1 else "")


def share_interval(hits: int, count: int, decimals: int = 1, method: str = "exact") -> str:
    """A share in percent with its 95 % interval, by Clopper and Pearson (exact) or ``wilson``."""
    bounds = stats.binomtest(hits, count).proportion_ci(method=method)
    return f"{hits / count:.{decimals}%} ({bounds.low:.{decimals}%} to {bounds.high:.{decimals}%})"


def shown_mean(values: Sequence[float], decimals: int = 2) -> str:
    """Mean of the finite values; a dash without any."""
    known = [value for value in values if math.isfinite(value)]
    return f"{np.mean(known):.{decimals}f}" if known else "-"
