"""Whole trainings, and where they leave their checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from finflow.config import Config
from finflow.training.trainer import FinFlowTrainer

Make = Callable[..., Config]
Stop = Callable[[Config, int], FinFlowTrainer]


def train_through(config: Config, **given: Path) -> FinFlowTrainer:
    """Run both phases, without the report."""
    trainer = FinFlowTrainer(config, **given)
    trainer.train_iql()
    trainer.finetune()
    return trainer


def checkpoint_of(trainer: FinFlowTrainer, name: str) -> Path:
    """The file of a checkpoint, which is there or not."""
    return trainer.run_folder / "models" / f"checkpoint_{name}.safetensors"


def latest(trainer: FinFlowTrainer) -> Path:
    return checkpoint_of(trainer, "latest")


def best(trainer: FinFlowTrainer) -> Path:
    return checkpoint_of(trainer, "best")
