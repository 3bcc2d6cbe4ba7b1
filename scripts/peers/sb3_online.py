"""Stable-Baselines3's SAC or sb3-contrib's TQC, timed when asked to: `benchmark_online.py` runs this.

With an interpreter that has both packages; on batches that are ready; float32, their own networks and settings, but
that TQC's critics have 32 quantiles as ours have, where 25 are usual.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from answering import answer, one_thread
from sb3_contrib import TQC
from stable_baselines3 import SAC
from stable_baselines3.common.logger import configure
from stable_baselines3.common.type_aliases import ReplayBufferSamples

N_BATCHES = 16
N_QUANTILES = 32


class Task(gym.Env[Any, Any]):
    """Spaces alone: nothing is played."""

    def __init__(self, observation: int, action: int) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (observation,))
        self.action_space = gym.spaces.Box(-1.0, 1.0, (action,))


class Ready:
    """In place of the replay buffer: batches that were drawn beforehand, in turn."""

    def __init__(self, observation: int, action: int, size: int) -> None:
        self.batches = [
            ReplayBufferSamples(
                observations=torch.randn(size, observation),
                actions=torch.rand(size, action) * 2.0 - 1.0,
                next_observations=torch.randn(size, observation),
                dones=torch.zeros(size, 1),
                rewards=torch.randn(size, 1),
            )
            for _ in range(N_BATCHES)
        ]
        self.drawn = 0

    def sample(self, *_: Any, **__: Any) -> ReplayBufferSamples:
        """The next one."""
        self.drawn += 1
        return self.batches[self.drawn % N_BATCHES]


def main() -> None:
    """Answer rounds until the input ends."""
    one_thread()
    name = sys.argv[1]
    observation, action, size = (int(argument) for argument in sys.argv[2:])
    task = Task(observation, action)
    model: Any
    if name == "tqc":
        model = TQC("MlpPolicy", task, batch_size=size, policy_kwargs={"n_quantiles": N_QUANTILES}, device="cpu")
    else:
        model = SAC("MlpPolicy", task, batch_size=size, device="cpu")
    model.set_logger(configure(None, []))
    model.replay_buffer = Ready(observation, action, size)
    version = sb3_contrib.__version__ if name == "tqc" else stable_baselines3.__version__
    answer(lambda _: model.train(gradient_steps=1, batch_size=size), version)


if __name__ == "__main__":
    main()
