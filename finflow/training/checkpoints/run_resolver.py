"""A checkpoint opened to be judged, with the market that it is judged on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from finflow.errors import ConfigError
from finflow.guard.checkpoint_folder import BEST, MODELS, CheckpointFolder
from finflow.training.checkpoints.checkpoint_reader import (
    Checkpoint,
    check_same_features,
    read_checkpoint,
    stored_config,
)
from finflow.training.data.training_data import TrainingData, choose_device, prepare

FREE_SECTIONS = ("market.", "env.", "evaluation.", "output.", "train.device", "train.threads")


class Opened(NamedTuple):
    """A checkpoint, the training data of its configuration, and the device that it runs on."""

    checkpoint: Checkpoint
    training_data: TrainingData
    device: torch.device


def open_for_judging(path: Path, overrides: Mapping[str, object]) -> Opened:
    """Read a checkpoint and prepare its market.

    Parameters
    ----------
    path : Path
        A checkpoint file, or a run folder (its best by validation, or its latest without one).
    overrides : mapping
        Keys on top of the checkpoint's own configuration; only those of the market, the environment, the evaluation
        and the output may differ.

    Raises
    ------
    ConfigError, CheckpointError, MarketError
    """
    check_free(overrides)
    best = CheckpointFolder(path / MODELS).path(BEST)
    checkpoint = read_checkpoint(best if best.is_file() else path)
    config = stored_config(checkpoint, overrides)
    torch.set_num_threads(config.train.threads)
    training_data = prepare(config)
    check_same_features(checkpoint, training_data.features)
    return Opened(checkpoint, training_data, choose_device(config.train.device))


def check_free(overrides: Mapping[str, object]) -> None:
    """Refuse what an evaluation cannot change.

    Raises
    ------
    ConfigError
    """
    taught = [key for key in overrides if not key.startswith(FREE_SECTIONS)]
    if taught:
        raise ConfigError(f"{taught[0]} belongs to training and cannot change for an evaluation; leave it out")


def run_folder_of(checkpoint: Path) -> Path:
    """The run that a checkpoint file lies in, or the file's own folder."""
    parent = checkpoint.resolve().parent
    return parent.parent if parent.name == MODELS else parent
