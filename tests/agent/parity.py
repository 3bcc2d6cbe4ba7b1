"""Figures of other libraries (`fixtures/make_*_fixtures.py`), and our networks with their weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from finflow.agent.batch import Batch
from scripts.evidence.box_task import BoxLayers, box_batch

FIXTURES = Path(__file__).parent / "fixtures"
Arrays = dict[str, Tensor]


def load(name: str, dtype: torch.dtype | None = torch.float64) -> Arrays:
    """The arrays of one fixture, in a type or, without one, as they were written."""
    with np.load(FIXTURES / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]).to(dtype) for key in file.files if "version" not in key}


def layers(arrays: Arrays, name: str, rows: Tensor) -> Tensor:
    """Linear layers with a ReLU after each but the last: encoders and heads of both libraries."""
    count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in arrays)
    for index in range(count):
        rows = rows @ arrays[f"{name}.{index}.weight"].T + arrays[f"{name}.{index}.bias"]
        rows = rows.relu() if index < count - 1 else rows
    return rows


def critics(arrays: Arrays, name: str, observations: Tensor, actions: Tensor) -> Tensor:
    """Outputs of both critics, (2, B, outputs)."""
    rows = torch.cat([observations, actions], dim=1)
    return torch.stack([layers(arrays, f"{name}.{critic}", rows) for critic in range(2)])


def take_over(arrays: Arrays, names: list[str], network: BoxLayers) -> None:
    """Put their layers into our ensemble's, (E, inputs, outputs), a single output first."""
    with torch.no_grad():
        for index, layer in enumerate((network.first, network.second, network.last)):
            for member, name in enumerate(names):
                weight, bias = arrays[f"{name}.{index}.weight"].T, arrays[f"{name}.{index}.bias"]
                layer.weight[member, :, : weight.shape[1]] = weight
                layer.bias[member, 0, : weight.shape[1]] = bias


def their_batch(arrays: Arrays, ends: str = "terminals") -> Batch:
    """Their transitions, as ours; they keep scalars of a transition as (B, 1), ours are (B,)."""
    return box_batch(
        arrays["batch.observations"],
        arrays["batch.actions"],
        arrays["batch.rewards"][:, 0],
        arrays[f"batch.{ends}"][:, 0],
        arrays["batch.next_observations"],
    )
