"""Provenance of a run: a manifest of versions, data, configuration and machine, and the runtime of a checkpoint."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import torch

from finflow.config import config_hash, dump_run
from finflow.files import write_together
from finflow.json_text import format_json
from finflow.provenance import code_hash
from finflow.training.checkpoints.run_resolver import CONFIG
from finflow.training.data.training_data import TrainingData

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

    Raises
    ------
    OutputError
        If they cannot be written.
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
