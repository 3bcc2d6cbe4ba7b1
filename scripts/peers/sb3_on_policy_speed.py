"""Stable-Baselines3's PPO, timed when asked to: `benchmark_on_policy.py` runs this.

An update is one rollout and the learning from it, as `learn` does them. The task is one of gymnasium's, or ``market``,
finflow's vector environment.
"""

from __future__ import annotations

import sys
from typing import Any

import stable_baselines3
from answering import answer, one_thread
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    """Answer rounds until the input ends."""
    one_thread()
    name = sys.argv[1]
    environments, rollout, minibatch, epochs = (int(argument) for argument in sys.argv[2:])
    task: Any
    if name == "market":
        from finflow.env.sb3 import SB3VecEnv
        from finflow.training.make_env import make_env

        task, policy = SB3VecEnv(make_env(num_envs=environments)), "MultiInputPolicy"
    else:
        task, policy = make_vec_env(name, environments, seed=0), "MlpPolicy"
    steps = rollout // environments
    model = PPO(policy, task, n_steps=steps, batch_size=minibatch, n_epochs=epochs, device="cpu", seed=0)
    model.learn(rollout)

    def update(_: int) -> None:
        model.learn(rollout, reset_num_timesteps=False)

    answer(update, stable_baselines3.__version__)


if __name__ == "__main__":
    main()
