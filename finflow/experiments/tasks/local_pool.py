"""Tasks in processes of this machine, each of which does one after another.

Processes are spawned, so that nothing of this one's state is in them, and threads are set before any library counts
them. They end with this process, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from finflow.cores import end_with_parent, share_cores
from finflow.experiments.tasks.task_runner import Ledger, Where
from finflow.experiments.tasks.worker import perform
from finflow.training.phases.stopping import request_stop, stopping_at_once

__all__ = ["run_in_processes"]

POLL = 1.0  # seconds
DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    task: int | None = None  # number of the one it has


def run_in_processes(ledger: Ledger, where: Where, shared: Mapping[str, Any]) -> None:
    """Do all tasks of a ledger in up to ``where.workers`` processes."""
    workers: list[_Worker] = []
    patience = 0.0
    try:
        with stopping_at_once():
            while _give_out(ledger, where, shared, workers):
                _listen(ledger, workers, POLL)
        for worker in workers:
            with suppress(OSError):
                worker.connection.send(None)
        patience = 5.0
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            ledger.overview.line("stopping; once more to stop at once")
        _stop(ledger, workers, where.grace)
        raise
    finally:
        for worker in workers:
            worker.process.join(timeout=patience)
            _end(worker)


def _give_out(ledger: Ledger, where: Where, shared: Mapping[str, Any], workers: list[_Worker]) -> bool:
    """Give a task to whoever has none; whether any is being done then."""
    limit = where.workers or 1
    while sum(worker.task is not None for worker in workers) < limit:
        found = ledger.next()
        if found is None:
            break
        number, task = found
        worker = next((worker for worker in workers if worker.task is None), None)
        if worker is None:
            worker = _start(where, shared, taken={int(one.process.name.rpartition("-")[2]) for one in workers})
            workers.append(worker)
        worker.task = number
        ledger.overview.begin(task.name)
        with suppress(OSError):  # it is gone: that is noticed when listening
            worker.connection.send((task.function, dict(task.arguments)))
    return any(worker.task is not None for worker in workers)


def _listen(ledger: Ledger, workers: list[_Worker], timeout: float, stopping: bool = False) -> None:
    """Wait for news, and take it; a worker that is gone is taken off the list."""
    busy = [one for one in workers if one.task is not None]
    wait([*(one.connection for one in busy), *(one.process.sentinel for one in busy)], timeout)
    for worker in busy:
        gone = not worker.process.is_alive()  # asked before the last of its words is read
        with suppress(EOFError, OSError):
            while worker.task is not None and worker.connection.poll():
                kind, content = worker.connection.recv()
                if kind == "reply":
                    number, worker.task = worker.task, None
                    ledger.settle(number, content, stopping)
                else:
                    ledger.overview.news(ledger.given[worker.task].name, kind, content)
        if gone:
            workers.remove(worker)
            _end(worker)
            if worker.task is not None and not stopping:
                ledger.lost(worker.task, _how(worker.process.exitcode))


def _stop(ledger: Ledger, workers: list[_Worker], grace: float) -> None:
    """Ask for a stop, and kill those that have not stopped in time; a second Ctrl-C does at once."""
    for worker in workers:
        worker.process.terminate()  # which a worker takes as a request
    end = time.monotonic() + grace
    while any(worker.task is not None for worker in workers) and time.monotonic() < end:
        _listen(ledger, workers, min(POLL, max(end - time.monotonic(), 0.0)), stopping=True)


def _end(worker: _Worker) -> None:
    if worker.process.is_alive():
        worker.process.kill()
    worker.process.join()
    worker.connection.close()


def _how(status: int | None) -> str:
    """How a process ended, in words."""
    if status is None or status >= 0:
        return f"its process ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its process was killed ({name})"


def _start(where: Where, shared: Mapping[str, Any], taken: set[int]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    place = next(number for number in range(len(taken) + 1) if number not in taken)
    process = context.Process(target=_serve, args=(theirs, dict(shared)), name=f"finflow-{place}")
    with _environment(where, place):
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _environment(where: Where, place: int) -> Iterator[None]:
    """What a process starts with: its threads, and which of several GPUs is its own."""
    values = {"OMP_NUM_THREADS": str(where.threads)}
    if where.device in ("auto", "cuda"):
        import torch

        if torch.cuda.device_count() > 1:
            visible = os.environ.get(DEVICES, "")
            names = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
            values[DEVICES] = names[place % len(names)]
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _serve(connection: Connection, shared: dict[str, Any]) -> None:
    """A worker's life: one task after another, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent says what is to be done
    signal.signal(signal.SIGTERM, lambda number, frame: request_stop())
    threading.Thread(target=end_with_parent, daemon=True).start()
    warnings.simplefilter("ignore")  # those of libraries, as in the command line
    share_cores()
    sending = threading.Lock()

    def send(kind: str, content: Any) -> None:
        with sending:
            connection.send((kind, content))

    while True:
        try:
            given = connection.recv()
        except (EOFError, OSError):
            return
        except KeyboardInterrupt:
            continue
        if given is None:
            return
        function, arguments = given
        send("reply", perform(function, {**shared, **arguments}, send))
