"""Tasks of the checks on a Ray cluster: a process of Ray loads this file, and nothing heavy with it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from finflow.env.rewards.reward_queue import OrderedPool
from finflow.errors import MarketError
from tests.test_worker_pool import slept


def total(table: Any, number: int, folder: Path, seconds: float = 0.0) -> dict[str, Any]:
    (folder / f"{number}-{os.getpid()}-{time.time_ns()}").touch()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (folder / "go").exists():
        time.sleep(0.05)
    return {"sum": float(table.sum()) + number, "writeable": bool(table.flags.writeable)}


def stopped(table: Any, folder: Path) -> dict[str, Any]:
    try:
        (folder / "begun").touch()
        for _ in range(600):
            time.sleep(0.1)
    except KeyboardInterrupt:
        time.sleep(1.0)
        (folder / "stopped").touch()
        raise
    return {}


def fail_once_begun(table: Any, folder: Path) -> dict[str, Any]:
    while not (folder / "begun").exists():
        time.sleep(0.05)
    raise MarketError("no prices")


def in_a_task(count: int) -> list[int]:
    """Calls of a task that has the cluster's only processor."""
    with OrderedPool(slept, 0.05, 2) as pool:
        for number in range(count):
            pool.submit(number)
        return [number for number, _ in pool.results()]
