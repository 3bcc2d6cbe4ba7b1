"""Updates a second of our learners and of peers, in turn: `python scripts/benchmark.py offline`, `online`, `on-policy`.

20 assets and the default features, float32, one thread. Offline: IQL on batches of 512, and d3rlpy's IQL with
`--peer-python PATH`. Online: soft actor-critic as published, with `bcell.expansion` 0 and stored transitions alone, on
batches of 256, two critics of 32 quantiles, with 10 coverage, 10 current and 10 next proposals of CQL, and without CQL;
d3rlpy's CQL with `--peer-python PATH`, sb3-contrib's TQC and Stable-Baselines3's SAC with `--sb3-python PATH`; beside
them the update of one learner of the default. The bound of an update is the time that its products of matrices take at
the rate of large ones.

Seconds are of processor time, so that other programs of the machine delay all and count for none. Peers see the same
numbers as one flat observation, and run in processes of their own that wait while others are measured. Batches are
ready beforehand for all; ours are also timed with their making, as in training.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar
from unittest.mock import patch

import torch
from benchmark_tools import (
    SECONDS,
    Peer,
    Rate,
    contender,
    measure,
    operations_of,
    print_rates,
    print_ratio,
    product_rate,
    spread,
    use_one_thread,
)

from finflow.agent.batch import Batch
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import IQL, portfolio_networks
from finflow.agent.losses.off_policy_losses import CoverageProposals
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.config import load_config
from finflow.offline.collection import collect
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import CoveragePool, MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.training_data import TrainingData, make_env, prepare
from finflow.training.on_policy.advanced_trainer import AdvancedPPOTrainer
from finflow.training.on_policy.on_policy_rollouts import Environment, VectorTask
from finflow.training.phases import finetune
from finflow.training.phases.pretrain import Epochs
from finflow.training.phases.training_state import seeded
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.on_policy_tasks import make_task
from scripts.evidence.results import places_in

CPU = torch.device("cpu")
OFFLINE_BATCH, ONLINE_BATCH = 512, 256
N_BATCHES = 16
PUBLISHED: dict[str, object] = {
    "bcell.expansion": 0,
    "bcell.counterfactual": False,
    "bcell.cql_samples": 10,
    "train.online_batch_size": ONLINE_BATCH,
}
OURS, MADE, D3RLPY_IQL = "ours", "ours, batches made", "d3rlpy IQL"
PLAIN, PLAIN_MADE, DEFAULT = "ours, no CQL", "ours, no CQL, made", "ours, the default's update"
D3RLPY_CQL, TQC, SAC = "d3rlpy CQL", "sb3-contrib TQC", "SB3 SAC"
OFFLINE_GOALS = ((OURS, D3RLPY_IQL, 4.0), (MADE, D3RLPY_IQL, 4.0))
ONLINE_GOALS = ((OURS, D3RLPY_CQL, 8.0), (PLAIN, TQC, 2.5), (PLAIN, SAC, 1.5))
HINT = """peers are compared with where they are installed, each in an environment of its own:
python -m venv d3env && d3env/bin/pip install torch==2.13.0 d3rlpy==2.8.1 gymnasium==1.0.0
python -m venv sb3env && sb3env/bin/pip install torch==2.13.0 stable-baselines3==2.9.2 sb3-contrib==2.9.2
python scripts/benchmark.py online --peer-python d3env/bin/python --sb3-python sb3env/bin/python"""

T = TypeVar("T")
ENVIRONMENTS, ROLLOUT, MINIBATCH, EPOCHS = 8, 2048, 64, 10
ON_POLICY_TASKS = ("CartPole-v1", "Pendulum-v1", "market")
ON_POLICY_GOAL = 1.5


class BehaviourData(NamedTuple):
    """Transitions of the behaviour, and what batches are made from them with."""

    dataset: OfflineDataset
    store: Transitions
    market: MarketTensors
    units: RewardUnits

    @classmethod
    def collected(cls, data: TrainingData) -> BehaviourData:
        """Collect the configured behaviour data on the training window."""
        config = data.config
        dataset = collect(config, data.process, data.split.train)
        return cls(
            dataset,
            Transitions.of(dataset, CPU),
            MarketTensors.of(data.process, CPU, config.bcell.expert_cloning > 0.0),
            RewardUnits.of(data.process, dataset.reward_scale, config.train.reward_reference, CPU),
        )


class Ours(NamedTuple):
    """Our learner, and the batches of its training."""

    draw: Callable[[], Batch]
    update: Callable[[Batch], Any]


def our_iql(training_data: TrainingData) -> Ours:
    """IQL on the behaviour's transitions, as the offline phase runs it."""
    config, behaviour = training_data.config, BehaviourData.collected(training_data)
    learner = IQL(portfolio_networks(training_data.shape, config.bcell, seeded(0, 0)), config.bcell, CPU)
    noise, epochs, updates = seeded(0, 1), Epochs(config, behaviour.dataset.bar), itertools.count()

    def draw() -> Batch:
        rows = behaviour.store.rows(epochs.rows(next(updates)))
        noise_size = config.train.observation_noise
        return make_batch(rows, behaviour.market, behaviour.units, noise, noise_size, epochs.group_size)

    def update(batch: Batch) -> None:
        learner.update(batch, 0.0, noise)

    return Ours(draw, update)


