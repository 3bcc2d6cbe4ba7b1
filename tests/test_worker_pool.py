"""Calls in other processes: their order, how many wait, lost workers and errors."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from finflow.cores import changed_environment
from finflow.env.rewards.reward_queue import KEY, WAITING, OrderedPool
from finflow.errors import TrainingError
from finflow.worker_pool import RETRIES


def slept(shared: float, number: int) -> tuple[int, int]:
    """The number and the process, after a while that is shorter for later numbers."""
    time.sleep(shared / (1 + number))
    return number, os.getpid()


def marked(folder: Path, number: int) -> int:
    """Leave a file that says that a call has begun."""
    (folder / str(number)).touch()
    time.sleep(0.2)
    return number


def failing(shared: Any, number: int) -> int:
    """Fail for numbers from 3 on, each in its own words."""
    if number >= 3:
        raise TrainingError(f"call {number}")
    return number


def killed_once(mark: Path, number: int) -> int:
    """Kill this process at number 4, the first time."""
    if number == 4 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def always_killed(shared: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def threads(shared: Any) -> str:
    return os.environ["OMP_NUM_THREADS"]


def test_results_come_in_the_order_of_the_calls() -> None:
    with OrderedPool(slept, 0.2, 2) as pool:
        for number in range(10):
            pool.submit(number)
        results = pool.results()
        pool.submit(10)
        assert [number for number, _ in results] == list(range(10))
        assert pool.results()[0][0] == 10
    processes = {process for _, process in results}
    assert os.getpid() not in processes
    assert len(processes) == 2


def test_few_calls_wait_at_a_time(tmp_path: Path) -> None:
    with OrderedPool(marked, tmp_path, 1) as pool:
        for number in range(WAITING):
            pool.submit(number)
        pool.submit(WAITING)  # waits for the first
        assert (tmp_path / "0").exists()
        assert pool.results() == list(range(WAITING + 1))


def test_a_killed_worker_is_replaced_and_loses_nothing(tmp_path: Path) -> None:
    with OrderedPool(killed_once, tmp_path / "mark", 2) as pool:
        for number in range(12):
            pool.submit(number)
        assert pool.results() == list(range(12))
    assert (tmp_path / "mark").exists()


def test_a_worker_killed_from_outside_is_replaced() -> None:
    with OrderedPool(slept, 0.0, 1) as pool:
        pool.submit(0)
        ((_, process),) = pool.results()
        os.kill(process, signal.SIGKILL)
        for number in range(1, 4):
            pool.submit(number)
        results = pool.results()
    assert [number for number, _ in results] == [1, 2, 3]
    assert process not in {other for _, other in results}


def test_workers_that_are_lost_again_and_again_end_in_one_line() -> None:
    line = rf"{KEY}: its process was killed \(SIGKILL\), and it was tried {RETRIES + 1} times; if memory is short"
    with OrderedPool(always_killed, None, 1) as pool:
        pool.submit()
        with pytest.raises(TrainingError, match=line):
            pool.results()


def test_the_earliest_error_is_raised() -> None:
    with OrderedPool(failing, None, 2) as pool:
        for number in range(7):
            pool.submit(number)
        with pytest.raises(TrainingError, match="call 3"):
            pool.results()


def test_workers_have_the_threads_that_they_are_given_and_the_environment_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with OrderedPool(threads, None, 1, threads=3) as pool:
        pool.submit()
        assert pool.results() == ["3"]
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("FINFLOW_TEST", "before")
    with changed_environment({"FINFLOW_TEST": "1"}):
        assert os.environ["FINFLOW_TEST"] == "1"
    assert os.environ["FINFLOW_TEST"] == "before"
