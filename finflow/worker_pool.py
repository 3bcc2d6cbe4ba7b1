"""Calls of one function on other cores and machines: in processes of this machine, or as tasks of Ray.

A call whose process or node is lost is made again, up to a number of times.
"""

from __future__ import annotations

import importlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from finflow.cores import WorkerProcess, report, report_to, share_cores
from finflow.errors import ConfigError, TrainingError
from finflow.provenance import code_hash

Report = tuple[str, str, Any]
"""Name of a call and what is told of it: ``begin`` and where, ``lost`` and why, or what its function has told."""
RETRIES = 2  # times that a call is made again after its process was lost


class WorkerLostError(TrainingError):
    """A call whose process or node was lost every time."""


class LocalWorkers:
    """Processes of this machine, each with a thread of this one that waits for it.

    A process starts with its first call, and is replaced where it is killed; no other call is lost with it.

    Parameters
    ----------
    environment : callable
        Changes of the environment that a process starts with, by its number: libraries count threads and GPUs as they
        are loaded.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        shared: Any,
        size: int,
        environment: Callable[[int], Mapping[str, str]],
        retries: int = RETRIES,
        reports: bool = False,
    ) -> None:
        self.size = size
        self._initial, self._environment, self._retries = (function, shared), environment, retries
        self._reports: SimpleQueue[Report] | None = SimpleQueue() if reports else None
        self._waiting = ThreadPoolExecutor(size)
        self._free: SimpleQueue[int] = SimpleQueue()
        for place in range(size):
            self._free.put(place)
        self._processes: dict[int, WorkerProcess] = {}
        self._changing = threading.Lock()
        self._stopping = False

    def submit(self, name: str, *arguments: Any) -> Future[Any]:
        """Begin a call, and return a handle of it."""
        return self._waiting.submit(self._perform, name, arguments)

    def done(self, handles: Sequence[Future[Any]], timeout: float) -> Sequence[Future[Any]]:
        """Wait for one of the calls to end; those that have."""
        return list(wait(handles, timeout, FIRST_COMPLETED).done)

    def result(self, handle: Future[Any]) -> Any:
        """Wait for the result; raises the call's own error, or `WorkerLostError`."""
        return handle.result()

    def reports(self) -> Iterator[Report]:
        """All reports since the last time."""
        with suppress(Empty):
            while self._reports is not None:
                yield self._reports.get_nowait()

    def stop(self, handles: Sequence[Future[Any]], grace: float) -> Sequence[Future[Any]]:
        """Ask the calls to stop, by SIGTERM; those that have ended in time."""
        with self._changing:
            self._stopping = True
            for worker in self._processes.values():
                worker.process.terminate()
        return list(wait(handles, grace).done)

    def close(self) -> None:
        """End the processes at once."""
        with self._changing:
            self._stopping = True
            for worker in self._processes.values():
                worker.process.kill()
        self._waiting.shutdown(wait=True, cancel_futures=True)
        for worker in self._processes.values():
            worker.end()

    def _perform(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Have a free process make a call, in the thread that waits for it."""
        place = self._free.get()
        try:
            for _ in range(self._retries + 1):
                self._tell(name, "begin", "")
                try:
                    return self._attempt(place, name, arguments)
                except WorkerLostError as error:
                    lost = error
                if self._stopping:
                    raise KeyboardInterrupt
                self._tell(name, "lost", str(lost))
            raise given_up(str(lost), self._retries)
        finally:
            self._free.put(place)

    def _attempt(self, place: int, name: str, arguments: tuple[Any, ...]) -> Any:
        worker = self._worker(place)
        try:
            worker.send(arguments)
            while (message := worker.receive())[0] not in ("result", "error"):
                self._tell(name, *message)
        except EOFError as error:
            why = worker.exit_reason()
            with self._changing:
                del self._processes[place]
            worker.end()
            raise WorkerLostError(why) from error
        kind, found = message
        if isinstance(found, KeyboardInterrupt):
            raise WorkerLostError("its process was asked to stop") from found
        if kind == "error":
            raise found
        return found

    def _tell(self, *report: Any) -> None:
        if self._reports is not None:
            self._reports.put(report)

    def _worker(self, place: int) -> WorkerProcess:
        with self._changing:
            if self._stopping:
                raise KeyboardInterrupt
            if place not in self._processes:
                self._processes[place] = self._start(place)
            return self._processes[place]

    def _start(self, place: int) -> WorkerProcess:
        return WorkerProcess(partial(_call, *self._initial), "spawn", self._environment(place))


class RayWorkers:
    """Tasks of Ray, whose scheduler hands them out, and runs again what died with a node.

    What is shared is put into the object store once, and each process of the cluster fetches it once. Results are
    waited for by ``ray.get``, which lends this task's processor to other tasks meanwhile, so that a full cluster does
    not deadlock. Ray has no channel for the reports of a running task: a queue on this machine's node takes them.
    """

    def __init__(
        self,
        ray: Any,
        function: Callable[..., Any],
        shared: Any,
        threads: int,
        retries: int = RETRIES,
        device: str = "cpu",
        reports: bool = False,
    ) -> None:
        self._ray, self._threads, self._retries = ray, threads, retries
        gpus = 1 if device == "cuda" or (device == "auto" and self._total("GPU")) else 0
        self._shared = [ray.put((function, shared))]  # in a list, it is fetched by the task, once a process
        self._remote = ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=retries)(_call_on_node)
        self._queue = None
        if reports:
            here = ray.get_runtime_context().get_node_id()
            affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
            near = affinity(here, soft=False)  # so that it is not lost with a node of the tasks
            options = {"num_cpus": 0, "scheduling_strategy": near}
            self._queue = importlib.import_module("ray.util.queue").Queue(actor_options=options)

    @property
    def size(self) -> int:
        """Number of calls that the cluster has room for at once; 0 where no node takes one."""
        return self._total("CPU") // self._threads

    def submit(self, name: str, *arguments: Any) -> Any:
        """Begin a call, and return a handle of it."""
        return self._remote.options(name=name).remote(self._shared, self._queue, name, code_hash(), arguments)

    def done(self, handles: Sequence[Any], timeout: float) -> Sequence[Any]:
        """Wait for one of the calls to end; those that have."""
        ended: Sequence[Any] = self._ray.wait(handles, timeout=timeout)[0]
        return ended

    def result(self, handle: Any) -> Any:
        """Wait for the result; raises the call's own error, or `WorkerLostError`."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(handle)
        except errors.RayTaskError as error:
            raise error.cause from error
        except (
            errors.WorkerCrashedError,
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.OutOfMemoryError,
            errors.TaskCancelledError,
        ) as error:
            raise given_up(f"its process or node was lost ({type(error).__name__})", self._retries) from error

    def reports(self) -> Iterator[Report]:
        """All reports since the last time; a lost one is no reason to fail."""
        if self._queue is not None:
            with suppress(self._ray.exceptions.RayError):
                yield from self._queue.get_nowait_batch(self._queue.qsize())

    def stop(self, handles: Sequence[Any], grace: float) -> Sequence[Any]:
        """Ask the calls to stop, and end those that have not in time; those that have.

        A task that has stopped is not cancelled: doing so while Ray receives its result ends this process
        (ray-project/ray#54798: "Tried to complete task that was not pending").
        """
        stopped, running = [], handles
        try:
            self._cancel(handles, force=False)
            with suppress(Exception):
                stopped, running = self._ray.wait(handles, num_returns=len(handles), timeout=grace)
        finally:
            self._cancel(running, force=True)
        return stopped

    def close(self) -> None:
        """Release what is shared; calls that are running end by themselves."""
        self._shared = []
        if self._queue is not None:
            with suppress(Exception):
                self._queue.shutdown(force=True)

    def _cancel(self, handles: Sequence[Any], force: bool) -> None:
        for handle in handles:
            with suppress(Exception):
                self._ray.cancel(handle, force=force)

    def _total(self, resource: str) -> int:
        return int(self._ray.cluster_resources().get(resource, 0))


def given_up(why: str, retries: int) -> WorkerLostError:
    """Error of a call whose process was lost after every retry."""
    return WorkerLostError(
        f"{why}, and it was tried {retries + 1} times; if memory is short, use fewer workers or smaller batches "
        "(--batch-size)"
    )


_fetched: dict[str, tuple[Callable[..., Any], Any]] = {}


def _call(function: Callable[..., Any], shared: Any, arguments: tuple[Any, ...]) -> Any:
    """Make a call in a local process."""
    return function(shared, *arguments)


def _call_on_node(reference: list[Any], queue: Any, name: str, code: str, arguments: tuple[Any, ...]) -> Any:
    """Make a call in a process of a cluster."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # Ray was started in the background, which ignores interrupts
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def send(message: tuple[str, Any]) -> None:
        if queue is not None:
            with suppress(Exception):  # a task continues without a listener
                queue.actor.put_nowait.remote((name, *message))

    host = socket.gethostname()
    report_to(send)
    report("begin", host)
    if code_hash() != code:
        raise ConfigError(f"the node {host} has other code of finflow than this machine; install the same there")
    key = reference[0].hex()
    if key not in _fetched:
        share_cores()
        _fetched.clear()
        _fetched[key] = importlib.import_module("ray").get(reference[0])
    function, shared = _fetched[key]
    return function(shared, *arguments)
