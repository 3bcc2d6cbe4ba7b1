"""Updates a second of our online learning and of its peers, in turn: `python scripts/benchmark.py online`.

20 assets and the default features, batches of 256, float32, one thread; two critics of 32 quantiles, and for CQL 10
coverage, 10 current and 10 next proposals. With `--peer-python PATH` beside d3rlpy's CQL, with `--sb3-python PATH`
beside sb3-contrib's TQC and Stable-Baselines3's SAC, ours without CQL. Seconds are of the processor's time, so that
what else the machine does delays all and counts for none. Peers see the same numbers as one flat observation, and run
in processes of their own that wait while others are measured. Batches are ready beforehand for all; ours are also
timed with their making, as in training.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from in_turn import Contender, Peer, contender, measure, print_rates, print_ratio

from finflow.agent.batch import Batch
from finflow.agent.learners.bcell import BCell
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.config import load_config
from finflow.cores import share_cores
from finflow.offline.collection import collect
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.phases.finetune import CoveragePool
from finflow.training.phases.training_state import seeded

BATCH = 256
N_BATCHES = 16
CQL, PLAIN = "ours", "ours, no CQL"
MADE, PLAIN_MADE = "ours, batches made", "ours, no CQL, made"
D3RLPY, TQC, SAC = "d3rlpy CQL", "sb3-contrib TQC", "SB3 SAC"
GOALS = ((CQL, D3RLPY, 5.0), (PLAIN, TQC, 1.5), (PLAIN, SAC, 1.2))
HINT = """peers are compared with where they are installed, each in an environment of its own:
python -m venv d3env && d3env/bin/pip install torch==2.13.0 d3rlpy==2.8.1 gymnasium==1.0.0
python -m venv sb3env && sb3env/bin/pip install torch==2.13.0 stable-baselines3==2.9.2 sb3-contrib==2.9.2
python scripts/benchmark.py online --peer-python d3env/bin/python --sb3-python sb3env/bin/python"""


def our_updates(training_data: TrainingData) -> tuple[Contender, Contender]:
    """The online update on the behaviour's transitions: on batches that are ready, and with their making."""
    config, device = training_data.config, torch.device("cpu")
    dataset = collect(config, training_data.process, training_data.split.train)
    store, market = (
        Transitions.of(dataset, device),
        MarketTensors.of(training_data.process, device, config.bcell.expert_cloning > 0.0),
    )
    units = RewardUnits.of(training_data.process, dataset.reward_scale, config.train.reward_reference, device)
    agent, noise = BCell(training_data.shape, config.bcell, seeded(0, 0), device), seeded(0, 1)
    pool = CoveragePool(0, training_data.process.n_weights, device)

    def draw() -> tuple[Batch, CoverageProposals]:
        batch = make_batch(store.draw(BATCH, noise), market, units, noise, config.train.observation_noise)
        return batch, pool.draw(batch.states, config.bcell.cql_samples, noise)

    def update(given: tuple[Batch, CoverageProposals], step: int) -> None:
        batch, coverage = given
        agent.update_sac(batch, coverage, noise, step)

    ready = [draw() for _ in range(N_BATCHES)]
    return contender(lambda step: update(ready[step % N_BATCHES], step)), contender(lambda step: update(draw(), step))


def benchmark_online(rounds: int, d3rlpy_python: str | None, sb3_python: str | None) -> None:
    """Print updates a second of all, the bounds of their arithmetic, and ours over each peer's."""
    torch.set_num_threads(1)
    share_cores()  # one thread for all: what a second core brings is not measured here
    training_data = prepare(load_config(None, {"train.online_batch_size": BATCH}, {}))
    without = replace(training_data, config=load_config(None, {"bcell.cql_alpha": 0.0}, {}))
    contenders: dict[str, Contender] = {}
    contenders[CQL], contenders[MADE] = our_updates(training_data)
    contenders[PLAIN], contenders[PLAIN_MADE] = our_updates(without)
    process = training_data.process
    features = process.asset_features.shape[1] * process.asset_features.shape[2] + process.market_features.shape[1]
    sizes = (features + process.portfolio_size, process.n_weights, BATCH)
    peers = {}
    if d3rlpy_python:
        peers[D3RLPY] = Peer(d3rlpy_python, "--peer-python", "d3rlpy_cql.py", sizes)
    if sb3_python:
        peers[TQC] = Peer(sb3_python, "--sb3-python", "sb3_online.py", ("tqc", *sizes))
        peers[SAC] = Peer(sb3_python, "--sb3-python", "sb3_online.py", ("sac", *sizes))
    contenders |= {name: peer.contender for name, peer in peers.items()}
    rates, gemm = measure(contenders, rounds)
    for peer in peers.values():
        peer.close()
    print(f"batch {BATCH}, hidden {training_data.config.bcell.hidden_dim}, float32, one thread, {rounds} rounds")
    print_rates(contenders, rates, gemm)
    for ours, name, goal in GOALS:
        if name in peers:
            print_ratio(rates, ours, name, goal)
    for name, peer in peers.items():
        print(f"{name} {peer.version} sees {sizes[0]} numbers and decides on {sizes[1]}")
    if len(peers) < len(GOALS):
        print(HINT)
