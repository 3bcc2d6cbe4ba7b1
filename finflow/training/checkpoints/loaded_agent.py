"""An agent loaded from a checkpoint, with the market that it is to be evaluated on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from finflow.errors import ConfigError
from finflow.guard.checkpoint_folder import BEST
from finflow.training.checkpoints.checkpoint_reader import (
    Checkpoint,
    check_same_features,
    read_checkpoint,
    stored_config,
)
from finflow.training.checkpoints.run_resolver import Kind, resolve_run
from finflow.training.data.training_data import TrainingData, choose_device, prepare

FREE_SECTIONS = ("market.", "env.", "evaluation.", "output.", "train.device", "train.threads")


class LoadedAgent(NamedTuple):
    """A checkpoint, the training data of its configuration, and the device that it runs on."""

    checkpoint: Checkpoint
    training_data: TrainingData
    device: torch.device


def load_agent(path: Path, overrides: Mapping[str, object]) -> LoadedAgent:
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
    saved = resolve_run(path)
    best = saved.checkpoints.path(BEST)
    given = saved.kind is Kind.CHECKPOINT or not best.is_file()
    checkpoint = read_checkpoint(path if given else best)
    config = stored_config(checkpoint, overrides)
    torch.set_num_threads(config.train.threads)
    training_data = prepare(config)
    check_same_features(checkpoint, training_data.features)
    return LoadedAgent(checkpoint, training_data, choose_device(config.train.device))


def check_free(overrides: Mapping[str, object]) -> None:
    """Refuse what an evaluation cannot change.

    Raises
    ------
    ConfigError
    """
    taught = [key for key in overrides if not key.startswith(FREE_SECTIONS)]
    if taught:
        raise ConfigError(f"{taught[0]} belongs to training and cannot change for an evaluation; leave it out")
