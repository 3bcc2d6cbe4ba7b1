"""Updates a second of our IQL and of d3rlpy's, in turn: `python scripts/benchmark.py offline --peer-python PATH`.

20 assets and the default features, batches of 512, float32, one thread. Seconds are of the processor's time, so that
what else the machine does delays both and counts for neither. The peer sees the same numbers as one flat
observation, and runs in a process of its own that waits while ours is measured. Batches are ready beforehand for both;
ours are also timed with their making, as in training.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from finflow.agent.batch import Batch
from finflow.agent.iql import IQL
from finflow.agent.offline_learner import portfolio_networks
from finflow.config import Config, load_config
from finflow.errors import ConfigError
from finflow.offline.collection import collect
from finflow.training.materials import Materials, prepare
from finflow.training.pretrain import Epochs
from finflow.training.replay import MarketTensors, Transitions, make_batch
from finflow.training.reward_units import RewardUnits
from finflow.training.state import seeded

SECONDS = 1.0  # of each contender in each round, of processor time
BATCH = 512
N_BATCHES = 16
WARM_UP = 10
GEMM_SIZE = 1024
PEER = Path(__file__).parent / "peers" / "d3rlpy_iql.py"
HINT = """no d3rlpy to compare with: python -m venv d3env
d3env/bin/pip install torch==2.13.0 d3rlpy==2.8.1 gymnasium==1.0.0
python scripts/benchmark.py offline --peer-python d3env/bin/python"""


class Ours(NamedTuple):
    """Our learner, and the batches of its training."""

    draw: Callable[[], Batch]
    update: Callable[[Batch], Any]


def our_iql(materials: Materials) -> Ours:
    """IQL on the behaviour's transitions, as the offline phase runs it."""
    config, device = materials.config, torch.device("cpu")
    dataset = collect(config, materials.process, materials.split.train)
    store, market = Transitions.of(dataset, device), MarketTensors.of(materials.process, device)
    units = RewardUnits.of(materials.process, dataset.reward_scale, config.train.reward_reference, device)
    learner = IQL(portfolio_networks(materials.shape, config.bcell, seeded(0, 0)), config.bcell, device)
    noise, epochs, updates = seeded(0, 1), Epochs(config, dataset), itertools.count()

    def draw() -> Batch:
        rows = store.rows(epochs.rows(next(updates)))
        return make_batch(rows, market, units, noise, config.train.observation_noise, epochs.group_size)

    def update(batch: Batch) -> None:
        learner.update(batch, 0.0, noise)

    return Ours(draw, update)


class Peer:
    """A process that measures d3rlpy when asked.

    Parameters
    ----------
    python : str
        An interpreter that has d3rlpy.
    observation, action : int
        Sizes of a flat observation and of an action.
    """

    def __init__(self, python: str, observation: int, action: int) -> None:
        command = [python, str(PEER), str(observation), str(action), str(BATCH)]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise ConfigError(f"--peer-python {python} cannot be run: {error.strerror}") from None
        first = self._answer()
        self.version, self.flops = str(first["version"]), float(first["flops"])

    def rate(self) -> float:
        """Updates a second, now."""
        pipe = _open(self.process.stdin)
        pipe.write(f"{SECONDS}\n")
        pipe.flush()
        return float(self._answer()["rate"])

    def close(self) -> None:
        """End the process."""
        _open(self.process.stdin).close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        for line in _open(self.process.stdout):
            if line.startswith("{"):  # gym prints a farewell of its own
                answer: dict[str, Any] = json.loads(line)
                return answer
        reason = _open(self.process.stderr).read().strip().splitlines()
        raise ConfigError(f"--peer-python: d3rlpy's process ended: {reason[-1] if reason else 'no reason given'}")


def _open(pipe: IO[str] | None) -> IO[str]:
    """A pipe that was asked for."""
    if pipe is None:
        raise TypeError("the process has no such pipe")
    return pipe


def rate_of(step: Callable[[int], None]) -> float:
    """Steps a second of processor time."""
    steps, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        step(steps)
        steps += 1
    return steps / (time.process_time() - began)


def gemm_rate() -> float:
    """Floating-point operations a second of a large float32 matrix product."""
    first, second = torch.randn(2, GEMM_SIZE, GEMM_SIZE)
    result = torch.empty(GEMM_SIZE, GEMM_SIZE)
    torch.mm(first, second, out=result)
    began, count = time.process_time(), 0
    while time.process_time() - began < SECONDS / 4:
        torch.mm(first, second, out=result)
        count += 1
    return 2.0 * GEMM_SIZE**3 * count / (time.process_time() - began)


def benchmark_offline(rounds: int, peer_python: str | None) -> None:
    """Print updates a second of both, their ratio, the bound of the arithmetic and the share of it reached."""
    torch.set_num_threads(1)
    config = load_config(None, {"train.offline_batch_size": BATCH}, {})
    materials = prepare(config)
    ours = our_iql(materials)
    batches = [ours.draw() for _ in range(N_BATCHES)]
    with FlopCounterMode(display=False) as counter:
        ours.update(batches[0])
    our_flops = float(counter.get_total_flops())
    for step in range(WARM_UP):
        ours.update(batches[step])
    process = materials.process
    assets = process.asset_features.shape[1] * process.asset_features.shape[2]
    observation = assets + process.market_features.shape[1] + process.portfolio_size
    peer = Peer(peer_python, observation, process.n_weights) if peer_python else None
    rates: dict[str, list[float]] = {"ours": [], "ours, batches made": [], "d3rlpy": []}
    gemm = []
    for _ in range(rounds):
        gemm.append(gemm_rate())
        rates["ours"].append(rate_of(lambda step: ours.update(batches[step % N_BATCHES])))
        rates["ours, batches made"].append(rate_of(lambda step: ours.update(ours.draw())))
        if peer is not None:
            rates["d3rlpy"].append(peer.rate())
    flops = {"ours": our_flops, "ours, batches made": our_flops}
    if peer is not None:
        peer.close()
        flops["d3rlpy"] = peer.flops
    report(rates, flops, gemm, config)
    if peer is None:
        print(HINT)
    else:
        print(f"d3rlpy {peer.version} sees {observation} numbers and decides on {process.n_weights}")


def report(rates: dict[str, list[float]], flops: dict[str, float], gemm: list[float], config: Config) -> None:
    """Print the table."""
    machine = statistics.median(gemm)
    print(f"batch {BATCH}, hidden {config.bcell.hidden_dim}, float32, one thread, {len(gemm)} rounds of {SECONDS:g} s")
    print(
        f"matrix products of {GEMM_SIZE}: {machine / 1e9:.0f} ({min(gemm) / 1e9:.0f} to {max(gemm) / 1e9:.0f}) GFLOP/s"
    )
    print(
        f"{'':20}{'updates/s':>10}{'least':>8}{'most':>8}{'GFLOP':>8}{'bound/s':>9}{'share':>7}{'x d3rlpy':>10}{'':>4}"
    )
    for name, cost in flops.items():
        found = rates[name]
        # each round against the bound and the peer of the same round: the machine's speed drifts
        share = statistics.median(rate * cost / speed for rate, speed in zip(found, gemm, strict=True))
        line = f"{name:20}{statistics.median(found):10.1f}{min(found):8.1f}{max(found):8.1f}{cost / 1e9:8.2f}"
        line += f"{machine / cost:9.1f}{share:7.0%}"
        if rates["d3rlpy"]:
            ratios = [rate / other for rate, other in zip(found, rates["d3rlpy"], strict=True)]
            line += f"{statistics.median(ratios):10.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(line)
