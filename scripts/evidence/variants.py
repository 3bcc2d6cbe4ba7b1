"""Evidence that takes long: the results of its trainings, resumable, and a table in the docs made from them.

Only the validation window is read here: the test window is for a run's own report.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.config import Config, config_hash, load_config
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.statistics.metrics import summarise
from finflow.provenance import code_hash
from finflow.strategies.classical import COMPARED, named_strategy
from finflow.training.data.training_data import prepare
from finflow.training.logs.run_log import METRICS
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.offline_methods import pretrain_and_measure
from scripts.evidence.results import grouped, kept_result
from scripts.evidence.tables import markdown_table

SHOWN = ("sharpe", "annual_return", "annual_volatility", "max_drawdown", "annual_turnover", "annual_cost")
KEPT = (*SHOWN, "cvar")
#: Of a training that ends with its offline phase: what an online phase would begin from is not learned.
OFFLINE_ALONE: dict[str, object] = {"out_of_fold.pretraining_epochs": 0}
STAGES = ("hand-over", "end", "best")


@dataclass(frozen=True)
class Variant:
    """One configuration, trained with several seeds.

    Attributes
    ----------
    name : str
    seeds : tuple of int
    overrides : mapping
        Keys that differ from the defaults.
    offline_only : bool
        Stop before the online phase.
    measure : callable, optional
        Trains and measures in another way than whole trainings are.
    """

    name: str
    seeds: tuple[int, ...]
    overrides: Mapping[str, object] = field(default_factory=dict)
    offline_only: bool = False
    measure: Callable[[Config], dict[str, Any]] | None = None

    def config(self, seed: int, folder: Path) -> Config:
        """Its configuration with a seed; runs go below ``folder``."""
        places = {"output.logs_dir": str(folder / "logs"), "output.offline_dir": str(folder / "offline")}
        return load_config(None, {**self.overrides, **places, "train.seed": seed}, environ={})

    def measured(self, seed: int, config: Config) -> dict[str, Any]:
        """The result of a training with a seed, and the names of both."""
        measure = self.measure or (pretrain_and_measure if self.offline_only else train_and_measure)
        return {"variant": self.name, "seed": seed, **measure(config)}


def run_missing(variants: Sequence[Variant], path: Path, runs: Path) -> list[dict[str, Any]]:
    """Train what is not there yet, and return every result.

    Parameters
    ----------
    variants : sequence of Variant
    path : Path
        The page's JSON file; what was made by the same code and configuration is kept.
    runs : Path
        Where the run folders go.

    Returns
    -------
    list of dict
        In the order of variants and seeds.
    """
    results = []
    for variant in variants:
        for seed in variant.seeds:
            config = variant.config(seed, runs)
            stamp = {"configuration": config_hash(config), "code": code_hash()}
            results.append(kept_result(path, f"{variant.name}-{seed}", stamp, partial(variant.measured, seed, config)))
    return results


def train_and_measure(config: Config) -> dict[str, Any]:
    """Train once; validation metrics at the hand-over, the end and the best point, and the seconds of each phase."""
    began = time.monotonic()
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    middle = time.monotonic()
    trainer.finetune()
    seconds = {"offline": middle - began, "online": time.monotonic() - middle}
    rows = pd.read_json(trainer.run_folder / METRICS, lines=True)
    validated = rows[rows["validation_sharpe"].notna()]
    online = validated[validated["phase"] == "online"]
    best = validated.iloc[int(np.nanargmax(validated[f"validation_{config.train.best_by}"].to_numpy(np.float64)))]
    stages = {"hand-over": online.iloc[0], "end": online.iloc[-1], "best": best}
    return {
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "updates": {str(phase): int(last) for phase, last in rows.groupby("phase")["update"].max().items()},
        "validation": {
            stage: {name: float(row[f"validation_{name}"]) for name in KEPT} for stage, row in stages.items()
        },
    }


def classical_results(config: Config) -> dict[str, dict[str, float]]:
    """The classical strategies on the validation window, on the same ledger."""
    training_data = prepare(config)
    strategies = [named_strategy(name, config.evaluation) for name in COMPARED]
    played = run_backtests(training_data.process, training_data.split.validation, strategies)
    return {run.name: summarise(run, config.objectives.cvar_alpha) for run in played}


def table(results: Sequence[Mapping[str, Any]], classical: Mapping[str, Mapping[str, float]]) -> str:
    """A Markdown table: strategies, then each variant and stage as mean and range over its seeds."""
    heads = ("Sharpe", "return a year", "volatility", "drawdown", "turnover a year", "costs a year")
    rows: list[list[object]] = []
    for name, metrics in classical.items():
        rows.append([name, "", *(_shown(key, [metrics[key]]) for key in SHOWN)])
    for variant, trainings in grouped(results, "variant").items():
        for stage in STAGES:
            measured = [result["validation"][stage] for result in trainings if stage in result["validation"]]
            if measured:
                cells = [_shown(key, [metrics[key] for metrics in measured]) for key in SHOWN]
                rows.append([f"finflow, {variant}, {stage}", len(measured), *cells])
    return markdown_table(("", "seeds", *heads), rows)


def _shown(key: str, values: Sequence[float]) -> str:
    """A mean, and the range where there are several values."""
    scale, unit = (1.0, "") if key in ("sharpe", "annual_turnover") else (100.0, " %")
    mean, low, high = (scale * value for value in (float(np.mean(values)), min(values), max(values)))
    spread = f" ({low:.2f} to {high:.2f})" if len(values) > 1 else ""
    return f"{mean:.2f}{unit}{spread}"
