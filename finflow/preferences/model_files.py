"""Files of reward models: safetensors with the configuration, the features read, the report and a SHA-256 inside."""

from __future__ import annotations

from pathlib import Path

import torch

from finflow.agent.networks.critic import NetworkShape
from finflow.config.preferences_section import RewardModelConfig
from finflow.errors import CheckpointError
from finflow.preferences.model_report import LearnedModel
from finflow.preferences.reward_model import OutcomeUnits, RewardModel
from finflow.tensor_file import read_tensors, write_tensors

KIND = "finflow reward model"


def save_model(path: Path, learned: LearnedModel, config: RewardModelConfig, features: tuple[str, ...]) -> None:
    """Write a reward model as one file, atomically; equal models make equal bytes.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
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


def load_model(path: Path) -> RewardModel:
    """Read and verify a file written by `save_model`.

    Raises
    ------
    CheckpointError
        If it is missing, damaged, or holds something else.
    """
    tensors, state = read_tensors(path)
    if state.get("kind") != KIND:
        raise CheckpointError(f"{path} holds no reward model; make one with --mode prefer --learn")
    try:
        config = RewardModelConfig.model_validate(state["config"])
        shape, units = NetworkShape.from_facts(state["shape"]), OutcomeUnits(**state["units"])
        model = RewardModel(shape, config.members, units, torch.Generator())
        model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{path} holds a reward model of another finflow ({type(error).__name__})") from None
    return model.eval().requires_grad_(False)
