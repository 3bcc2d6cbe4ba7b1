"""On a Ray cluster of two nodes of this machine, tasks give what they give here, also where a node is lost."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.errors import MarketError
from finflow.experiments.engine import Task, Where, run_tasks

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'finflow[ray]'")

#: How soon a lost node is noticed, in tests.
QUICK = {"_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without room for a task, so that every task runs on a node that can be killed."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 10**8, **QUICK})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def two_nodes(cluster: Any) -> Iterator[list[Any]]:
    nodes = [cluster.add_node(num_cpus=1, object_store_memory=10**8) for _ in range(2)]
    cluster.wait_for_nodes()
    yield nodes
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)


def total(table: Any, number: int, folder: Path, seconds: float = 0.0) -> dict[str, Any]:
    (folder / f"{number}-{os.getpid()}-{time.time_ns()}").touch()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (folder / "go").exists():
        time.sleep(0.05)
    return {"sum": float(table.sum()) + number, "writeable": bool(table.flags.writeable)}


def fail(table: Any) -> dict[str, Any]:
    raise MarketError("no prices")


def run(cluster: Any, tasks: list[Task], **named: Any) -> tuple[list[dict[str, Any]], str]:
    stream = io.StringIO()
    shared = {"table": np.arange(1000.0)}
    return run_tasks(tasks, Where(cluster=cluster.address), shared=shared, stream=stream, **named), stream.getvalue()


def test_what_tasks_share_is_stored_once_and_an_error_keeps_its_kind(
    cluster: Any, two_nodes: list[Any], tmp_path: Path
) -> None:
    found, said = run(cluster, [Task(f"t{n}", total, {"number": n, "folder": tmp_path}) for n in range(3)])
    assert [one["sum"] for one in found] == [499500.0, 499501.0, 499502.0]
    assert not any(one["writeable"] for one in found)  # it lies in the object store
    assert "t2: done" in said
    with pytest.raises(MarketError, match=r"^seed 7: no prices$"):
        run(cluster, [Task("seed 7", fail, {})])


def test_the_tasks_of_a_node_that_is_lost_are_done_on_another(
    cluster: Any, two_nodes: list[Any], tmp_path: Path
) -> None:
    def kill() -> None:
        while len(list(tmp_path.glob("*-*"))) < 2:
            time.sleep(0.05)
        cluster.remove_node(two_nodes[0], allow_graceful=False)
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    tasks = [Task(f"t{n}", total, {"number": n, "folder": tmp_path, "seconds": 60.0}) for n in range(3)]
    found, _ = run(cluster, tasks)
    killer.join()
    assert [one["sum"] for one in found] == [499500.0, 499501.0, 499502.0]
    assert len(list(tmp_path.glob("*-*"))) == 4  # three tasks, one of them twice
