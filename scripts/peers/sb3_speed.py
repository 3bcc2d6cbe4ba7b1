"""Stable-Baselines3's SAC and PPO or sb3-contrib's TQC, timed when asked to: `benchmark_learners.py` runs this.

    python sb3_speed.py {sac,tqc} OBSERVATION ACTION BATCH
    python sb3_speed.py TASK ENVIRONMENTS ROLLOUT MINIBATCH EPOCHS

With an interpreter that has both packages; float32, their own networks and settings, but that TQC's critics have 32
quantiles as ours have, where 25 are usual. SAC and TQC learn on batches that are ready. An update of PPO is one rollout
and the learning from it, as `learn` does them, on one of gymnasium's tasks or on ``market``, finflow's vector
environment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3
import torch
from answering import answer, one_thread
from sb3_contrib import TQC
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env
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


def off_policy(name: str, observation: int, action: int, size: int) -> Callable[[int], None]:
    """An update of SAC or TQC."""
    task = Task(observation, action)
    model: Any
    if name == "tqc":
        model = TQC("MlpPolicy", task, batch_size=size, policy_kwargs={"n_quantiles": N_QUANTILES}, device="cpu")
    else:
        model = SAC("MlpPolicy", task, batch_size=size, device="cpu")
    model.set_logger(configure(None, []))
    model.replay_buffer = Ready(observation, action, size)
    return lambda _: model.train(gradient_steps=1, batch_size=size)


def on_policy(name: str, environments: int, rollout: int, minibatch: int, epochs: int) -> Callable[[int], object]:
    """A rollout and an update of PPO."""
    task: Any
    if name == "market":
        from finflow.env.sb3 import SB3VecEnv
        from finflow.training.data.training_data import make_env

        task, policy = SB3VecEnv(make_env(num_envs=environments)), "MultiInputPolicy"
    else:
        task, policy = make_vec_env(name, environments, seed=0), "MlpPolicy"
    steps = rollout // environments
    model = PPO(policy, task, n_steps=steps, batch_size=minibatch, n_epochs=epochs, device="cpu", seed=0)
    model.learn(rollout)
    return lambda _: model.learn(rollout, reset_num_timesteps=False)


def main() -> None:
    """Answer rounds until the input ends."""
    one_thread()
    name, sizes = sys.argv[1], [int(argument) for argument in sys.argv[2:]]
    update = off_policy(name, *sizes) if name in ("sac", "tqc") else on_policy(name, *sizes)
    answer(update, sb3_contrib.__version__ if name == "tqc" else stable_baselines3.__version__)


if __name__ == "__main__":
    main()
