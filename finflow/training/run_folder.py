"""The folder of a run, its manifest, and the runtime that a checkpoint records.

A folder is made under a new name, filled when training begins, and removed if nothing came of it.
"""

from __future__ import annotations

import os
import platform
import shutil
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import torch

from finflow.config import config_hash, dump_run
from finflow.errors import OutputError
from finflow.files import check_writable, missing_folders, reason, remove_empty, write_atomically, write_together
from finflow.guard.checkpoint_folder import MODELS, CheckpointFolder
from finflow.json_text import format_json
from finflow.offline.dataset import OfflineDataset, card_file
from finflow.provenance import code_hash
from finflow.training.checkpoints.run_resolver import CONFIG
from finflow.training.data.training_data import CARD, TrainingData

MANIFEST = "manifest.json"
LIBRARIES = ("finflow", "torch", "numpy", "pandas", "gymnasium", "skfolio", "safetensors", "pydantic")


def manifest_text(training_data: TrainingData, device: torch.device, **facts: object) -> str:
    """The manifest as JSON; ``facts`` are added to it."""
    config = training_data.config
    content = {
        "data": training_data.panel.describe(),
        "data_sha256": training_data.panel.sha256,
        "configuration_sha256": config_hash(config),
        "seed": config.train.seed,
        "device": str(device),
        "threads": config.train.threads,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "versions": {name: version(name) for name in LIBRARIES},
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        **facts,
    }
    return format_json(content)


def write_manifest(folder: Path, training_data: TrainingData, device: torch.device, **facts: object) -> None:
    """Write the manifest and the configuration of a folder that is no run's.

    Raises OutputError if they cannot be written.
    """
    write_together(
        {
            folder / CONFIG: dump_run(training_data.config),
            folder / MANIFEST: manifest_text(training_data, device, **facts),
        }
    )


def runtime(device: torch.device) -> dict[str, str]:
    """Code, versions and device that a result depends on; checkpoints record them."""
    return {
        "finflow": version("finflow"),
        "code": code_hash(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "python": platform.python_version(),
        "device": device.type,
        "threads": str(torch.get_num_threads()),
        "compile": "eager",  # updates are not compiled; the ledger is, and gives the same bits either way
    }


def changed(before: dict[str, str], now: dict[str, str]) -> str | None:
    """One line that says what differs between two runtimes; None where nothing does."""
    differences = [
        f"{name} was {before[name]}, is {now[name]}" for name in now if name in before and before[name] != now[name]
    ]
    if not differences:
        return None
    return (
        f"this run was written elsewhere or by other code ({'; '.join(differences)}): it goes on, but what follows may "
        "differ in the last bits, or in more, from a run that never stopped"
    )


class RunFolder:
    """The folder of a run; raises OutputError if it cannot be made or written to; nothing is left of it then."""

    def __init__(self, logs: Path, existing: Path | None = None) -> None:
        self._made: list[Path] = []
        if existing is None:
            missing = missing_folders(logs)
            self.path = new_run_folder(logs)
            self._made = [self.path, *missing]
        else:
            self.path = existing
        try:
            check_writable(self.path / MODELS)
        except BaseException:
            self.discard_if_unused()
            raise

    def describe(self, training_data: TrainingData, dataset: OfflineDataset, device: torch.device) -> None:
        """Write the configuration, the data card and the manifest, and clear what a killed process left."""
        CheckpointFolder(self.path / MODELS).sweep()
        write_atomically(self.path / CONFIG, dump_run(training_data.config))
        write_atomically(self.path / CARD, card_file(dataset))
        write_atomically(self.path / MANIFEST, manifest_text(training_data, device))

    @property
    def is_unused(self) -> bool:
        """True if it was made here and holds no checkpoint: there is nothing in it to go on from."""
        return bool(self._made) and not any((self.path / MODELS).glob("checkpoint_*"))

    def discard_if_unused(self) -> None:
        if self.is_unused:
            shutil.rmtree(self.path, ignore_errors=True)
            remove_empty(self._made)
            self._made = []


def new_run_folder(logs: Path) -> Path:
    """A folder named after now, ``YYYYMMDD_HHMMSS``; numbered where there is one already.

    Raises OutputError if it cannot be made.
    """
    name = datetime.now().strftime("%Y%m%d_%H%M%S")
    for suffix in ("", *(f"_{number}" for number in range(2, 1000))):
        folder = logs / f"{name}{suffix}"
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            if isinstance(error, FileExistsError) and folder.is_dir():
                continue
            raise OutputError(f"cannot make {folder}: {reason(error, 'output.logs_dir')}") from error
        return folder
    raise OutputError(f"cannot make a new run folder in {logs}")
