"""Speed, as ratios against peers run in turn: `python scripts/benchmark.py env`, `offline`, `online`, `on-policy`,
`training` or `scale`.

Every figure is the median over rounds in which all contenders run one after the other, so that a machine whose speed
drifts drifts for all. One thread. Rates are of processor time, which is close to that of an idle machine where other
programs run.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
import importlib.util
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from benchmark_tools import Rate, contender, measure, print_rates

from finflow.cli.exit_status import run_safely
from finflow.config import Config
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from finflow.training.data.training_data import TrainingData, prepare

VECTORS = (64, 1024, 4096)
#: Name -> module of its function ``benchmark_NAME``, imported when it is asked for.
BENCHMARKS = {
    "env": __name__,
    **dict.fromkeys(("offline", "online", "on-policy"), "benchmark_learners"),
    "training": "benchmark_training",
    "scale": "benchmark_scale",
}


def vector_steps(env: Any, size: int, n_weights: int) -> Rate:
    """Portfolio steps a second of a vector environment, observations and new episodes included."""
    actions = np.random.default_rng(0).dirichlet(np.ones(n_weights), size=size)
    env.reset(seed=0)
    held = None

    def step(_: int) -> None:
        nonlocal held  # as a learner holds what it saw while it steps on
        held = env.step(actions)

    steps = contender(step)
    return lambda: size * steps()


def single_steps(env: gym.Env[Any, Any], action: Any) -> Rate:
    """Steps a second of one environment, resets included."""
    env.reset(seed=0)

    def step(_: int) -> None:
        outcome = env.step(action)
        if outcome[2] or outcome[3]:
            env.reset()

    return contender(step)


def peer(training_data: TrainingData) -> gym.Env[Any, Any] | None:
    """gym-trading-env on one asset with as many features, where it is installed."""
    if importlib.util.find_spec("gym_trading_env") is None:
        return None
    import pandas as pd

    with warnings.catch_warnings():  # its import turns every warning of the process into an error
        from gym_trading_env.environments import TradingEnv

    close = training_data.panel.close[:, 0]
    frame = pd.DataFrame({"close": close}, index=pd.DatetimeIndex(training_data.panel.dates))
    features = training_data.process.asset_features[:, 0, :-1]
    for column in range(features.shape[1]):
        frame[f"feature_{column}"] = np.resize(features[:, column], len(frame))
    env: gym.Env[Any, Any] = TradingEnv(
        df=frame, positions=[0, 1], trading_fees=0.0015, verbose=0, max_episode_duration=252
    )
    return env


def benchmark_env(given: argparse.Namespace) -> None:
    """Print steps a second of our environments and of others."""
    training_data = prepare(Config())
    process, window, n_weights = training_data.process, training_data.split.train, training_data.process.n_weights
    uniform = np.full(n_weights, 1.0 / n_weights)
    contenders: dict[str, Rate] = {}
    for size in VECTORS:
        env = PortfolioVectorEnv(process, window, size, 252, random_portfolios=True)
        contenders[f"ours, {size} portfolios"] = vector_steps(env, size, n_weights)
    contenders["ours, single"] = single_steps(PortfolioEnv(process, window, 252), uniform)
    sync = gym.vector.SyncVectorEnv([lambda: PortfolioEnv(process, window, 252) for _ in range(64)])
    contenders["SyncVectorEnv, 64 of our single"] = vector_steps(sync, 64, n_weights)
    other = peer(training_data)
    if other is not None:
        contenders["gym-trading-env, 1 asset"] = single_steps(other, 1)
    print_rates(measure(contenders, given.rounds), "steps/s")
    if other is None:
        print("gym-trading-env is not installed: pip install gym-trading-env adds the peer")


def main(arguments: Sequence[str]) -> None:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=BENCHMARKS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", help="an interpreter that has d3rlpy, for offline and online")
    parser.add_argument("--sb3-python", help="an interpreter that has sb3-contrib, for online and on-policy")
    parser.add_argument("--row", help="the only row to measure, for scale")
    given = parser.parse_args(arguments)
    module = importlib.import_module(BENCHMARKS[given.what])
    getattr(module, f"benchmark_{given.what.replace('-', '_')}")(given)


if __name__ == "__main__":
    raise SystemExit(run_safely(main))
