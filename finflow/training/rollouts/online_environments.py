"""Environments of the on-policy phase, as parts of a training's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finflow.config import Config
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.guard.state_capture import check_like
from finflow.training.data.training_data import TrainingData

SEED = 5  # added to the training's seed for the environments


class Environments:
    """Environments of the online phase, saved in mid-episode."""

    def __init__(self, env: PortfolioVectorEnv) -> None:
        self.env = env

    def reseed(self, words: list[int]) -> None:
        """Other random numbers from here on."""
        arrays, _ = self.env.get_state()
        drawn = np.random.default_rng(np.random.SeedSequence(words))
        self.env.set_state(arrays, dict(drawn.bit_generator.state))

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the environments and their generator."""
        arrays, generator = self.env.get_state()
        return {name: torch.from_numpy(array) for name, array in arrays.items()}, {"generator": generator}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore both, if each environment is where an episode can be."""
        fresh, _ = self.env.get_state()
        for name, array in fresh.items():
            check_like(tensors[name], torch.from_numpy(array))
            if not bool(tensors[name].isfinite().all()):
                raise ValueError("an environment holds what is not a number")
        if not bool(np.isin(tensors["bar"].numpy(), self.env.bars).all()):
            raise ValueError("an environment is at a bar outside of its window")
        age = tensors["age"]
        if not bool(((age >= 0) & (age < self.env.episode_length)).all()):
            raise ValueError("the age of an environment is out of its range")
        weights = tensors["weights"]
        sums = weights.sum(dim=1)
        if bool((weights < -1e-9).any() | ((sums - 1).abs() > 1e-6).any() | (tensors["wealth"] <= 0).any()):
            raise ValueError("an environment holds what is no portfolio")
        self.env.set_state({name: tensors[name].numpy() for name in fresh}, state["generator"])


def make_environments(config: Config, training_data: TrainingData, count: int) -> PortfolioVectorEnv:
    """Environments of the online phase before their first step."""
    env = PortfolioVectorEnv(
        training_data.learning, training_data.train, count, config.env.episode_length, random_portfolios=True
    )
    env.reset(seed=config.train.seed + SEED)
    return env
