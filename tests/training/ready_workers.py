"""Workers of trainings forked from a server that has torch and finflow loaded: a spawned one takes seconds to begin."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver
from typing import Any

import pytest

from finflow import worker_pool


@pytest.fixture(scope="session")
def forking_server() -> Any:
    """A context whose processes begin with everything loaded; the server ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "finflow.training.trainer", "tests.env.rewards.own_rewards"])
    forkserver.ensure_running()
    return context


@pytest.fixture
def ready_workers(forking_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local workers from the server, with the environment that spawned ones would have."""

    def make(processes: worker_pool._Processes) -> ProcessPoolExecutor:
        initial = (dict(os.environ), *processes._initial)
        return ProcessPoolExecutor(processes._size, forking_server, prepare, initial)

    monkeypatch.setattr(worker_pool._Processes, "_make", make)


def prepare(environment: Mapping[str, str], function: Callable[..., Any], shared: Any) -> None:
    """Set up a process before its first call."""
    os.environ.clear()
    os.environ.update(environment)
    worker_pool._prepare(function, shared)
