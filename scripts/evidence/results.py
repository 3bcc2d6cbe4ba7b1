"""Results of evidence on the disk, one file a page, and the trainings that most of them are of."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from finflow.config import Config, config_hash, load_config
from finflow.errors import EvidenceError, TrainingError
from finflow.evaluation.backtest import Backtest
from finflow.files import write_atomically
from finflow.provenance import code_hash
from finflow.training.checkpoints.checkpoint_reader import ONLINE
from finflow.training.phases.training_run import Validation
from finflow.training.trainer import FinFlowTrainer

Result = Mapping[str, Any]
#: Of a training that ends with its offline phase: what an online phase would begin from is not learned.
OFFLINE_ALONE: dict[str, object] = {"out_of_fold.pretraining_epochs": 0}


def kept_result(path: Path, name: str, stamp: Result, make: Callable[[], Result]) -> dict[str, Any]:
    """The result of a name in a page's file where its stamp is the same; else it is made anew and written.

    A result made anew has the processor time that it took, unless it tells its own.

    Parameters
    ----------
    stamp : mapping
        Entries of the result that say what it was made by, such as the hash of the code.
    """
    result = kept_results(path).get(name, {})
    if {entry: result.get(entry) for entry in stamp} != stamp:
        began = processor_time()
        made = make()
        result = {**stamp, "seconds": {"processor": round(processor_time() - began, 1)}, **made}
        write_result(path, name, result)
    return result


def kept_results(path: Path) -> dict[str, dict[str, Any]]:
    """Every result in a page's file, by name; empty where there is no file."""
    results: dict[str, dict[str, Any]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return results


def write_result(path: Path, name: str, result: Result) -> None:
    """Write a result into a page's file, a line each, beside the others."""
    results = kept_results(path) | {name: dict(result)}
    lines = [f"{json.dumps(one)}: {json.dumps(results[one], sort_keys=True)}" for one in sorted(results)]
    write_atomically(path, "{\n" + ",\n".join(lines) + "\n}\n")


def grouped(results: Iterable[Result], *keys: str) -> dict[Any, list[Result]]:
    """Results by an entry, or by a tuple of several; groups and their members are in the order of the results."""
    groups: dict[Hashable, list[Result]] = {}
    for one in results:
        values = tuple(one[key] for key in keys)
        groups.setdefault(values if len(keys) > 1 else values[0], []).append(one)
    return groups


def by_seed(results: Iterable[Result], **wanted: object) -> dict[int, Result]:
    """The results that have such entries, by seed and in the order of seeds."""
    own = [one for one in results if all(one[key] == value for key, value in wanted.items())]
    return {int(one["seed"]): one for one in sorted(own, key=lambda one: int(one["seed"]))}


def processor_time() -> float:
    """Seconds of this process and of those that it forked and that have ended."""
    return sum(os.times()[:4])


def train_both(config: Config, **options: Any) -> FinFlowTrainer:
    """Train both phases, without the report."""
    trainer = FinFlowTrainer(config, **options)
    trainer.train_iql()
    trainer.finetune()
    return trainer


class Training(NamedTuple):
    """A training of both phases.

    Attributes
    ----------
    backtests : list of Backtest
        Of the validations of the online phase, the hand-over first.
    seconds : dict of float
        Processor time of each phase, on all cores.
    stopped : bool
        True where the guard ended the online phase; the last backtest is then the last one before.
    """

    trainer: FinFlowTrainer
    backtests: list[Backtest]
    seconds: dict[str, float]
    stopped: bool


def train_and_validate(config: Config, keep_stopped: bool = False, **options: Any) -> Training:
    """Train both phases as `train_both` does, and keep the validations and the time of each phase.

    Parameters
    ----------
    keep_stopped : bool
        Keep a training whose online phase the guard ended after a validation, in place of raising its error.
    """
    validations: list[Validation] = []
    trainer = FinFlowTrainer(config, on_validation=validations.append, **options)
    began = processor_time()
    trainer.train_iql()
    middle = processor_time()
    stopped = False
    try:
        trainer.finetune()
    except TrainingError:
        stopped = True
        if not keep_stopped or validations[-1].phase != ONLINE:
            raise
    backtests = [one.backtest for one in validations if one.phase == ONLINE]
    seconds = {"offline": round(middle - began, 1), "online": round(processor_time() - middle, 1)}
    return Training(trainer, backtests, seconds, stopped)


@dataclass(frozen=True)
class Variant:
    """One configuration, trained and measured with several seeds.

    Attributes
    ----------
    first_sample : int, optional
        Of a synthetic market: its sample with the seed 0, and each further seed has the next.
    """

    name: str
    seeds: Sequence[int]
    overrides: Mapping[str, object] = field(default_factory=dict)
    measure: Callable[[Config], dict[str, Any]] = field(kw_only=True)
    first_sample: int | None = None

    def config(self, seed: int, folder: Path) -> Config:
        """Its configuration with a seed; runs go below ``folder``."""
        sample = {} if self.first_sample is None else {"market.synthetic.seed": self.first_sample + seed}
        return load_config(None, {**self.overrides, **sample, **places_in(folder), "train.seed": seed}, environ={})

    def measured(self, seed: int, config: Config) -> dict[str, Any]:
        """The result of a training with a seed, and the names of both."""
        return {"variant": self.name, "seed": seed, **self.measure(config)}


def places_in(folder: Path) -> dict[str, object]:
    """Keys that keep what a training writes below a folder."""
    return {"output.logs_dir": str(folder / "logs"), "output.offline_dir": str(folder / "offline")}


def ask_peer(command: Sequence[str | Path]) -> dict[str, Any]:
    """The last line of JSON that a peer's program prints; it can import this folder.

    Raises
    ------
    EvidenceError
        If it ends without one.
    """
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EvidenceError(f"{Path(command[1]).name} ended without a result: {reason}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


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
