"""Environments and replay of the online phase, as parts of a training's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from finflow.config import Config
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.guard.state_capture import check_like, without_prefix
from finflow.training.data.replay import ONLINE as FAMILY
from finflow.training.data.replay import Transitions
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


class OnlineWorld(Environments):
    """Environments and the replay of their transitions.

    Parameters
    ----------
    env : PortfolioVectorEnv
    replay : Transitions

    Attributes
    ----------
    episodes : int
        Episodes that ended so far.
    """

    def __init__(self, env: PortfolioVectorEnv, replay: Transitions) -> None:
        super().__init__(env)
        self.replay = replay
        self.episodes = 0

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture environments, generator, and what was written to the replay."""
        of_env, state = super().capture()
        tensors = {f"env.{name}": tensor for name, tensor in of_env.items()}
        kept = self.replay.occupied
        tensors |= {f"replay.{name}": column[:kept].clone() for name, column in self.replay.columns.items()}
        return tensors, {**state, "written": self.replay.written, "first": self.replay.first, "episodes": self.episodes}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore all of it."""
        replay, rows = self.replay, without_prefix(tensors, "replay.")
        written, first = state["written"], state["first"]
        ring = first is None  # as format 1 kept it: nothing beside the transitions that may be drawn
        first = max(written - replay.capacity, 0) if ring and type(written) is int else first
        if type(written) is not int or type(first) is not int or not 0 <= first <= written <= 10**12:
            raise ValueError("its count of transitions is none")
        kept = min(written, replay.capacity) if ring else replay.places if first > 0 else written
        for name, column in replay.columns.items():
            check_like(rows[name], column[:kept])
        allowed = (
            ("bar", self.env.bars.tolist()),
            ("family", range(FAMILY + 1)),
            ("universe", range(self.n_universes)),
        )
        for name, values in allowed:
            if len(rows.get(name, ())) and not {int(rows[name].min()), int(rows[name].max())} <= set(values):
                raise ValueError(f"replay.{name} is out of its range")
        super().restore(without_prefix(tensors, "env."), state)
        replay.written, replay.first = written, first
        self.episodes = int(state.get("episodes", 0))  # older checkpoints do not count them
        stored = torch.arange(first, written)
        for name, column in replay.columns.items():
            saved = rows[name].to(column.device)
            if ring and kept:
                column[:] = saved[first % kept]  # places that never held anything hold the oldest
                column[stored % replay.places] = saved[stored % kept]
            else:
                column[:kept] = saved


class WorldPosition(Environments):
    """State of an online world without the contents of its replay, for snapshots in memory.

    The guard decides what the replay forgets after a rollback.

    Parameters
    ----------
    world : OnlineWorld
    """

    def __init__(self, world: OnlineWorld) -> None:
        super().__init__(world.env)
        self.replay = world.replay

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture environments, generator, and how much was written to the replay."""
        tensors, state = super().capture()
        return tensors, {**state, "written": self.replay.written}


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


def make_world(config: Config, training_data: TrainingData, device: torch.device) -> OnlineWorld:
    """Environments before their first step, and an empty replay."""
    process = training_data.learning.process
    replay = Transitions(
        config.bcell.memory_capacity,
        process.n_weights,
        process.portfolio_size,
        device,
        slack=_replay_slack(config),
        universes=process.inside is not None,
    )
    return OnlineWorld(make_environments(config, training_data, config.train.n_envs), replay)


def _replay_slack(config: Config) -> int:
    """Transitions kept beyond those learned from, so that a rollback finds what a full replay has dropped since."""
    if not config.guard.enabled:
        return 0
    rollback, train = config.guard.rollback, config.train
    updates = rollback.save_interval * rollback.max_checkpoints + rollback.probation
    return min(-(-updates // train.updates_per_vector_step) * train.n_envs, config.bcell.memory_capacity)
