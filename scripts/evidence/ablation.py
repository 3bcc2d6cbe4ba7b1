"""Evidence about what each part of the agent is worth on the embedded market, on the validation window, net of costs.

Each configuration is trained with the same seeds in the size of docs/evidence/generalisation.md, and judged by its last
policy: nothing was chosen by the window that it is shown on. IQL alone is where the agent's training stood at the
hand-over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scripts.evidence.generalisation import REDUCED
from scripts.evidence.tables import markdown_table, mean_interval
from scripts.evidence.variants import Variant

__all__ = ["PARTS", "ablation_table", "ablation_variants"]

PARTS: dict[str, dict[str, object]] = {
    "whole": {},
    "one-head": {"bcell.one_head": True},
    "without-cql": {"bcell.cql_alpha": 0.0},
    "free-experts": {"bcell.expert_cloning": 0.0},
    "bfloat16": {"bcell.mixed_precision": True},
    "from-scratch": {"train.offline_training_epochs": 0, "bcell.calibration": "none"},  # there is no fitted value
}
#: Row of the table -> part and stage.
ROWS = {
    "IQL alone": ("whole", "hand-over"),
    "B-Cell": ("whole", "end"),
    "without experts (one head)": ("one-head", "end"),
    "without CQL": ("without-cql", "end"),
    "without holding experts to their families": ("free-experts", "end"),
    "in bfloat16": ("bfloat16", "end"),
    "from scratch, without IQL": ("from-scratch", "end"),
}
#: Metric -> heading and scale.
SHOWN = {
    "sharpe": ("Sharpe", 1.0),
    "max_drawdown": ("drawdown, %", 100.0),
    "cvar": ("CVaR of a day, %", 100.0),
    "annual_turnover": ("turnover a year", 1.0),
}
PREFIX = "ablation-"


def ablation_variants(seeds: int, size: Mapping[str, object] = REDUCED) -> list[Variant]:
    """Each configuration with each seed.

    Parameters
    ----------
    seeds : int
    size : mapping
        Keys that all have in common.
    """
    return [Variant(f"{PREFIX}{name}", tuple(range(seeds)), {**size, **overrides}) for name, overrides in PARTS.items()]


def ablation_table(results: Sequence[Mapping[str, Any]], classical: Mapping[str, Mapping[str, float]]) -> str:
    """A Markdown table: classical strategies, then each part; mean over seeds with half the width of its 95 % interval.

    Parameters
    ----------
    results : sequence of mapping
    classical : mapping
        Name -> metrics on the same window.
    """
    heads = ("", "seeds", "updates", *(heading for heading, _ in SHOWN.values()), "Sharpe less B-Cell's")
    rows: list[list[object]] = []
    for name, metrics in classical.items():
        rows.append([name, "", "", *(f"{scale * metrics[key]:.2f}" for key, (_, scale) in SHOWN.items()), ""])
    whole = _of(results, "whole", "end", "sharpe")
    for row, (part, stage) in ROWS.items():
        cells = [mean_interval(scale * _of(results, part, stage, key)) for key, (_, scale) in SHOWN.items()]
        less = "" if (part, stage) == ("whole", "end") else mean_interval(_of(results, part, stage, "sharpe") - whole)
        rows.append([f"finflow, {row}", len(whole), _updates(results, part, stage), *cells, less])
    return markdown_table(heads, rows)


def _of(results: Sequence[Mapping[str, Any]], part: str, stage: str, key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A metric of each seed, in their order."""
    own = sorted((one for one in results if one["variant"] == PREFIX + part), key=lambda one: int(one["seed"]))
    return np.array([one["validation"][stage][key] for one in own])


def _updates(results: Sequence[Mapping[str, Any]], part: str, stage: str) -> str:
    """Of a training until a stage."""
    counts = next(one["updates"] for one in results if one["variant"] == PREFIX + part)
    return f"{counts.get('offline', 0) if stage == 'hand-over' else max(counts.values()):,}"
