"""Speed, as ratios against peers run in turn: `python scripts/benchmark.py env`, or `offline`.

Every figure is the median over rounds in which all contenders run one after the other, so that a machine whose speed
drifts drifts for all. One thread.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from finflow.cli.safety import run_safely
from finflow.config import Config
from finflow.env.portfolio_env import PortfolioEnv
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.materials import Materials, prepare

SECONDS = 1.0  # of each contender in each round
VECTORS = (64, 1024, 4096)
COPIED = 64 * 2**20  # bytes


def vector_rate(env: Any, size: int, n_weights: int) -> Callable[[], float]:
    """Portfolio steps a second of a vector environment, observations included."""
    actions = np.random.default_rng(0).dirichlet(np.ones(n_weights), size=size)
    env.reset(seed=0)
    for _ in range(5):
        env.step(actions)

    def measure() -> float:
        steps, began = 0, time.perf_counter()
        while time.perf_counter() - began < SECONDS:
            env.step(actions)
            steps += size
        return steps / (time.perf_counter() - began)

    return measure


def single_rate(env: gym.Env[Any, Any], action: Any) -> Callable[[], float]:
    """Steps a second of one environment, resets included."""
    env.reset(seed=0)
    env.step(action)

    def measure() -> float:
        steps, began = 0, time.perf_counter()
        env.reset()
        while time.perf_counter() - began < SECONDS:
            _, _, terminated, truncated, _ = env.step(action)
            steps += 1
            if terminated or truncated:
                env.reset()
        return steps / (time.perf_counter() - began)

    return measure


def peer(materials: Materials) -> gym.Env[Any, Any] | None:
    """gym-trading-env on one asset with as many features, where it is installed."""
    if importlib.util.find_spec("gym_trading_env") is None:
        return None
    import pandas as pd
    from gym_trading_env.environments import TradingEnv

    close = materials.panel.close[:, 0]
    frame = pd.DataFrame({"close": close}, index=pd.DatetimeIndex(materials.panel.dates))
    features = materials.process.asset_features[:, 0, :-1]
    for column in range(features.shape[1]):
        frame[f"feature_{column}"] = np.resize(features[:, column], len(frame))
    env: gym.Env[Any, Any] = TradingEnv(
        df=frame, positions=[0, 1], trading_fees=0.0015, verbose=0, max_episode_duration=252
    )
    return env


def copy_bandwidth() -> float:
    """Bytes a second of a plain memory copy outside the caches."""
    source, target = np.ones(COPIED, dtype=np.uint8), np.empty(COPIED, dtype=np.uint8)
    np.copyto(target, source)
    began = time.perf_counter()
    for _ in range(5):
        np.copyto(target, source)
    return 5 * COPIED / (time.perf_counter() - began)


def benchmark_environments(rounds: int) -> None:
    """Print steps a second of our environments and of others."""
    materials = prepare(Config())
    process, window, n_weights = materials.process, materials.split.train, materials.process.n_weights
    uniform = np.full(n_weights, 1.0 / n_weights)
    contenders: dict[str, Callable[[], float]] = {
        f"ours, {size} portfolios": vector_rate(
            PortfolioVectorEnv(process, window, size, 252, random_portfolios=True), size, n_weights
        )
        for size in VECTORS
    }
    contenders["ours, single"] = single_rate(PortfolioEnv(process, window, 252), uniform)
    sync = gym.vector.SyncVectorEnv([lambda: PortfolioEnv(process, window, 252) for _ in range(64)])
    contenders["SyncVectorEnv, 64 of our single"] = vector_rate(sync, 64, n_weights)
    other = peer(materials)
    if other is not None:
        contenders["gym-trading-env, 1 asset"] = single_rate(other, 1)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    bandwidths = []
    for _ in range(rounds):
        bandwidths.append(copy_bandwidth())
        for name, measure in contenders.items():
            rates[name].append(measure())
    single = statistics.median(rates["ours, single"])
    print(f"{'':34}{'steps/s':>14}{'least':>14}{'most':>14}{'x single':>10}")
    for name, found in rates.items():
        middle = statistics.median(found)
        print(f"{name:34}{middle:14,.0f}{min(found):14,.0f}{max(found):14,.0f}{middle / single:10.2f}")
    features = process.asset_features.shape[1] * process.asset_features.shape[2] + process.market_features.shape[1]
    written = 4 * features + 8 * process.portfolio_size
    bound = statistics.median(bandwidths) / written
    best = statistics.median(rates["ours, 1024 portfolios"])
    print(
        f"an observation has {written} bytes; copied at {statistics.median(bandwidths) / 1e9:.1f} GB/s they bound the"
    )
    print(f"rate at {bound:,.0f} steps/s outside the caches; 1024 portfolios reach {best / bound:.0%} of that")
    if other is None:
        print("gym-trading-env is not installed: pip install gym-trading-env adds the peer")


def main(arguments: Sequence[str]) -> None:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["env", "offline"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", help="an interpreter that has d3rlpy, for offline")
    given = parser.parse_args(arguments)
    if given.what == "offline":
        from benchmark_offline import benchmark_offline

        benchmark_offline(given.rounds, given.peer_python)
    else:
        benchmark_environments(given.rounds)


if __name__ == "__main__":
    raise SystemExit(run_safely(main))
