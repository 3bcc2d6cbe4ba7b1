"""Which code made something."""

from __future__ import annotations

import platform
from importlib.metadata import version

import torch

from finflow.provenance import code_hash


def runtime(device: torch.device) -> dict[str, str]:
    """What a result depends on beside configuration, seed and data, for checkpoints to record."""
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
