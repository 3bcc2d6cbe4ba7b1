"""Files of reward models: safetensors with the configuration, the features read, the report and a SHA-256 inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from finflow.agent.networks.critic import NetworkShape
from finflow.config.preferences_section import RewardModelConfig
from finflow.errors import CheckpointError
from finflow.preferences.model_report import LearnedModel
from finflow.preferences.reward_model import OutcomeUnits, RewardModel
from finflow.tensor_file import read_tensors, write_tensors

KIND = "finflow reward model"


class SavedModel(NamedTuple):
    """A reward model from a file, with its configuration, the names of the features it reads, and its report."""

    model: RewardModel
    config: RewardModelConfig
    features: tuple[str, ...]
    report: dict[str, Any]


def save_model(path: Path, learned: LearnedModel, config: RewardModelConfig, features: tuple[str, ...]) -> None:
    """Write a reward model as one file, atomically; equal models make equal bytes."""
    model = learned.model
    state = {
        "kind": KIND,
        "shape": model.shape._asdict(),
        "units": model.units._asdict(),
        "config": config.model_dump(mode="json"),
        "features": list(features),
        "report": learned.report(),
    }
    write_tensors(path, model.state_dict(), state)


def load_model(path: Path) -> SavedModel:
    """Read and verify a file written by `save_model`; a CheckpointError if it is damaged, or holds something else."""
    tensors, state = read_tensors(path)
    if state.get("kind") != KIND:
        raise CheckpointError(f"{path} holds no reward model; make one with --mode prefer --learn")
    try:
        config = RewardModelConfig.model_validate(state["config"])
        shape, units = NetworkShape.from_facts(state["shape"]), OutcomeUnits(**state["units"])
        model = RewardModel(shape, config.members, units, torch.Generator())
        model.load_state_dict(tensors)
        features, report = tuple(str(name) for name in state["features"]), dict(state["report"])
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{path} holds a reward model of another finflow ({type(error).__name__})") from None
    return SavedModel(model.eval().requires_grad_(False), config, features, report)
