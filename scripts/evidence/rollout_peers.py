"""Stable-Baselines3's SAC and sb3-contrib's TQC on the planted markets, from the features that the default reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.evidence.optimality import ALGORITHMS, peers_on
from scripts.evidence.rollouts import PLANTED, PREFIX, planted_variants
from scripts.evidence.tables import markdown_table, mean_interval

__all__ = ["MAPPING", "TIMES", "limit_of", "rollout_peers", "rollout_peers_table"]

MAPPING = "softmax"  # from a peer's action onto the simplex
TIMES = 2.0  # what a peer may take, in times of the processor time of our training


def limit_of(own: Mapping[str, Any]) -> float:
    """Seconds of processor time that a peer may take where this is our result."""
    seconds: dict[str, float] = own["seconds"]
    return round(TIMES * (seconds["offline"] + seconds["online"]), 1)


def rollout_peers(
    results: Sequence[Mapping[str, Any]], program: Sequence[str], samples: int, path: Path, runs: Path
) -> list[dict[str, Any]]:
    """Train each peer once on each sample of each planted market; results are kept as JSON, and resumed.

    Parameters
    ----------
    results : sequence of mapping
        Of `planted_variants`.
    program : sequence of str
        An interpreter that has both packages and what finflow needs, and what it runs.
    samples : int
        Of each market.
    path, runs : Path
        The page's JSON file; where run folders go.
    """
    by_sample = {(one["variant"], one["seed"]): one for one in results}
    found = []
    for variant in sorted(planted_variants(samples), key=lambda one: one.seeds):
        own = by_sample[variant.name, variant.seeds[0]]
        config = variant.config(own["seed"], runs)
        found += peers_on({**own, "market": own["kind"]}, config, program, path, limit_of(own), (MAPPING,))
    return found


def rollout_peers_table(results: Sequence[Mapping[str, Any]], peers: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: scores of the default and of each peer, at the end and at the best look; empty without peers.

    Parameters
    ----------
    results : sequence of mapping
        Of `planted_variants`.
    peers : sequence of mapping
        Of `rollout_peers`.
    """
    heads = ["market", "default"]
    for algorithm in ALGORITHMS:
        heads += ["samples", algorithm.upper(), "best look", "turnover", "seconds"]
    rows = []
    for kind in PLANTED if peers else ():
        row = [kind, mean_interval([one["end"] for one in results if one["variant"] == PREFIX + kind])]
        for algorithm in ALGORITHMS:
            own = [one for one in peers if (one["market"], one["algorithm"]) == (kind, algorithm)]
            turnover, seconds = [one["turnover"] for one in own], [one["seconds"]["processor"] for one in own]
            row += [
                str(len(own)),
                mean_interval([one["curve"][-1][1] for one in own]),
                mean_interval([max(score for _, score in one["curve"]) for one in own]),
                *(f"{np.mean(values):.0f}" if values else "-" for values in (turnover, seconds)),
            ]
        rows.append(row)
    return markdown_table(heads, rows)