def our_sac(training_data: TrainingData) -> tuple[Rate, Rate, float]:
    """The online update on the behaviour's transitions: on batches that are ready, and with their making."""
    config, behaviour = training_data.config, BehaviourData.collected(training_data)
    agent, noise = BCell(training_data.shape, config.bcell, seeded(0, 0), CPU), seeded(0, 1)
    pool = CoveragePool(0, training_data.process.n_weights, CPU)

    def draw() -> tuple[Batch, CoverageProposals]:
        rows, noise_size = behaviour.store.draw(ONLINE_BATCH, noise), config.train.observation_noise
        batch = make_batch(rows, behaviour.market, behaviour.units, noise, noise_size)
        return batch, pool.draw(batch.states, config.bcell.cql_samples, noise)

    def update(drawn: tuple[Batch, CoverageProposals], step: int) -> None:
        batch, coverage = drawn
        agent.update_sac(batch, coverage, noise, step)

    return contenders_of(draw, update)


class _Captured(Exception):
    """The phase that makes updates was found."""


def online_phase(folder: Path, blocks: int = 4) -> finetune._OnlinePhase:
    """The online phase before its first update, as a training has it after a short offline phase."""
    short: dict[str, object] = {"train.offline_episodes": 20, "train.offline_training_epochs": 1}
    short |= {"offline.evaluation_updates": 0, "out_of_fold.blocks": blocks, **places_in(folder)}
    trainer = FinFlowTrainer(load_config(None, short, environ={}))
    found: list[finetune._OnlinePhase] = []

    def capture(phase: finetune._OnlinePhase) -> NoReturn:
        found.append(phase)
        raise _Captured

    trainer.train_iql()
    with patch.object(finetune._OnlinePhase, "_update", capture), suppress(_Captured):
        trainer.finetune()
    return found[0]


def contenders_of(draw: Callable[[], T], update: Callable[[T, int], object]) -> tuple[Rate, Rate, float]:
    """Updates on batches that are ready, and with the making of each; operations of the products of one."""
    ready = [draw() for _ in range(N_BATCHES)]
    on_ready = contender(lambda step: update(ready[step % N_BATCHES], step))
    made = contender(lambda step: update(draw(), step))
    return on_ready, made, operations_of(lambda: update(ready[0], 0))


def benchmark_offline(given: argparse.Namespace) -> None:
    """Print updates a second of IQL, and the ratio to d3rlpy's."""
    use_one_thread()
    training_data = prepare(load_config(None, {"train.offline_batch_size": OFFLINE_BATCH}, {}))
    ours = our_iql(training_data)
    ready, made, operations = contenders_of(ours.draw, lambda batch, _: ours.update(batch))
    sizes = (*_peer_sizes(training_data), OFFLINE_BATCH)
    peers = {}
    if given.peer_python:
        peers[D3RLPY_IQL] = Peer(given.peer_python, "--peer-python", "d3rlpy_updates.py", ("iql", *sizes))
    _compare(training_data, sizes, {OURS: ready, MADE: made}, {OURS: operations}, peers, OFFLINE_GOALS, given.rounds)


