"""The folder of a job: what says that it is one, its configuration, and its agents' checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finflow.config import Config, dump_run, load_config
from finflow.errors import CheckpointError
from finflow.files import write_atomically, write_together

__all__ = [
    "CONFIG",
    "JOB",
    "NOTE",
    "agents_in",
    "begin",
    "begin_sweep",
    "best_in",
    "is_job",
    "job_config",
    "universes_in",
]

JOB = "job.json"
CONFIG = "config.yaml"
NOTE = "training.json"
"""Beside each training's run: what made it, the run's name, and whether it is finished."""


def begin(folder: Path, config: Config) -> None:
    """Write what makes a folder a job's."""
    note = {"seed": config.train.seed, "seeds": config.train.seeds}
    write_together({folder / CONFIG: dump_run(config), folder / JOB: _text(note)})


def begin_sweep(folder: Path, names: list[str]) -> None:
    """Write what makes a folder that of the same job in several universes, each in a folder of its name."""
    write_atomically(folder / JOB, _text({"universes": names}))


def is_job(path: Path) -> bool:
    """Whether a path is the folder of a job."""
    return (path / JOB).is_file()


def universes_in(folder: Path) -> list[str]:
    """Names of the universes of a job; none where it has a single market."""
    return [str(name) for name in _read(folder / JOB).get("universes", [])]


def job_config(folder: Path) -> Config:
    """The configuration that a job was begun with."""
    universes = universes_in(folder)
    return load_config((folder / universes[0] if universes else folder) / CONFIG, {}, environ={})


def agents_in(folder: Path) -> list[Path]:
    """The best checkpoint of each agent of a job, in the order of their seeds.

    Raises
    ------
    CheckpointError
        If one is not finished, or the job is in several universes.
    """
    universes = universes_in(folder)
    if universes:
        raise CheckpointError(
            f"{folder} holds {len(universes)} universes: name one of them, as {folder / universes[0]}"
        )
    note = _read(folder / JOB)
    seeds = range(int(note["seed"]), int(note["seed"]) + int(note["seeds"]))
    found = {}
    for seed in seeds:
        training = _read(folder / f"seed-{seed}" / NOTE, needed=False)
        path = best_in(folder / f"seed-{seed}" / str(training.get("run")))
        if training.get("finished") and path.is_file():
            found[seed] = path
    if len(found) < len(seeds):
        raise CheckpointError(
            f"{folder} has {len(found)} of {len(seeds)} agents; make the others with --mode train --resume {folder}"
        )
    return list(found.values())


def best_in(run: Path) -> Path:
    """A run's best checkpoint by validation, or its latest without one."""
    from finflow.guard.checkpoint_folder import BEST, LATEST, MODELS, CheckpointFolder

    models = CheckpointFolder(run / MODELS)
    return models.path(BEST) if models.path(BEST).is_file() else models.path(LATEST)


def _read(path: Path, needed: bool = True) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
        if isinstance(found, dict):
            return found
    except (OSError, ValueError):
        pass
    if needed:
        raise CheckpointError(f"{path} cannot be read; start a new job")
    return {}


def _text(note: Mapping[str, object]) -> str:
    return json.dumps(note, indent=2, sort_keys=True) + "\n"
