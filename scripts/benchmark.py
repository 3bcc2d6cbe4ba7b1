"""Speed, as ratios against peers run in turn: `python scripts/benchmark.py env`, `features`, `offline`,
`online`, `on-policy` or `training`.

Every figure is the median over rounds in which all contenders run one after the other, so that a machine whose speed
drifts drifts for all. One thread. Where other programs take the processor, processor time is close to that of an idle
machine, but for the caches and the memory that they share.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import importlib
import importlib.util
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from benchmark_tools import random_walks, seconds_of

from finflow.cli.exit_status import run_safely
from finflow.config import Config
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.training.data.training_data import TrainingData, prepare

SECONDS = 1.0  # of each contender in each round
VECTORS = (64, 1024, 4096)
BARS = 8312  # 33 years
SIZES = (20, 500)  # assets whose features are computed
#: Name -> module of its function ``benchmark_NAME``, imported when it is asked for.
BENCHMARKS = {
    **dict.fromkeys(("env", "features"), __name__),
    **dict.fromkeys(("offline", "online", "on-policy"), "benchmark_learners"),
    "training": "benchmark_training",
}


class Rate(NamedTuple):
    """Steps a second, by the clock and by the processor's own time."""

    clock: float
    processor: float


class Stopwatch:
    """Counts steps for ``SECONDS``."""

    def __init__(self) -> None:
        self.steps = 0
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def runs(self) -> bool:
        """True while there is time left."""
        return time.perf_counter() - self._clock < SECONDS

    def rate(self) -> Rate:
        """Of the steps since the beginning."""
        clock, processor = time.perf_counter() - self._clock, time.process_time() - self._processor
        return Rate(self.steps / clock, self.steps / processor)


def vector_rate(env: Any, size: int, n_weights: int) -> Callable[[], Rate]:
    """Portfolio steps a second of a vector environment, observations and new episodes included."""
    actions = np.random.default_rng(0).dirichlet(np.ones(n_weights), size=size)
    env.reset(seed=0)
    for _ in range(5):
        env.step(actions)

    def measure() -> Rate:
        watch = Stopwatch()
        while watch.runs():
            held = env.step(actions)  # as a learner holds what it saw while it steps on
            watch.steps += size
        del held
        return watch.rate()

    return measure


def single_rate(env: gym.Env[Any, Any], action: Any) -> Callable[[], Rate]:
    """Steps a second of one environment, resets included."""
    env.reset(seed=0)
    env.step(action)

    def measure() -> Rate:
        watch = Stopwatch()
        env.reset()
        while watch.runs():
            _, _, terminated, truncated, _ = env.step(action)
            watch.steps += 1
            if terminated or truncated:
                env.reset()
        return watch.rate()

    return measure


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
    contenders: dict[str, Callable[[], Rate]] = {}
    for size in VECTORS:
        env = PortfolioVectorEnv(process, window, size, 252, random_portfolios=True)
        contenders[f"ours, {size} portfolios"] = vector_rate(env, size, n_weights)
    contenders["ours, single"] = single_rate(PortfolioEnv(process, window, 252), uniform)
    sync = gym.vector.SyncVectorEnv([lambda: PortfolioEnv(process, window, 252) for _ in range(64)])
    contenders["SyncVectorEnv, 64 of our single"] = vector_rate(sync, 64, n_weights)
    other = peer(training_data)
    if other is not None:
        contenders["gym-trading-env, 1 asset"] = single_rate(other, 1)
    rates: dict[str, list[Rate]] = {name: [] for name in contenders}
    for _ in range(given.rounds):
        for name, measure in contenders.items():
            rates[name].append(measure())
    _print_rates(rates)
    if other is None:
        print("gym-trading-env is not installed: pip install gym-trading-env adds the peer")


def _print_rates(rates: dict[str, list[Rate]]) -> None:
    """One line for each contender."""
    single = statistics.median(rate.clock for rate in rates["ours, single"])
    print(f"{'':34}{'steps/s':>14}{'least':>14}{'most':>14}{'x single':>10}{'by CPU time':>14}")
    for name, found in rates.items():
        clock = [rate.clock for rate in found]
        middle, processor = statistics.median(clock), statistics.median(rate.processor for rate in found)
        print(
            f"{name:34}{middle:14,.0f}{min(clock):14,.0f}{max(clock):14,.0f}{middle / single:10.2f}{processor:14,.0f}"
        )


def random_market(n_assets: int) -> MarketPanel:
    """Random walks of 33 years, with all the fields that features may read."""
    rng = np.random.default_rng(0)
    close = random_walks(rng, BARS, n_assets)
    start = close * np.exp(rng.normal(0.0, 0.005, size=close.shape))
    spread = np.exp(np.abs(rng.normal(0.0, 0.005, size=close.shape)))
    return MarketPanel(
        dates=np.datetime64("1990-01-02") + np.arange(BARS),
        assets=tuple(f"A{column}" for column in range(n_assets)),
        close=close,
        open=start,
        high=np.maximum(start, close) * spread,
        low=np.minimum(start, close) / spread,
        volume=rng.lognormal(15.0, 1.0, size=close.shape),
        cash_returns=np.zeros(BARS),
    )


def benchmark_features(given: argparse.Namespace) -> None:
    """Print how long the features of a market take."""
    print(f"{'features of 33 years':34}{'seconds':>10}{'least':>10}{'most':>10}{'CPU time':>10}")
    for n_assets in SIZES:
        panel = random_market(n_assets)
        rounds = [seconds_of(partial(compute_features, panel, BARS // 2)) for _ in range(given.rounds)]
        clock, processor = ([getattr(one, name) for one in rounds] for name in ("clock", "processor"))
        print(
            f"{f'{n_assets} assets':34}{statistics.median(clock):10.2f}{min(clock):10.2f}{max(clock):10.2f}"
            f"{statistics.median(processor):10.2f}"
        )


def main(arguments: Sequence[str]) -> None:
    """Run one benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=BENCHMARKS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", help="an interpreter that has d3rlpy, for offline and online")
    parser.add_argument("--sb3-python", help="an interpreter that has sb3-contrib, for online and on-policy")
    given = parser.parse_args(arguments)
    module = importlib.import_module(BENCHMARKS[given.what])
    getattr(module, f"benchmark_{given.what.replace('-', '_')}")(given)


if __name__ == "__main__":
    raise SystemExit(run_safely(main))
