"""Value of further offline updates: trainings of several lengths, judged on years that they never saw.

Every length is trained for each fold of a walk-forward with the same seeds, and its best checkpoint in validation is
played on the fold's later years, net of costs. The smallest number of updates within one standard error of the best is
enough: the gain of further ones is not distinguished from zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scripts.evidence.generalisation import CLASSICAL, standard_error, walk_forward_variants
from scripts.evidence.results import Result
from scripts.evidence.tables import markdown_table
from scripts.evidence.variants import OFFLINE_ALONE, Variant

PAGE = "offline-updates"
EPOCHS, PATIENCE = "train.offline_training_epochs", "offline.patience"
LONGEST = "patience of 2,000 updates"
#: Heading of a row -> keys: passes over the data without a limit, and 50 passes ended by validation.
LENGTHS: dict[str, dict[str, object]] = {
    "2 epochs": {EPOCHS: 2, PATIENCE: 0},
    "5 epochs": {EPOCHS: 5, PATIENCE: 0},
    "patience of 500 updates": {EPOCHS: 50, PATIENCE: 500},
    "patience of 1,000 updates": {EPOCHS: 50, PATIENCE: 1000},
    LONGEST: {EPOCHS: 50, PATIENCE: 2000},
}
SIZE: dict[str, object] = {
    "train.online_episodes": 0,
    **OFFLINE_ALONE,
    "train.generalisation": False,
    "offline.evaluation_updates": 0,
    "evaluation.protocol.folds": 3,
}
MOST_SEEDS = 2


def offline_updates_variants(seeds: int) -> list[Variant]:
    """Each length, for each fold, without an online phase.

    Parameters
    ----------
    seeds : int
        At most; no more than `MOST_SEEDS` are trained.
    """
    lengths = {_file_name(name): keys for name, keys in LENGTHS.items()}
    variants = walk_forward_variants(min(seeds, MOST_SEEDS), lengths, SIZE, PAGE)
    return [one for one in variants if CLASSICAL not in one.name]  # each training has its own backtest of equal weight


def offline_updates_table(results: Sequence[Result]) -> str:
    """A Markdown table: a row a length, its updates, its Sharpe ratio on later years, and what it has over the longest.

    Parameters
    ----------
    results : sequence of mapping
        Of `offline_updates_variants`.
    """
    own = {name: _trainings(results, name) for name in LENGTHS}
    longest = own[LONGEST]
    rows = []
    for name, found in own.items():
        if not found:
            continue
        pairs = [key for key in found if key in longest]
        gaps = np.array([_sharpe(found[key]) - _sharpe(longest[key]) for key in pairs])
        error = standard_error(gaps, np.array([fold for fold, _ in pairs])) if len(gaps) > 1 else math.nan
        over = [_sharpe(one) - float(one["equal_weight"]["sharpe"]) for one in found.values()]
        rows.append(
            [
                name,
                len(found),
                f"{np.mean([one['updates'] for one in found.values()]):,.0f}",
                f"{np.mean([one['seconds']['processor'] for one in found.values()]):.0f}",
                f"{np.mean([_sharpe(one) for one in found.values()]):.3f}",
                f"{np.mean(over):+.3f}",
                "" if name == LONGEST or not pairs else f"{gaps.mean():+.3f}",
                "" if name == LONGEST or math.isnan(error) else f"{error:.3f}",
            ]
        )
    heads = (
        "offline phase",
        "trainings",
        "updates",
        "seconds of processor time",
        "Sharpe, later years",
        "over equal weight",
        "over the longest",
        "standard error",
    )
    return markdown_table(heads, rows)


def _trainings(results: Sequence[Result], name: str) -> dict[tuple[int, int], Result]:
    """Results of a length by fold and seed."""
    key = _file_name(name)
    return {(one["fold"], one["seed"]): one for one in results if one["configuration_name"] == key}


def _file_name(name: str) -> str:
    """A heading without what is awkward in the name of a file."""
    return name.replace(" ", "-").replace(",", "")


def _sharpe(result: Result) -> float:
    return float(result["judged"]["sharpe"])
