"""Updates a second of our IQL and of d3rlpy's, in turn: `python scripts/benchmark.py offline --peer-python PATH`.

20 assets and the default features, batches of 512, float32, one thread. Seconds are of the processor's time, so that
what else the machine does delays both and counts for neither. The peer sees the same numbers as one flat
observation, and runs in a process of its own that waits while ours is measured. Batches are ready beforehand for both;
ours are also timed with their making, as in training.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from in_turn import SECONDS, Peer, contender, measure, print_rates, print_ratio

from finflow.agent.batch import Batch
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import portfolio_networks
from finflow.config import load_config
from finflow.cores import share_cores
from finflow.offline.collection import collect
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.phases.pretrain import Epochs
from finflow.training.phases.training_state import seeded

BATCH = 512
N_BATCHES = 16
OURS, MADE, D3RLPY, GOAL = "ours", "ours, batches made", "d3rlpy IQL", 2.0
HINT = """no d3rlpy to compare with: python -m venv d3env
d3env/bin/pip install torch==2.13.0 d3rlpy==2.8.1 gymnasium==1.0.0
python scripts/benchmark.py offline --peer-python d3env/bin/python"""


class Ours(NamedTuple):
    """Our learner, and the batches of its training."""

    draw: Callable[[], Batch]
    update: Callable[[Batch], Any]


def our_iql(training_data: TrainingData) -> Ours:
    """IQL on the behaviour's transitions, as the offline phase runs it."""
    config, device = training_data.config, torch.device("cpu")
    dataset = collect(config, training_data.process, training_data.split.train)
    store, market = (
        Transitions.of(dataset, device),
        MarketTensors.of(training_data.process, device, config.bcell.expert_cloning > 0.0),
    )
    units = RewardUnits.of(training_data.process, dataset.reward_scale, config.train.reward_reference, device)
    learner = IQL(portfolio_networks(training_data.shape, config.bcell, seeded(0, 0)), config.bcell, device)
    noise, epochs, updates = seeded(0, 1), Epochs(config, dataset), itertools.count()

    def draw() -> Batch:
        rows = store.rows(epochs.rows(next(updates)))
        return make_batch(rows, market, units, noise, config.train.observation_noise, epochs.group_size)

    def update(batch: Batch) -> None:
        learner.update(batch, 0.0, noise)

    return Ours(draw, update)


def benchmark_offline(rounds: int, peer_python: str | None) -> None:
    """Print updates a second of both, their ratio, the bound of the arithmetic and the share of it reached."""
    torch.set_num_threads(1)
    share_cores()  # one thread for all
    config = load_config(None, {"train.offline_batch_size": BATCH}, {})
    training_data = prepare(config)
    ours = our_iql(training_data)
    batches = [ours.draw() for _ in range(N_BATCHES)]
    contenders = {
        OURS: contender(lambda step: ours.update(batches[step % N_BATCHES])),
        MADE: contender(lambda step: ours.update(ours.draw())),
    }
    process = training_data.process
    assets = process.asset_features.shape[1] * process.asset_features.shape[2]
    observation = assets + process.market_features.shape[1] + process.portfolio_size
    sizes = (observation, process.n_weights, BATCH)
    peer = Peer(peer_python, "--peer-python", "d3rlpy_iql.py", sizes) if peer_python else None
    if peer is not None:
        contenders[D3RLPY] = peer.contender
    rates, gemm = measure(contenders, rounds)
    print(f"batch {BATCH}, hidden {config.bcell.hidden_dim}, float32, one thread, {rounds} rounds of {SECONDS:g} s")
    print_rates(contenders, rates, gemm)
    if peer is None:
        print(HINT)
        return
    peer.close()
    for name in (OURS, MADE):
        print_ratio(rates, name, D3RLPY, GOAL)
    print(f"d3rlpy {peer.version} sees {observation} numbers and decides on {process.n_weights}")
