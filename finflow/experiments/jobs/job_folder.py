"""The folder of a job of several trainings: what makes it one is written here; `run_resolver` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from finflow.config import Config, dump_run
from finflow.files import write_atomically, write_together
from finflow.training.checkpoints.run_resolver import CONFIG, JOB


def begin(folder: Path, config: Config) -> None:
    """Write what makes a folder a job's."""
    note = {"seed": config.train.seed, "seeds": config.train.seeds}
    write_together({folder / CONFIG: dump_run(config), folder / JOB: _text(note)})


def begin_sweep(folder: Path, names: list[str]) -> None:
    """Write what makes a folder that of the same job in several universes, each in a folder of its name."""
    write_atomically(folder / JOB, _text({"universes": names}))


def _text(note: Mapping[str, object]) -> str:
    return json.dumps(note, indent=2, sort_keys=True) + "\n"
