"""Tasks on a Ray cluster, whose scheduler hands them out and runs again what died with a node.

All tasks' shared arguments are put into Ray's object store once. Arguments and results travel with the task: a node
need not see this machine's files. What is added to Ray, and why:

- A `ray.util.queue.Queue` on this machine's node takes the tasks' progress: Ray has no channel for the reports of a
  running task.
- Tasks are submitted as there is room for them, since each may depend on the results of those before.
- An address is tried for a few seconds first: Ray would try for minutes.
- The code of a node is compared with this machine's: Ray runs whatever finflow is installed there.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from finflow.cores import share_cores
from finflow.errors import ConfigError, one_line
from finflow.experiments.tasks.task_progress import run_reporting
from finflow.experiments.tasks.task_queue import ComputeResources, Result, TaskQueue
from finflow.provenance import code_hash
from finflow.training.phases.stopping import stopping_at_once

POLL_INTERVAL = 0.5  # seconds between two readings of the tasks' progress
CONNECT_TIMEOUT = 5.0  # seconds


def run_on_ray(queue: TaskQueue, resources: ComputeResources, shared: Mapping[str, Any]) -> None:
    """Run all tasks of a queue on the cluster ``resources.cluster``."""
    with connected(resources) as ray, stopping_at_once():
        progress = _Progress(ray, queue)
        gpus = 1 if resources.device == "cuda" or (resources.device == "auto" and _total(ray, "GPU")) else 0
        remote = ray.remote(num_cpus=resources.threads, num_gpus=gpus, max_retries=resources.retries)(_on_node)
        stored = [ray.put(value) for value in shared.values()]
        running: dict[Any, int] = {}
        if _total(ray, "CPU") < resources.threads:
            queue.display.line(
                f"no node of the cluster offers processors ({resources.threads} a task): waiting for one"
            )
        try:
            while True:
                while len(running) < slots(ray, resources) and (entry := queue.next()) is not None:
                    number, task = entry
                    arguments = (progress.queue, number, code_hash(), task.function, dict(task.arguments), list(shared))
                    running[remote.options(name=task.name).remote(*arguments, *stored)] = number
                if not running:
                    progress.show()
                    return
                ended, _ = ray.wait(list(running), timeout=POLL_INTERVAL)
                progress.show()
                for reference in ended:
                    _take_result(ray, reference, running.pop(reference), queue)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                queue.display.line("stopping; once more to stop at once")
            _stop(ray, list(running), resources.grace)
            raise
        finally:
            with suppress(Exception):
                progress.queue.shutdown(force=True)


def slots(ray: Any, resources: ComputeResources) -> int:
    """Number of tasks that the cluster has room for at once."""
    room = _total(ray, "CPU") // resources.threads
    return max(1, room if resources.workers is None else min(room, resources.workers))


def _total(ray: Any, resource: str) -> int:
    return int(ray.cluster_resources().get(resource, 0))


def machines(ray: Any) -> set[str]:
    return {str(node["NodeManagerHostname"]) for node in ray.nodes() if node["Alive"]}


@contextmanager
def connected(resources: ComputeResources) -> Iterator[Any]:
    """Connect Ray to the cluster; a connection that was there before stays.

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
    address = str(resources.cluster)
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
    if address == "auto":
        return
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


def _stop(ray: Any, tasks: list[Any], grace: float) -> None:
    """Ask the tasks to stop, and end those that have not stopped in time; a second Ctrl-C ends all at once.

    A task that has stopped is not cancelled: doing so while Ray receives its result ends this process
    (ray-project/ray#54798: "Tried to complete task that was not pending").
    """
    running = tasks
    try:
        _cancel(ray, tasks, force=False)
        with suppress(Exception):
            _, running = ray.wait(tasks, num_returns=len(tasks), timeout=grace)
    finally:
        _cancel(ray, running, force=True)


def _cancel(ray: Any, tasks: list[Any], force: bool) -> None:
    for task in tasks:
        with suppress(Exception):
            ray.cancel(task, force=force)


def _take_result(ray: Any, reference: Any, number: int, queue: TaskQueue) -> None:
    """Handle the result of a task that has ended; Ray itself has retried it as often as it may."""
    exceptions = ray.exceptions
    try:
        result = ray.get(reference)
    except exceptions.RayTaskError as error:
        queue.fail(number, error.cause, error)
    except exceptions.TaskCancelledError:
        queue.requeue(number, "its process was asked to stop")
    except (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.ObjectLostError) as error:
        queue.give_up(number, f"its process or node died ({type(error).__name__})")
    except exceptions.OutOfMemoryError:
        queue.give_up(number, "its node ran out of memory")
    else:
        queue.display.end(queue.started[number].name)
        queue.done(number, result)


class _Progress:
    """Reports of the tasks, shown in the display; a lost report is no reason to fail."""

    def __init__(self, ray: Any, queue: TaskQueue) -> None:
        here = ray.get_runtime_context().get_node_id()
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        near = affinity(here, soft=False)  # so that it is not lost with a node of the tasks: soft=True allows any node
        options = {"num_cpus": 0, "scheduling_strategy": near}
        self.queue = importlib.import_module("ray.util.queue").Queue(actor_options=options)
        self._ray, self._tasks = ray, queue
        self._started: set[int] = set()

    def show(self) -> None:
        with suppress(self._ray.exceptions.RayError):
            for number, kind, content in self.queue.get_nowait_batch(self.queue.qsize()):
                self._show(number, kind, content)

    def _show(self, number: int, kind: str, content: Any) -> None:
        display, name = self._tasks.display, self._tasks.started[number].name
        if kind != "begin":
            display.update(name, kind, content)
            return
        if number in self._started:
            display.restarted(name, f"its process or node died; it is on {content} now")
        if number not in self._tasks.results:
            display.begin(name, "" if number in self._started else f" on {content}")
        self._started.add(number)


def _on_node(
    progress: Any,
    number: int,
    code: str,
    function: Callable[..., Result],
    arguments: Mapping[str, Any],
    names: Sequence[str],
    *shared: Any,
) -> Result:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # Ray was started in the background, which ignores interrupts
        signal.signal(signal.SIGINT, signal.default_int_handler)
    share_cores()
    host = socket.gethostname()

    def send(kind: str, content: Any) -> None:
        with suppress(Exception):  # a task continues without a listener
            progress.actor.put_nowait.remote((number, kind, content))

    send("begin", host)
    if code_hash() != code:
        raise ConfigError(
            f"the node {host} has another version of finflow's code than this machine; install the same there"
        )
    return run_reporting(function, {**dict(zip(names, shared, strict=True)), **arguments}, send)
