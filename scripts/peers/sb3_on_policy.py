"""Stable-Baselines3's PPO or sb3-contrib's TRPO on one task: `scripts.evidence tasks` runs this.

The one argument is JSON with the settings, the answer one line of JSON. One thread.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import stable_baselines3
from answering import one_thread
from sb3_contrib import TRPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    """Train once, and judge the policy's modes on held-out episodes."""
    one_thread()
    asked = json.loads(sys.argv[1])
    task = make_vec_env(asked["name"], asked["environments"], seed=asked["seed"])
    common: dict[str, Any] = {
        "n_steps": asked["rollout"] // asked["environments"],
        "batch_size": asked["minibatch"],
        "gamma": asked["gamma"],
        "gae_lambda": asked["gae_lambda"],
        "learning_rate": asked["learning_rate"],
        "seed": asked["seed"],
        "device": "cpu",
    }
    model: Any
    if asked["algorithm"] == "trpo":
        model = TRPO("MlpPolicy", task, n_critic_updates=asked["epochs"], **common)
    else:
        model = PPO("MlpPolicy", task, n_epochs=asked["epochs"], ent_coef=asked["entropy_coefficient"], **common)
    began = time.process_time()
    model.learn(asked["decisions"])
    seconds = time.process_time() - began
    judged = make_vec_env(asked["name"], asked["episodes"], seed=asked["held_out_seed"])
    shown = judged.reset()
    returns, playing = np.zeros(asked["episodes"]), np.ones(asked["episodes"], bool)
    while playing.any():
        shown, rewards, ended, _ = judged.step(model.predict(shown, deterministic=True)[0])
        returns += np.where(playing, rewards, 0.0)
        playing &= ~ended
    answer = {
        "final": round(float(returns.mean()), 1),
        "seconds": {"learning": round(seconds, 1)},
        "version": stable_baselines3.__version__,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
