"""Inspection of a run's checkpoints: the contents of each, and any damage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from finflow.errors import CheckpointError
from finflow.guard.checkpoint_folder import BEST, LATEST, PRETRAINED, SUFFIX
from finflow.guard.state_capture import SEPARATOR
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.run_folder import Kind, resolve_run


class Inspection(NamedTuple):
    """One checkpoint file."""

    path: Path
    size: int
    complaint: str | None
    version: int | None
    facts: dict[str, Any]
    parts: dict[str, int]

    def lines(self) -> list[str]:
        if self.complaint is not None:
            return [f"{self.path.name}: {self.complaint}"]
        counters, runtime = self.facts["training"]["counters"], self.facts["runtime"]
        shape = self.facts["shape"]
        score, update = counters["best_score"], counters["best_update"]
        best = "none yet" if score is None else f"{score:.6g} at update {update}"
        parts = ", ".join(f"{name} {count:,}" for name, count in self.parts.items())
        return [
            f"{self.path.name}: intact, SHA-256 verified",
            f"  format {self.version}, {self.size:,} bytes",
            f"  {counters['phase']} phase, update {counters['update']:,} ({counters['phase_update']:,} of the phase), "
            f"vector step {counters['vector_step']:,}",
            f"  best by validation: {best}",
            f"  configuration {self.facts['config_hash'][:16]}, prices {self.facts['market'][:16]}",
            f"  networks of width {shape['hidden']} on {shape['n_asset_features']} features of an asset and "
            f"{shape['n_market_features']} of the market",
            f"  written with {', '.join(f'{name} {value}' for name, value in runtime.items())}",
            f"  numbers held: {parts}",
        ]


def inspect_checkpoints(path: Path) -> list[Inspection]:
    """Read and verify every checkpoint of a run folder, or one file.

    ``path``: a run folder, its ``models`` folder, or a checkpoint.

    Raises CheckpointError if there is none.
    """
    saved = resolve_run(path)
    if saved.kind is Kind.CHECKPOINT:
        return [_inspect(path)]
    folder = saved.checkpoints
    named = [folder.path(name) for name in (LATEST, BEST, PRETRAINED)]
    files = dict.fromkeys([*named, *folder.numbered(), *sorted(folder.folder.glob(f"*{SUFFIX}"))])
    inspections = [_inspect(file) for file in files if file.is_file()]
    if not inspections:
        raise CheckpointError(f"{path} has no checkpoint; give a run folder of finflow or one of its checkpoint files")
    return inspections


def _inspect(path: Path) -> Inspection:
    size = path.stat().st_size
    try:
        checkpoint = read_checkpoint(path)
    except CheckpointError as error:
        return Inspection(path, size, " ".join(str(error).removeprefix(f"{path} ").split()), None, {}, {})
    return Inspection(path, size, None, checkpoint.version, checkpoint.facts, _parts(checkpoint.tensors))


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Numbers in each part of the state; ``bcell/policy`` is one."""
    counts: dict[str, int] = {}
    for name, tensor in tensors.items():
        owner, _, rest = name.partition(SEPARATOR)
        part = f"{owner}{SEPARATOR}{rest.partition(SEPARATOR)[0].partition('.')[0]}" if rest else owner
        counts[part] = counts.get(part, 0) + math.prod(tensor.shape)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
