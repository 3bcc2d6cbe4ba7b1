"""On a Ray cluster, tasks and workers of a training give what they give here, also where a node is lost.

Begun by test_ray_cluster.py, in a process of their own. All share one cluster, and all but the first and the last one
connection to it: Ray starts new processes for each connection, which import everything anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.reward_queue import OrderedPool, queued_rewards
from finflow.errors import MarketError
from finflow.experiments.jobs.independent_trainings import Training, finished_best, make_seed_job, train_all
from finflow.experiments.jobs.protocols import make_protocol_job
from finflow.experiments.tasks import ComputeResources, Task, run_tasks
from finflow.experiments.tuning.study import stored_study
from finflow.experiments.tuning.tuning import rerun, tune
from finflow.guard.checkpoint_folder import LATEST
from finflow.market.panel import MarketPanel
from finflow.training.data.training_data import prepare
from scripts.evidence.durability import small_config
from tests.commands import ctrl_c_as
from tests.experiments.tasks_on_ray import fail_once_begun, in_a_task, stopped, total
from tests.short_trainings import SHORT, TINY, bits_of, config_in, write_market
from tests.test_worker_pool import killed_once

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'finflow[ray]'")
OWN = "tests.env.rewards.own_rewards"

#: How soon a lost node is noticed, in tests; and workers that do not starve beside other tests.
QUICK = {"_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "worker_niceness": 0}}
#: Processes of Ray that no check needs.
BARE = {"include_dashboard": False, "include_log_monitor": False}


@pytest.fixture(scope="module", autouse=True)
def quick_phases() -> None:
    """Shorten nothing: processes of Ray, which no patch reaches, have to give the same bits."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without room for a task, so that every task runs on a node that can be killed, and one such node."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    with ctrl_c_as(signal.SIG_IGN):  # as if begun in the background: its processes are deaf to it, too
        made = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 10**8, **QUICK, **BARE}
        )
        made.add_node(num_cpus=1, object_store_memory=10**8)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def connection(cluster: Any) -> None:
    """A connection that stays, until a test ends it."""
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")


@pytest.fixture
def two_nodes(cluster: Any, connection: None) -> list[Any]:
    """Two nodes: those that the test before left, and as many anew as it lost."""
    with ctrl_c_as(signal.SIG_IGN):
        while len(cluster.worker_nodes) < 2:
            cluster.add_node(num_cpus=1, object_store_memory=10**8)
    cluster.wait_for_nodes()
    return list(cluster.worker_nodes)


def run(cluster: Any, tasks: list[Task], stream: io.StringIO) -> list[dict[str, Any]]:
    shared = {"table": np.arange(1000.0)}
    with contextlib.redirect_stdout(stream):
        return run_tasks(tasks, ComputeResources(cluster=cluster.address), shared=shared)


def test_what_tasks_share_is_stored_once(cluster: Any, tmp_path: Path) -> None:
    tasks, stream = [Task(f"t{n}", total, {"number": n, "folder": tmp_path}) for n in range(3)], io.StringIO()
    found = run(cluster, tasks, stream)
    assert [one["sum"] for one in found] == [499500.0, 499501.0, 499502.0]
    assert not any(one["writeable"] for one in found)  # it lies in the object store
    assert "t2: done" in stream.getvalue()


# --- workers of a training, on a cluster with room for one task


def test_a_killed_process_loses_nothing(connection: None, tmp_path: Path) -> None:
    with OrderedPool(killed_once, tmp_path / "mark", 2) as pool:
        for number in range(8):
            pool.submit(number)
        assert pool.results() == list(range(8))
    assert (tmp_path / "mark").exists()


def test_a_task_lends_its_processor_to_its_own_calls(connection: None) -> None:
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


def test_rewards_have_the_bits_of_those_of_this_process(connection: None, tmp_path: Path) -> None:
    names = [{"name": "builtin"}, {"name": f"{OWN}:HonestForecast"}, {"name": f"{OWN}:Observed"}]
    keys = {**TINY, "market.path": str(write_market(tmp_path / "prices.csv")), "bcell.expansion": 0}  # no gradient
    market = prepare(config_in(tmp_path, keys, objectives__rewards=names)).learning
    expected = play(market)
    with queued_rewards(market, 2) as (queued, queue):
        assert queue is not None
        play(queued)
        found = queue.collect()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# --- tasks on two nodes


def test_an_error_keeps_its_kind_and_leaves_the_other_tasks_time_to_stop_in(
    cluster: Any, two_nodes: list[Any], tmp_path: Path
) -> None:
    """A trial of a search is put back then, and not taken for lost."""
    functions = {"long": stopped, "bad": fail_once_begun}
    tasks = [Task(name, function, {"folder": tmp_path}) for name, function in functions.items()]
    with pytest.raises(MarketError, match=r"^bad: no prices$"):
        run(cluster, tasks, io.StringIO())
    assert (tmp_path / "stopped").exists()


