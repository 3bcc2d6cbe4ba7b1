"""Run independent tasks, such as seeds, folds and workers of a search: here, in processes of this machine, or on Ray.

    results = run_tasks([Task("seed 0", train_one, {"seed": 0}), ...], ComputeResources(workers=2), on_done=keep)

Results come in the order of the tasks, whatever the order they ended in. A task whose process was killed runs again;
one that ends in an error stops the others; results of finished tasks have been passed to `on_done` by then.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from finflow.cores import available_cores
from finflow.errors import ConfigError, FinflowError, one_line
from finflow.experiments.task_progress import TaskDisplay, run_reporting
from finflow.training.phases.stopping import request_stop, stopping_at_once
from finflow.worker_pool import RETRIES, LocalWorkers, RayWorkers, tell

Result = dict[str, Any]
POLL_INTERVAL = 0.25  # seconds between two readings of the tasks' progress
CONNECT_TIMEOUT = 5.0  # seconds
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Task:
    """One independent piece of work.

    Attributes
    ----------
    name : str
        Unique among the tasks: ``seed 3``.
    function : callable
        Of the top level of a module, so that another process finds it by name. It returns a dict of plain values, and
        shows its progress by `task_progress`. It runs again from the start where its process was killed, and must cope
        with the files of the first attempt.
    """

    name: str
    function: Callable[..., Result]
    arguments: Mapping[str, Any]


OnDone = Callable[[Task, Result], None]


@dataclass(frozen=True)
class ComputeResources:
    """Processes and devices that run the tasks.

    With one worker and no cluster, tasks run one after another in this process. A cluster takes as many tasks at once
    as it has room for where no number of workers is given. With the device ``cuda`` (``train.device``), a task on a
    cluster asks for a GPU, and local workers share them out.
    """

    workers: int | None = None
    cluster: str | None = None  # of Ray: auto for the one that this machine belongs to, or an address
    threads: int = 1  # of a task
    device: str = "cpu"
    retries: int = RETRIES  # of a task whose process was killed
    grace: float = 60.0  # seconds that a task has to stop in, before its process is killed

    @property
    def in_process(self) -> bool:
        return self.cluster is None and (self.workers or 1) == 1

    def warnings(self) -> list[str]:
        """Warnings to print before the tasks begin.

        Raises
        ------
        ConfigError
            If there are no workers.
        """
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers is {self.workers}, and must be 1 or more")
        cores, workers = available_cores(), self.workers or 1
        if self.cluster is None and workers > 1 and workers * self.threads > cores:
            each, more = f" of {self.threads} threads" if self.threads > 1 else "", "s" if cores > 1 else ""
            best = max(cores // self.threads, 1)
            return [
                f"{workers} workers{each} on {cores} core{more} wait for each other, no faster than {best} would be"
            ]
        return []

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Check that tasks can run, before anything is written for them; a cluster stays joined meanwhile.

        Raises
        ------
        ConfigError
            If there are no workers, or no cluster answers.
        """
        self.warnings()
        with nullcontext() if self.cluster is None else connected(self.cluster):
            yield

    def environment(self, place: int) -> dict[str, str]:
        """Environment of a local worker: its threads, and its own GPU where there are several."""
        values = {"OMP_NUM_THREADS": str(self.threads)}
        if self.device in ("auto", "cuda"):
            import torch

            if torch.cuda.device_count() > 1:
                visible = os.environ.get(VISIBLE_DEVICES, "")
                names = visible.split(",") if visible else [str(n) for n in range(torch.cuda.device_count())]
                values[VISIBLE_DEVICES] = names[place % len(names)]
        return values

    @contextmanager
    def pool(self, shared: Mapping[str, Any]) -> Iterator[LocalWorkers | RayWorkers]:
        """Workers of tasks, in other processes."""
        if self.cluster is None:
            local = LocalWorkers(perform, shared, self.workers or 1, self.environment, self.retries, reports=True)
            with closing(local) as workers:
                yield workers
            return
        with connected(self.cluster) as ray:
            remote = RayWorkers(ray, perform, shared, self.threads, self.retries, self.device, reports=True)
            with closing(remote):
                yield remote


