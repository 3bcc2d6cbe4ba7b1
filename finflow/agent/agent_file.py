"""An agent as one verified file: what it has learned, its sizes and its settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import ValidationError
from torch import Tensor

from finflow.agent.networks.critic import NetworkShape
from finflow.config import BCellConfig
from finflow.errors import CheckpointError
from finflow.tensor_file import read_tensors, write_tensors

PREFIX = "bcell/"  # of an agent's tensors in a checkpoint of a training


class AgentFile(NamedTuple):
    """What a file holds of an agent."""

    path: Path
    tensors: dict[str, Tensor]
    shape: NetworkShape
    config: BCellConfig

    @torch.no_grad()
    def fill(self, parts: Iterable[tuple[str, Tensor]]) -> None:
        """Write what was learned into an agent's tensors.

        Raises
        ------
        CheckpointError
            If one is missing or has another shape.
        """
        for name, tensor in parts:
            if name not in self.tensors or self.tensors[name].shape != tensor.shape:
                raise CheckpointError(f"{self.path} does not fit this finflow: {name} is missing or has another shape")
            tensor.copy_(self.tensors[name])


def write_agent(path: Path, parts: Mapping[str, Tensor], shape: NetworkShape, config: BCellConfig) -> None:
    """Write an agent's file."""
    write_tensors(path, parts, {"shape": shape._asdict(), "bcell": config.model_dump(mode="json")})


def read_agent(path: Path) -> AgentFile:
    """Read an agent's own file, or the agent in a training's checkpoint of the online phase.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged, or holds no B-Cell agent.
    """
    tensors, state = read_tensors(path)
    own = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    if "log_alpha" not in own or "bcell" not in state:
        raise CheckpointError(f"{path} holds no B-Cell agent; give a checkpoint of the online phase")
    largest = max(tensor.numel() for tensor in own.values())
    try:
        shape = state["shape"]
        lenses = tuple(tuple(int(column) for column in lens) for lens in shape["lenses"])
        sizes = NetworkShape(shape["n_asset_features"], shape["n_market_features"], shape["hidden"], lenses)
        if not all(type(size) is int and 0 < size <= largest for size in sizes[:3]):
            raise ValueError("its sizes are none")
        return AgentFile(path, own, sizes, BCellConfig(**state["bcell"]))
    except (LookupError, TypeError, ValueError, ValidationError) as error:
        raise no_agent(path, error) from error


def no_agent(path: Path, error: Exception) -> CheckpointError:
    """What is said of a file whose agent cannot be made."""
    reason = " ".join(str(error).split())[:120]
    return CheckpointError(f"{path} does not fit this finflow: it describes no agent ({reason})")