def test_the_tasks_of_a_node_that_is_lost_are_done_on_another(
    cluster: Any, two_nodes: list[Any], tmp_path: Path
) -> None:
    stream = io.StringIO()

    def kill() -> None:
        while stream.getvalue().count(": begun") < 2:  # a process that is lost before its report is there says nothing
            time.sleep(0.05)
        workers = [Path(f"/proc/{path.name.split('-')[1]}") for path in tmp_path.glob("*-*")]
        cluster.remove_node(two_nodes[0], allow_graceful=False)
        while all(worker.exists() for worker in workers):  # one that outlives its node could still hand in its result
            time.sleep(0.05)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    tasks = [Task(f"t{n}", total, {"number": n, "folder": tmp_path, "seconds": 60.0}) for n in range(3)]
    found = run(cluster, tasks, stream)
    killer.join()
    assert "its process or node died; it is on " in stream.getvalue()
    assert [one["sum"] for one in found] == [499500.0, 499501.0, 499502.0]
    assert len(list(tmp_path.glob("*-*"))) == 4  # three tasks, one of them twice


def seeds_and_folds(folder: Path) -> tuple[list[Training], dict[str, MarketPanel]]:
    """An agent of a job, and a fold of a protocol."""
    changes = {"evaluation.protocol.folds": 2, "evaluation.protocol.purge": 30}
    shorter = {"train.offline_training_epochs": 1, "train.online_episodes": 6, "train.validation_updates": 1000}
    shorter |= {"out_of_fold.blocks": 1}
    config = small_config(folder, {**changes, **shorter})
    job = make_seed_job(config, folder / "job")
    plan = make_protocol_job(config, "walk-forward", folder / "protocols", "folds")
    return [*job.trainings, plan.trainings[0]], {"": job.panel, "folds": plan.panel}


def test_seeds_and_folds_come_back_as_the_serial_run_has_them_with_a_node_lost(
    cluster: Any, two_nodes: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, panels = seeds_and_folds(tmp_path / "here")
    away, _ = seeds_and_folds(tmp_path / "away")
    train_all(here, panels)

    def in_the_middle() -> Iterator[tuple[Any, int]]:
        """Each worker that has begun a training and not handed it in, with its node."""
        begun = f"finflow-training-{{}}-*/place/*/models/{LATEST}.safetensors"
        for node in two_nodes:
            (raylet,) = node.all_processes["raylet"]
            for worker in Path(f"/proc/{raylet.process.pid}/task/{raylet.process.pid}/children").read_text().split():
                if any(Path(tempfile.gettempdir()).glob(begun.format(worker))):
                    yield node, int(worker)

    lost = threading.Event()

    def kill() -> None:
        while not lost.is_set():
            for node, worker in in_the_middle():
                os.kill(worker, signal.SIGSTOP)  # lest it be done before its node is gone
                if (node, worker) in in_the_middle():
                    cluster.remove_node(node, allow_graceful=False)
                    with contextlib.suppress(ProcessLookupError):  # its node may have taken it along
                        os.kill(worker, signal.SIGKILL)
                    lost.set()
                    return
                os.kill(worker, signal.SIGCONT)
            time.sleep(0.01)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    train_all(away, panels, ComputeResources(cluster=cluster.address))
    killer.join(5.0)
    assert lost.is_set()
    assert "its process or node died; it is on " in capsys.readouterr().out
    assert bits_of(away) == bits_of(here)
    assert all(finished_best(training, panels[training.market]) for training in away)
    (config,) = away[0].folder.glob("*/config.yaml")
    assert str(away[0].folder) in config.read_text()


def test_a_search_does_its_trials_there_and_any_of_them_comes_out_the_same_here(
    cluster: Any, two_nodes: list[Any], tmp_path: Path, no_study_pictures: None
) -> None:
    search: dict[str, object] = {
        "market.source": "synthetic",
        "market.synthetic.bars": 1000,
        "market.train_end": "2021-12-31",
        "market.validation_end": "2022-06-30",
        "evaluation.protocol.validation_share": 0.05,
        "evaluation.protocol.purge": 5,
        "tune.n_trials": 2,
        "tune.folds": 1,
        "tune.seeds": 1,
        "tune.space": {"bcell.gamma": {"low": 0.9, "high": 0.99}},
    }
    config = config_in(tmp_path, {**SHORT, **search})
    ray.shutdown()  # so that the search connects, and leaves
    outcome = tune(config, None, ComputeResources(cluster=cluster.address), lambda line: None)
    assert outcome.lines[0] == "2 trials: 2 completed, 0 stopped early, 0 failed"
    assert rerun(stored_study(outcome.folder), outcome.folder, 1)[0].endswith("bit for bit as recorded")
