"""Whole trainings, and where they leave their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from finflow.config import Config
from finflow.tensor_file import read_tensors
from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import TINY, config_in, write_market

Make = Callable[..., Config]
Stop = Callable[[Config, int], FinFlowTrainer]

#: A training with evidence out of fold, in keyword form: 3 warm-up steps, and 4 updates of 32 decisions each.
WITH_BLOCKS: dict[str, object] = {
    "out_of_fold__blocks": 2,
    "out_of_fold__looks": 2,
    "train__n_envs": 8,
    "train__updates_per_vector_step": 1,
    "train__critic_only_updates": 2,
    "train__offline_training_epochs": 1,
}


def tiny_in(folder: Path) -> Make:
    """Tiny configurations whose files lie in a folder."""
    prices = write_market(folder / "prices.csv")
    return partial(config_in, folder, {**TINY, "market.path": str(prices)})


def train_through(config: Config, **given: Any) -> FinFlowTrainer:
    """Run both phases, without the report."""
    trainer = FinFlowTrainer(config, **given)
    trainer.train_iql()
    trainer.finetune()
    return trainer


def rows_of(trainer: FinFlowTrainer, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The rows of a training's log."""
    return [json.loads(line) for line in (trainer.run_folder / file).read_text().splitlines()]


def check_same_files(one: FinFlowTrainer, other: FinFlowTrainer, *more: str) -> None:
    """Hold what two runs of one configuration left against each other, byte for byte: best and latest, and the rows."""
    for name in ("models/checkpoint_latest.safetensors", "models/checkpoint_best.safetensors", "metrics.jsonl", *more):
        assert (one.run_folder / name).read_bytes() == (other.run_folder / name).read_bytes(), name


def check_same_learning(one: FinFlowTrainer, other: FinFlowTrainer, name: str = "latest") -> None:
    """Hold all of two states and their rows against each other, bit for bit; configurations may be others."""
    (tensors, facts), (others, told) = (read_tensors(checkpoint_of(trainer, name)) for trainer in (one, other))
    assert tensors.keys() == others.keys()
    differing = [name for name, tensor in tensors.items() if not torch.equal(tensor, others[name])]
    assert not differing, f"{len(differing)} of {len(tensors)} tensors differ: {differing[:20]}"
    assert facts["training"] == told["training"]
    assert rows_of(one) == rows_of(other)


def checkpoint_of(trainer: FinFlowTrainer, name: str) -> Path:
    """The file of a checkpoint, which is there or not."""
    return trainer.run_folder / "models" / f"checkpoint_{name}.safetensors"


def latest(trainer: FinFlowTrainer) -> Path:
    return checkpoint_of(trainer, "latest")


def best(trainer: FinFlowTrainer) -> Path:
    return checkpoint_of(trainer, "best")
