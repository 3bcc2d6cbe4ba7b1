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
from finflow.training.data.training_worlds import episode_worlds
from finflow.training.phase_names import ONLINE

SEED = 5  # added to the training's seed for the environments


class Environments:
    """Environments of the online phase, saved in mid-episode.

    Parameters
    ----------
    env : PortfolioVectorEnv
    """

    def __init__(self, env: PortfolioVectorEnv) -> None:
        self.env = env

    @property
    def n_universes(self) -> int:
        """Sub-universes that episodes may have."""
        inside = self.env.process.inside
        return 1 if inside is None else len(inside)

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
        for name, count in (("age", self.env.episode_length), ("universe", self.n_universes)):
            if name in tensors and not bool(((tensors[name] >= 0) & (tensors[name] < count)).all()):
                raise ValueError(f"the {name} of an environment is out of its range")
        weights = tensors["weights"]
        sums = weights.sum(dim=1)
        if bool((weights < -1e-9).any() | ((sums - 1).abs() > 1e-6).any() | (tensors["wealth"] <= 0).any()):
            raise ValueError("an environment holds what is no portfolio")
        self.env.set_state({name: tensors[name].numpy() for name in fresh}, state["generator"])


def make_environments(config: Config, training_data: TrainingData, count: int) -> PortfolioVectorEnv:
    """Environments of the online phase before their first step."""
    process = training_data.learning.process
    env = PortfolioVectorEnv(
        process,
        training_data.windows(ONLINE),
        count,
        config.env.episode_length,
        random_portfolios=True,
        worlds=episode_worlds(config, process, ONLINE),
    )
    env.reset(seed=config.train.seed + SEED)
    return env