def benchmark_online(given: argparse.Namespace) -> None:
    """Print updates a second of the online update, and the ratio to each peer's."""
    use_one_thread()
    training_data = prepare(load_config(None, PUBLISHED, {}))
    without = replace(training_data, config=load_config(None, {**PUBLISHED, "bcell.cql_alpha": 0.0}, {}))
    contenders: dict[str, Rate] = {}
    operations: dict[str, float] = {}
    contenders[OURS], contenders[MADE], operations[OURS] = our_sac(training_data)
    contenders[PLAIN], contenders[PLAIN_MADE], operations[PLAIN] = our_sac(without)
    with tempfile.TemporaryDirectory(prefix="finflow-speed-") as name:
        phase = online_phase(Path(name), blocks=1)
        contenders[DEFAULT], operations[DEFAULT] = contender(lambda _: phase._update()), operations_of(phase._update)
    sizes = (*_peer_sizes(training_data), ONLINE_BATCH)
    peers = {}
    if given.peer_python:
        peers[D3RLPY_CQL] = Peer(given.peer_python, "--peer-python", "d3rlpy_updates.py", ("cql", *sizes))
    if given.sb3_python:
        peers[TQC] = Peer(given.sb3_python, "--sb3-python", "sb3_speed.py", ("tqc", *sizes))
        peers[SAC] = Peer(given.sb3_python, "--sb3-python", "sb3_speed.py", ("sac", *sizes))
    _compare(training_data, sizes, contenders, operations, peers, ONLINE_GOALS, given.rounds)


def _peer_sizes(training_data: TrainingData) -> tuple[int, int]:
    """Numbers of a flat observation, and weights of a decision."""
    process = training_data.process
    features = process.asset_features.shape[1] * process.asset_features.shape[2] + process.market_features.shape[1]
    return features + process.portfolio_size, process.n_weights


def _compare(
    training_data: TrainingData,
    sizes: tuple[int, int, int],
    contenders: Mapping[str, Rate],
    operations: Mapping[str, float],
    peers: Mapping[str, Peer],
    goals: Sequence[tuple[str, str, float]],
    rounds: int,
) -> None:
    """Measure all in turn, and print rates and the ratios to the peers that there are."""
    everyone = {**contenders, **{name: peer.rate for name, peer in peers.items()}}
    rates = measure(everyone, rounds)
    for peer in peers.values():
        peer.close()
    observation, weights, batch = sizes
    hidden = training_data.config.bcell.hidden_dim
    print(f"batch {batch}, hidden {hidden}, float32, one thread, {rounds} rounds of {SECONDS:g} s")
    print_rates(rates, "updates/s")
    for ours, name, goal in goals:
        if name in peers:
            print_ratio(rates, ours, name, goal)
    bound = product_rate()
    for name, found in {**operations, **{name: peer.operations for name, peer in peers.items()}}.items():
        share = statistics.median(rates[name]) * found / bound
        print(f"{name}: products of {found / 1e6:,.0f} million operations an update; {share:.0%} of the bound by them")
    for name, peer in peers.items():
        print(f"{name} {peer.version} sees {observation} numbers and decides on {weights}")
    if len(peers) < len({name for _, name, _ in goals}):
        print(HINT)


def our_rollouts(name: str) -> Rate:
    """Rollouts and updates of the advanced trainer; rewards as they are."""
    env: Environment = make_env(num_envs=ENVIRONMENTS) if name == "market" else make_task(name, ENVIRONMENTS)
    task = VectorTask(env)
    trainer = AdvancedPPOTrainer(
        task.state_dim,
        task.action_dim,
        settings=OnPolicySettings.of("ppo", entropy_coefficient=0.0, epochs=EPOCHS, minibatch=MINIBATCH),
    )

    def update(_: int) -> None:
        trainer.collect_rollout(env, ROLLOUT)
        trainer.train_step()

    return contender(update)


def benchmark_on_policy(given: argparse.Namespace) -> None:
    """Print decisions a second, and ours over the peer's; the peer runs with this interpreter by default."""
    use_one_thread()
    print(
        f"{ENVIRONMENTS} environments, rollouts of {ROLLOUT}, minibatches of {MINIBATCH}, {EPOCHS} epochs, one thread"
    )
    for name in ON_POLICY_TASKS:
        peer = Peer(
            given.sb3_python or sys.executable,
            "--sb3-python",
            "sb3_speed.py",
            (name, ENVIRONMENTS, ROLLOUT, MINIBATCH, EPOCHS),
        )
        ours, theirs = f"finflow, {name}", f"Stable-Baselines3 {peer.version}"
        rates = measure({ours: our_rollouts(name), theirs: peer.rate}, given.rounds)
        peer.close()
        for contestant, updates in rates.items():
            print(f"{contestant:28}{spread([ROLLOUT * rate for rate in updates], ',.0f')} decisions/s")
        print_ratio(rates, ours, theirs, ON_POLICY_GOAL)