def run_tasks(
    tasks: Iterable[Task],
    resources: ComputeResources,
    on_done: OnDone | None = None,
    shared: Mapping[str, Any] | None = None,
    kind: str = "tasks",
) -> list[Result]:
    """Run tasks, and return their results in the order of the tasks.

    Parameters
    ----------
    tasks : iterable of Task
        Drawn from when there is room for another, and after `on_done` of those that have ended.
    on_done : callable, optional
        Takes each task and its result, in this process, in the order that they end in.
    shared : mapping, optional
        Arguments of all tasks, such as the panel, sent to each process once; put into Ray's object store once.
    kind
        Name of the tasks in the display.

    Raises
    ------
    FinflowError
        A task's own, with its name before it; or where its process was killed too often, or no cluster is there.
    KeyboardInterrupt
        After Ctrl-C, when every task had time to stop. The results of finished tasks were passed to `on_done`.
    """
    total = len(tasks) if isinstance(tasks, list | tuple) else None
    with TaskDisplay(kind, total, live=not resources.in_process) as display:
        for warning in resources.warnings():
            display.line(f"warning: {warning}")
        if resources.in_process:
            return _run_here(tasks, on_done, shared or {}, display)
        with resources.pool(shared or {}) as workers:
            return _run_elsewhere(tasks, on_done, workers, resources, display)


def _run_here(
    tasks: Iterable[Task], on_done: OnDone | None, shared: Mapping[str, Any], display: TaskDisplay
) -> list[Result]:
    results = []
    for number, task in enumerate(tasks, start=1):
        display.line(task.name if display.total is None else f"{task.name} ({number} of {display.total})")
        with _named(task, FinflowError):
            results.append(task.function(**shared, **task.arguments))
        if on_done is not None:
            on_done(task, results[-1])
    return results


def _run_elsewhere(
    tasks: Iterable[Task],
    on_done: OnDone | None,
    workers: LocalWorkers | RayWorkers,
    resources: ComputeResources,
    display: TaskDisplay,
) -> list[Result]:
    waiting, results = iter(tasks), dict[int, Result]()
    running: dict[Any, tuple[int, Task]] = {}  # by handle
    begun = 0

    def take(handle: Any) -> None:
        number, task = running.pop(handle)
        with _named(task, Exception):
            results[number] = workers.result(handle)
        display.end(task.name)
        if on_done is not None:
            on_done(task, results[number])

    if workers.size < 1:
        display.line(f"no node of the cluster offers processors ({resources.threads} a task): waiting for one")
    try:
        with stopping_at_once():
            while True:
                most = max(1, min(workers.size, resources.workers or workers.size))
                while len(running) < most and (task := next(waiting, None)) is not None:
                    running[workers.submit(task.name, task.function, dict(task.arguments))] = begun, task
                    begun += 1
                if not running:
                    return [results[number] for number in range(begun)]
                ended = workers.done(list(running), POLL_INTERVAL)
                for report in workers.reports():
                    display.update(*report)
                for handle in ended:
                    take(handle)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            display.line("stopping; once more to stop at once")
        for handle in workers.stop(list(running), resources.grace):
            with suppress(Exception, KeyboardInterrupt):  # errors of stopped tasks
                take(handle)
        raise


@contextmanager
def _named(task: Task, kind: type[Exception]) -> Iterator[None]:
    """Put the task's name before its errors of a kind."""
    try:
        yield
    except kind as error:
        raise type(error)(f"{task.name}: {error}") from error


def perform(shared: Mapping[str, Any], function: Callable[..., Result], arguments: Mapping[str, Any]) -> Result:
    """Run a task in another process."""
    if multiprocessing.parent_process() is not None:  # of this machine, and asked by SIGTERM to stop
        signal.signal(signal.SIGTERM, lambda number, frame: request_stop())
    return run_reporting(function, {**shared, **arguments}, tell)


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect Ray to the cluster at an address, or ``auto``; a connection that was there before stays.

    Raises
    ------
    ConfigError
        If Ray is not installed, or no cluster answers.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ConfigError("--cluster needs Ray, which is not installed: pip install 'finflow[ray]'") from None
    if ray.is_initialized():
        yield ray
        return
    if address != "auto":
        _check_reachable(address)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of GPUs that are not there
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ConfigError(
            f"no Ray cluster can be joined at {address} ({one_line(error, 200)}); start one with: ray start --head, "
            "and see that this machine belongs to it"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Try an address for a few seconds: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"--cluster is {address!r}, and must be auto or an address such as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer"
        raise ConfigError(
            f"no Ray cluster answers at {address} ({why}); start one there with: ray start --head --port {port}"
        ) from None
