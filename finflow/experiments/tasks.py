"""Run independent tasks, such as seeds, folds and workers of a search: here, in processes of this machine, or on Ray.

    results = run_tasks([Task("seed 0", train_one, {"seed": 0}), ...], ComputeResources(workers=2), on_done=keep)

Results come in the order of the tasks, whatever the order they ended in. A task whose process was killed runs again;
one that ends in an error stops the others; results of finished tasks have been passed to `on_done` by then.
"""

from __future__ import annotations

import importlib
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

from finflow.cores import available_cores
from finflow.errors import ConfigError, FinflowError, one_line
from finflow.experiments.task_progress import TaskDisplay, perform
from finflow.training.phases.stopping import stopping_at_once
from finflow.worker_pool import RETRIES, LocalWorkers, RayWorkers

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
        """Warnings to print before the tasks begin."""
        cores, workers = available_cores(), self.workers or 1
        if self.cluster is not None or workers == 1 or workers * self.threads <= cores:
            return []
        each, more = f" of {self.threads} threads" if self.threads > 1 else "", "s" if cores > 1 else ""
        best = max(cores // self.threads, 1)
        return [f"{workers} workers{each} on {cores} core{more} wait for each other, no faster than {best} would be"]

    def ready(self) -> AbstractContextManager[Any]:
        """Check that a cluster answers, before anything is written for tasks; it stays joined in the block."""
        return nullcontext() if self.cluster is None else connected(self.cluster)

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


def run_tasks(
    tasks: Sequence[Task],
    resources: ComputeResources,
    on_done: OnDone = lambda task, result: None,
    shared: Mapping[str, Any] | None = None,
    kind: str = "tasks",
) -> list[Result]:
    """Run tasks, and return their results in the order of the tasks.

    Raises a task's own FinflowError, with its name before it, or one where its process was killed too often, or no
    cluster is there; KeyboardInterrupt after Ctrl-C, when every task had time to stop. The results of finished tasks
    were passed to `on_done`.

    Parameters
    ----------
    on_done : callable, optional
        Takes each task and its result, in this process, in the order that they end in.
    shared : mapping, optional
        Arguments of all tasks, such as the panel, sent to each process once; put into Ray's object store once.
    kind
        Name of the tasks in the display.
    """
    shared, results = shared or {}, []
    with ExitStack() as stack:
        display = stack.enter_context(closing(TaskDisplay(kind, len(tasks), live=not resources.in_process)))
        for warning in resources.warnings():
            display.line(f"warning: {warning}")
        if not resources.in_process:
            workers: LocalWorkers | RayWorkers
            retries = resources.retries
            if resources.cluster is None:
                workers = LocalWorkers(perform, shared, resources.workers or 1, resources.environment, retries, True)
            else:
                ray = stack.enter_context(connected(resources.cluster))
                workers = RayWorkers(ray, perform, shared, resources.threads, retries, resources.device, True)
            stack.enter_context(closing(workers))
            return _run_elsewhere(tasks, on_done, workers, resources, display)
        for number, task in enumerate(tasks, start=1):
            display.line(f"{task.name} ({number} of {len(tasks)})")
            with _named(task):
                results.append(task.function(**shared, **task.arguments))
            on_done(task, results[-1])
    return results


def _run_elsewhere(
    tasks: Sequence[Task],
    on_done: OnDone,
    workers: LocalWorkers | RayWorkers,
    resources: ComputeResources,
    display: TaskDisplay,
) -> list[Result]:
    waiting, results = deque(enumerate(tasks)), dict[int, Result]()
    running: dict[Any, tuple[int, Task]] = {}  # by handle

    def take(handle: Any) -> None:
        number, task = running.pop(handle)
        with _named(task):
            results[number] = workers.result(handle)
        display.end(task.name)
        on_done(task, results[number])

    if workers.size < 1:
        display.line(f"no node of the cluster offers processors ({resources.threads} a task): waiting for one")
    try:
        with stopping_at_once():
            while waiting or running:
                while waiting and len(running) < max(1, min(workers.size, resources.workers or workers.size)):
                    number, task = waiting.popleft()
                    running[workers.submit(task.name, task.function, dict(task.arguments))] = number, task
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
    return [results[number] for number in range(len(tasks))]


@contextmanager
def _named(task: Task) -> Iterator[None]:
    """Put the task's name before its errors."""
    try:
        yield
    except (FinflowError, RuntimeError) as error:
        raise type(error)(f"{task.name}: {error}") from error


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Connect Ray to the cluster at an address, or ``auto``; a connection that was there before stays.

    Raises ConfigError if Ray is not installed, or no cluster answers.
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
