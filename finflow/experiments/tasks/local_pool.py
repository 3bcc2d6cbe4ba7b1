"""Tasks in processes of this machine, by `concurrent.futures`.

What is added to the library, and why:

- Each worker is a pool of one process: `ProcessPoolExecutor` breaks as a whole when one of its processes is killed, and
  every running task would be lost with it. Here only the pool of the killed process is replaced.
- Each worker has a pipe for its progress. A shared queue would stay locked for ever where a process is killed while it
  writes.
- A stop is asked for by SIGTERM, which a training answers at the end of its update; `concurrent.futures` can only wait
  for running tasks or abandon them.
- Workers end with this process, also where it is killed: those of `concurrent.futures` would wait for tasks for ever.
- Threads and the GPU are set in the environment that a process starts with, before any library counts them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from finflow.cores import begin_as_worker
from finflow.experiments.tasks.task_progress import Send, run_reporting
from finflow.experiments.tasks.task_queue import ComputeResources, Result, Task, TaskQueue
from finflow.training.phases.stopping import request_stop, stopping_at_once
from finflow.worker_pool import changed_environment

POLL_INTERVAL = 0.25  # seconds between two readings of the workers' progress
EXIT_TIMEOUT = 5.0  # seconds in which an idle worker has to exit
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


def run_in_processes(queue: TaskQueue, resources: ComputeResources, shared: Mapping[str, Any]) -> None:
    """Run all tasks of a queue in up to ``resources.workers`` processes."""
    workers = [_Worker(index, resources, shared) for index in range(resources.workers or 1)]
    try:
        with stopping_at_once():
            while _submit_waiting(queue, workers):
                _collect(queue, workers, POLL_INTERVAL)
        for worker in workers:
            worker.shut_down()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            queue.display.line("stopping; once more to stop at once")
        _stop(queue, workers, resources.grace)
        raise
    finally:
        for worker in workers:
            worker.kill()


def _submit_waiting(queue: TaskQueue, workers: list[_Worker]) -> bool:
    for worker in workers:
        if worker.future is None and (entry := queue.next()) is not None:
            queue.display.begin(entry[1].name)
            worker.submit(*entry)
    return any(worker.future is not None for worker in workers)


def _collect(queue: TaskQueue, workers: list[_Worker], timeout: float, stopping: bool = False) -> None:
    """Wait for tasks to end, and handle their progress and results; while stopping, only results count."""
    busy = {worker.future: worker for worker in workers if worker.future is not None}
    ended = wait(busy, timeout, FIRST_COMPLETED).done
    for future, worker in busy.items():
        number = worker.number
        name = queue.started[number].name
        for kind, content in worker.progress():
            queue.display.update(name, kind, content)
        if future not in ended:
            continue
        worker.future = None
        error = future.exception()
        if error is None:
            queue.display.end(name)
            queue.done(number, future.result())
        elif isinstance(error, BrokenProcessPool):
            worker.kill()
            if not stopping:
                queue.requeue(number, worker.exit_reason())
        elif isinstance(error, KeyboardInterrupt):
            if not stopping:
                queue.requeue(number, "its process was asked to stop")
        elif not stopping:
            queue.fail(number, error)


def _stop(queue: TaskQueue, workers: list[_Worker], grace: float) -> None:
    """Ask the tasks to stop, and wait for those that do in time; a second Ctrl-C ends the wait."""
    for worker in workers:
        worker.interrupt()
    end = time.monotonic() + grace
    while any(worker.future is not None for worker in workers) and time.monotonic() < end:
        _collect(queue, workers, min(POLL_INTERVAL, max(end - time.monotonic(), 0.0)), stopping=True)


class _Worker:
    """A pool of one process, started with its first task, and its pipe for progress."""

    def __init__(self, index: int, resources: ComputeResources, shared: Mapping[str, Any]) -> None:
        self.index, self.resources, self.shared = index, resources, dict(shared)
        self.number = -1
        self.future: Future[Result] | None = None
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, number: int, task: Task) -> None:
        call = partial(_run, task.function, dict(task.arguments))
        self.number = number
        if self._pool is not None:
            self.future = self._pool.submit(call)
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, sender = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, context, _prepare, (sender, self.shared))
        with changed_environment(_environment(self.resources, self.index)):
            self.future = self._pool.submit(call)
        (self._process,) = self._pool._processes.values()
        sender.close()

    def progress(self) -> Iterator[tuple[str, Any]]:
        """All that the task has reported since the last call."""
        with suppress(EOFError, OSError):
            while self._pool is not None and self._pipe.poll():
                yield self._pipe.recv()

    def interrupt(self) -> None:
        """Have the task stop at the end of its update."""
        if self._pool is not None:
            self._process.terminate()

    def shut_down(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._process.join(EXIT_TIMEOUT)

    def kill(self) -> None:
        """End the process at once, if there is one; the next task begins in another."""
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        self._process.kill()
        pool.shutdown(wait=True, cancel_futures=True)
        self._pipe.close()

    def exit_reason(self) -> str:
        status = self._process.exitcode
        if status is None or status >= 0:
            return f"its process ended with status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"its process was killed ({name})"


def _environment(resources: ComputeResources, index: int) -> dict[str, str]:
    """Environment of a new process: its threads, and its own GPU where there are several."""
    values = {"OMP_NUM_THREADS": str(resources.threads)}
    if resources.device in ("auto", "cuda"):
        import torch

        if torch.cuda.device_count() > 1:
            visible = os.environ.get(VISIBLE_DEVICES, "")
            names = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
            values[VISIBLE_DEVICES] = names[index % len(names)]
    return values


_send: Send
_shared: dict[str, Any]


def _prepare(connection: Connection, shared: dict[str, Any]) -> None:
    global _send, _shared
    begin_as_worker()
    signal.signal(signal.SIGTERM, lambda number, frame: request_stop())
    warnings.simplefilter("ignore")  # those of libraries, as in the command line
    sending = threading.Lock()

    def send(kind: str, content: Any) -> None:
        with sending:
            connection.send((kind, content))

    _send, _shared = send, shared


def _run(function: Callable[..., Result], arguments: dict[str, Any]) -> Result:
    return run_reporting(function, {**_shared, **arguments}, _send)
