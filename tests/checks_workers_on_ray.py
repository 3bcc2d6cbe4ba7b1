"""Workers as tasks of Ray give what processes of this machine give, also where the cluster has no room for them.

Begun by test_workers_on_ray.py, in a process of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.reward_queue import queued_rewards
from finflow.errors import TrainingError
from finflow.training.data.training_data import prepare
from finflow.training.phases.training_state import start_offline, start_online
from finflow.training.playing import rollout_workers
from finflow.training.playing.rollout_workers import CPU
from finflow.worker_pool import OrderedPool, _RayTasks
from tests.short_trainings import TINY, config_in, write_market
from tests.test_worker_pool import KEY, failing, killed_once, slept
from tests.training.test_rollout_workers import Here

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'finflow[ray]'")
OWN = "tests.env.rewards.own_rewards"


@pytest.fixture(scope="module", autouse=True)
def one_processor() -> Iterator[None]:
    """A cluster with room for one task."""
    ray.init(num_cpus=1, object_store_memory=10**8, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_results_come_in_the_order_of_the_calls() -> None:
    with OrderedPool(slept, 0.1, 2, KEY) as pool:
        assert isinstance(pool._workers, _RayTasks)
        for number in range(6):
            pool.submit(number)
        assert [number for number, _ in pool.results()] == list(range(6))


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    with OrderedPool(killed_once, tmp_path / "mark", 2, KEY) as pool:
        for number in range(8):
            pool.submit(number)
        assert pool.results() == list(range(8))
    assert (tmp_path / "mark").exists()


def test_the_earliest_error_is_raised_as_it_is() -> None:
    with OrderedPool(failing, None, 2, KEY) as pool:
        for number in range(5):
            pool.submit(number)
        with pytest.raises(TrainingError, match=r"^call 3$"):
            pool.results()


def in_a_task(count: int) -> list[int]:
    """Calls of a task that has the cluster's only processor."""
    with OrderedPool(slept, 0.05, 2, KEY) as pool:
        for number in range(count):
            pool.submit(number)
        return [number for number, _ in pool.results()]


def test_a_task_lends_its_processor_to_its_own_calls() -> None:
    """Where every processor of a cluster has a training, rewards must still be computed."""
    assert ray.get(ray.remote(num_cpus=1)(in_a_task).remote(6), timeout=120.0) == list(range(6))


def play(process: DecisionProcess) -> list[Any]:
    """Rewards of a few decisions of four portfolios."""
    rng = np.random.default_rng(0)
    bars = np.arange(process.first_bar, process.first_bar + 4)
    state = process.start(bars, draw_coverage(rng, 4, process.n_weights)[0])
    found = []
    for _ in range(6):
        outcome = process.step(state, draw_coverage(rng, 4, process.n_weights)[0])
        state = outcome.state
        found.append(outcome.reward)
    return found


def test_rewards_have_the_bits_of_those_of_this_process(tmp_path: Path) -> None:
    names = [{"name": "builtin"}, {"name": f"{OWN}:HonestForecast"}, {"name": f"{OWN}:Observed"}]
    keys = {**TINY, "market.path": str(write_market(tmp_path / "prices.csv"))}
    market = prepare(config_in(tmp_path, keys, objectives__rewards=names)).learning.process
    expected = play(market)
    with queued_rewards(market, 2) as (queued, queue):
        assert queue is not None
        play(queued)
        found = queue.collect()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_rollouts_have_the_bits_of_those_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {**TINY, "market.path": str(write_market(tmp_path / "prices.csv")), "online.algorithm": "ppo"}
    sizes = {"online.portfolios": 4, "online.rollout": 16, "online.minibatch": 16, "train.rollout_workers": 1}
    config = config_in(tmp_path, {**keys, **sizes, "objectives.reward": f"{OWN}:Observed"})
    found = []
    for pool in (OrderedPool, Here):
        monkeypatch.setattr(rollout_workers, "OrderedPool", pool)
        data = prepare(config)
        state = start_offline(config, data, CPU, 100)
        bcell = start_online(state, config, data, CPU)
        assert state.on_policy is not None
        env = state.on_policy.played.env
        with rollout_workers.rollout_workers(env, bcell.policy, config) as workers:
            assert workers is not None
            found.append([workers.decide(env, bcell.policy, 4, None, CPU) for _ in range(2)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.actions, other.actions, rtol=0.0, atol=0.0)
        np.testing.assert_array_equal(np.array(one.rewards), np.array(other.rewards))
