"""Evidence that takes long: the results of its trainings, resumable.

Only the validation window is read here: the test window is for a run's own report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from finflow.config import Config, config_hash, load_config
from finflow.provenance import code_hash
from scripts.evidence.results import kept_result

#: Of a training that ends with its offline phase: what an online phase would begin from is not learned.
OFFLINE_ALONE: dict[str, object] = {"out_of_fold.pretraining_epochs": 0}


@dataclass(frozen=True)
class Variant:
    """One configuration, trained and measured with several seeds."""

    name: str
    seeds: tuple[int, ...]
    overrides: Mapping[str, object] = field(default_factory=dict)
    measure: Callable[[Config], dict[str, Any]] = field(kw_only=True)

    def config(self, seed: int, folder: Path) -> Config:
        """Its configuration with a seed; runs go below ``folder``."""
        places = {"output.logs_dir": str(folder / "logs"), "output.offline_dir": str(folder / "offline")}
        return load_config(None, {**self.overrides, **places, "train.seed": seed}, environ={})

    def measured(self, seed: int, config: Config) -> dict[str, Any]:
        """The result of a training with a seed, and the names of both."""
        return {"variant": self.name, "seed": seed, **self.measure(config)}


def run_missing(variants: Sequence[Variant], path: Path, runs: Path) -> list[dict[str, Any]]:
    """Train what is not there yet, and return every result.

    Parameters
    ----------
    path : Path
        The page's JSON file; what was made by the same code and configuration is kept.
    """
    results = []
    for variant in variants:
        for seed in variant.seeds:
            config = variant.config(seed, runs)
            stamp = {"configuration": config_hash(config), "code": code_hash()}
            results.append(kept_result(path, f"{variant.name}-{seed}", stamp, partial(variant.measured, seed, config)))
    return results
