"""Stable-Baselines3's SAC or sb3-contrib's TQC on a synthetic market: `scripts.evidence optimality` runs this.

    python sb3_market.py CONFIGURATION {sac,tqc} {softmax,share} SECONDS

With an interpreter that has both packages and finflow. Their own networks and settings, but for the discount, which is
that of the configuration, and as many updates as transitions (`gradient_steps=-1`). Observations are finflow's, flat;
rewards are finflow's, over their deviation. An action in [-1, 1] becomes a portfolio by the softmax of five times it,
or by its share of the sum of (1 + a) / 2. Prints a line of JSON: seconds of the processor's time and score at each
look.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from answering import one_thread
from numpy.typing import NDArray
from sb3_contrib import TQC
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnvWrapper

from finflow.config import load_config
from finflow.env.sb3 import SB3VecEnv
from finflow.evaluation.backtest import run_backtests
from finflow.strategies.strategy import Information
from finflow.training.data.training_data import make_env, prepare
from scripts.evidence.optimality import judge_of, traits

FloatArray = NDArray[np.floating[Any]]
LOOKS = 20
SHARPNESS = 5.0
STEPS_FOR_SCALE = 500


def portfolio(actions: FloatArray, mapping: str) -> FloatArray:
    """Actions (..., K) in [-1, 1] as portfolios."""
    if mapping == "softmax":
        powers = np.exp(SHARPNESS * (actions - actions.max(axis=-1, keepdims=True)))
        found: FloatArray = powers / powers.sum(axis=-1, keepdims=True)
        return found
    shares = (1.0 + actions.astype(np.float64)) / 2.0 + 1e-9
    found = shares / shares.sum(axis=-1, keepdims=True)
    return found


def flat(observation: Any) -> FloatArray:
    """Everything that is seen, (batch, D)."""
    parts = [np.asarray(observation[name]) for name in ("assets", "market", "portfolio")]
    size = len(parts[1])
    return np.concatenate([part.reshape(size, -1) for part in parts], axis=1).astype(np.float32)


class Flat(VecEnvWrapper):
    """The market as peers take it: flat observations, actions in a box, rewards of deviation one."""

    def __init__(self, market: SB3VecEnv, mapping: str) -> None:
        self.mapping, self.scale = mapping, 1.0
        size = flat(market.reset()).shape[1]
        k = int((market.action_space.shape or (0,))[0])
        super().__init__(market, gym.spaces.Box(-np.inf, np.inf, (size,)), gym.spaces.Box(-1.0, 1.0, (k,)))
        draw, rewards = np.random.default_rng(0), []
        for _ in range(STEPS_FOR_SCALE):
            market.step_async(portfolio(draw.uniform(-1.0, 1.0, (market.num_envs, k)), mapping))
            rewards.append(market.step_wait()[1])
        self.scale = float(np.std(rewards))

    def reset(self) -> FloatArray:
        """Start every episode."""
        return flat(self.venv.reset())

    def step_async(self, actions: FloatArray) -> None:
        """Take the actions."""
        self.venv.step_async(portfolio(actions, self.mapping))

    def step_wait(self) -> Any:
        """Fill them."""
        observation, rewards, done, infos = self.venv.step_wait()
        for info in infos:
            if "terminal_observation" in info:
                last = {name: np.asarray(value)[None] for name, value in info["terminal_observation"].items()}
                info["terminal_observation"] = flat(last)[0]
        return flat(observation), rewards / self.scale, done, infos


class Learned:
    """A peer's policy as a strategy."""

    name = "peer"

    def __init__(self, model: Any, mapping: str) -> None:
        self.model, self.mapping = model, mapping

    def decide(self, information: Information) -> NDArray[np.float64]:
        """The portfolio of the deterministic action."""
        seen = {name: np.asarray(value)[None] for name, value in (information.observation or {}).items()}
        action, _ = self.model.predict(flat(seen), deterministic=True)
        return np.asarray(portfolio(action, self.mapping)[0], dtype=np.float64)


class Looking(BaseCallback):
    """Looks at the validation window now and then, off the clock, and ends the learning when its time is up."""

    def __init__(self, training_data: Any, mapping: str, limit: float) -> None:
        super().__init__()
        self.training_data, self.mapping, self.limit = training_data, mapping, limit
        self.judge = judge_of(training_data)
        self.curve: list[tuple[float, float | None]] = []
        self.last: dict[str, float] = {}
        self.off, self.began = 0.0, time.process_time()

    @property
    def seconds(self) -> float:
        """Of learning, so far."""
        return time.process_time() - self.began - self.off

    def look(self) -> None:
        """Score the policy as it is."""
        seconds, now = self.seconds, time.process_time()
        agent = Learned(self.model, self.mapping)
        (run,) = run_backtests(self.training_data.process, self.training_data.split.validation, [agent])
        value = self.judge(run)
        self.curve.append((round(seconds, 1), None if math.isnan(value) else round(value, 4)))
        self.last = traits(run)
        self.off += time.process_time() - now

    def _on_step(self) -> bool:
        if self.seconds >= (len(self.curve) + 1) * self.limit / LOOKS:
            self.look()
        return len(self.curve) < LOOKS


def main() -> None:
    """Learn until the time is up."""
    one_thread()
    settings, algorithm, mapping, limit = sys.argv[1:]
    config = load_config(Path(settings), environ={})
    training_data = prepare(config)
    portfolios = make_env(config, "train", num_envs=config.train.n_envs, random_portfolios=True)
    market = Flat(SB3VecEnv(portfolios), mapping)
    chosen = {"sac": SAC, "tqc": TQC}[algorithm]
    model = chosen(
        "MlpPolicy", market, gamma=config.bcell.gamma, gradient_steps=-1, seed=config.train.seed, device="cpu"
    )
    looking = Looking(training_data, mapping, float(limit))
    model.learn(10**9, callback=looking)
    seconds = {"processor": round(looking.seconds, 1)}
    print(json.dumps({"seconds": seconds, "curve": looking.curve, "steps": model.num_timesteps, **looking.last}))


if __name__ == "__main__":
    main()
