"""Calls of one function in other processes, with their results in the order of the calls.

A training submits slow rewards to such a pool and continues. The pool is `concurrent.futures`' of local processes, or
tasks of Ray where this process is itself a task of a cluster. What is added to both, and why:

- A limit on pending calls: `submit` waits for the first of them where there are more, so that memory stays bounded.
- A killed process breaks `ProcessPoolExecutor` as a whole. Here the pool is built anew, and the calls that were lost
  with it are submitted again.
- Local processes end with this one, also where it is killed.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from finflow.cores import begin_as_worker, share_cores
from finflow.errors import ConfigError, TrainingError
from finflow.provenance import code_hash

R = TypeVar("R")
WAITING = 4  # pending calls per local worker
RETRIES = 2  # times in a row that workers may be lost without a result in between


class WorkerLostError(Exception):
    """A process that ended before its call was done."""


class _Call(NamedTuple):
    """A call that is not done, or waits for an earlier one."""

    arguments: tuple[Any, ...]
    handle: Any


class OrderedPool(Generic[R]):
    """Calls of one function in other processes.

    Parameters
    ----------
    function : callable
        Of the top level of a module, called as ``function(shared, *arguments)``. It may be called again with the same
        arguments where its process was killed.
    shared : object
        Given to each process once; picklable.
    name : str
        Of the workers, for errors: the key of the configuration that asks for them.
    """

    def __init__(self, function: Callable[..., R], shared: Any, workers: int, name: str, threads: int = 1) -> None:
        self.name = name
        ray = _ray_of_this_task()
        self._workers: _Processes | _RayTasks = (
            _Processes(function, shared, workers, threads)
            if ray is None
            else _RayTasks(ray, function, shared, workers, threads)
        )
        self._pending: deque[_Call] = deque()
        self._results: list[R] = []
        self._losses = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._workers.close()

    def submit(self, *arguments: Any) -> None:
        """Submit a call; waits while too many others are pending.

        Raises
        ------
        Exception
            As of `results`.
        """
        self._collect(keep=self._workers.most_pending - 1)
        self._pending.append(_Call(arguments, self._workers.submit(arguments)))

    def results(self) -> list[R]:
        """Wait for all calls; their results since the last time, in the order of the calls.

        Raises
        ------
        Exception
            Of the earliest call that failed.
        TrainingError
            If workers are lost again and again.
        """
        self._collect(keep=0)
        results, self._results = self._results, []
        return results

    def discard(self) -> None:
        """Forget all calls, after an error of one."""
        self._pending.clear()
        self._results = []

    def _collect(self, keep: int) -> None:
        """Take the results of the earliest calls that have one; wait for them while more than ``keep`` are pending."""
        while self._pending and (len(self._pending) > keep or self._workers.is_done(self._pending[0].handle)):
            try:
                result = self._workers.result(self._pending[0].handle)
            except WorkerLostError as error:
                self._replace_lost(error)
                continue
            self._pending.popleft()
            self._results.append(result)
            self._losses = 0

    def _replace_lost(self, error: WorkerLostError) -> None:
        """Replace workers, and make the calls again that were lost with them."""
        self._losses += 1
        if self._losses > RETRIES:
            raise TrainingError(
                f"{self.name}: workers were lost {self._losses} times without a result ({error}); if memory is short, "
                "use fewer"
            ) from error
        self._workers.restart()
        self._pending = deque([self._resubmitted(call) for call in self._pending])

    def _resubmitted(self, call: _Call) -> _Call:
        """The call, submitted again where it was lost."""
        if self._workers.is_done(call.handle):
            try:
                self._workers.result(call.handle)
            except WorkerLostError:
                return _Call(call.arguments, self._workers.submit(call.arguments))
            except Exception:  # the call's own error, which is raised when its turn comes
                return call
        return call


class _Processes:
    """Local processes, which take up to ``most_pending`` calls at a time."""

    def __init__(self, function: Callable[..., Any], shared: Any, workers: int, threads: int) -> None:
        self.most_pending = WAITING * workers
        self._initial = function, shared
        self._size = workers
        self._environment = {"OMP_NUM_THREADS": str(threads)}
        self._pool = self._make()

    def submit(self, arguments: tuple[Any, ...]) -> Future[Any]:
        """Begin a call, and return a handle of it: of a lost one where the pool is broken."""
        try:
            with changed_environment(self._environment):  # where a process is started for it
                return self._pool.submit(_call, arguments)
        except BrokenProcessPool as error:
            lost: Future[Any] = Future()
            lost.set_exception(error)
            return lost

    def is_done(self, handle: Future[Any]) -> bool:
        """Return True where the call is done or lost."""
        return handle.done()

    def result(self, handle: Future[Any]) -> Any:
        """Wait for the result; raises the call's own error, or `WorkerLostError`."""
        try:
            return handle.result()
        except BrokenProcessPool as error:
            raise WorkerLostError("a process was killed") from error

    def restart(self) -> None:
        """Build the pool anew; it ends as a whole when one of its processes does."""
        self.close()
        self._pool = self._make()

    def close(self) -> None:
        """End the processes at once."""
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=True, cancel_futures=True)  # every call is done or lost then

    def _make(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._size, multiprocessing.get_context("spawn"), _prepare, self._initial)


class _RayTasks:
    """Tasks of Ray on the cluster that this process is a task of.

    What is shared is put into the object store once, and each process of the cluster fetches it once. Results are
    waited for by ``ray.get``, which lends this task's processor to other tasks meanwhile, so that a full cluster does
    not deadlock.
    """

    def __init__(self, ray: Any, function: Callable[..., Any], shared: Any, workers: int, threads: int) -> None:
        self.most_pending = workers
        self._ray = ray
        self._shared = [ray.put((function, shared))]  # in a list, it is fetched by the task, once a process
        self._remote = ray.remote(num_cpus=threads, max_retries=RETRIES)(_call_on_node)

    def submit(self, arguments: tuple[Any, ...]) -> Any:
        """Begin a call."""
        return self._remote.remote(self._shared, code_hash(), arguments)

    def is_done(self, handle: Any) -> bool:
        """Return True where the call is done or lost."""
        return bool(self._ray.wait([handle], timeout=0)[0])

    def result(self, handle: Any) -> Any:
        """Wait for the result; Ray itself has retried a lost call as often as it may."""
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
        ) as error:
            raise WorkerLostError(type(error).__name__) from error

    def restart(self) -> None:
        """Do nothing: Ray replaces its processes itself."""

    def close(self) -> None:
        """Release what is shared; calls that are running end by themselves."""
        self._shared = []


def _ray_of_this_task() -> Any | None:
    """Ray, where this process is one of a cluster's."""
    ray = sys.modules.get("ray")
    return ray if ray is not None and ray.is_initialized() else None


_function: Callable[..., Any]
_shared: Any
_fetched: dict[str, tuple[Callable[..., Any], Any]] = {}


def _prepare(function: Callable[..., Any], shared: Any) -> None:
    """Set up a local process before its first call."""
    global _function, _shared
    begin_as_worker()
    warnings.simplefilter("ignore")  # those of libraries, as in the command line
    _function, _shared = function, shared


def _call(arguments: tuple[Any, ...]) -> Any:
    """Run a call in a local process."""
    return _function(_shared, *arguments)


def _call_on_node(reference: list[Any], code: str, arguments: tuple[Any, ...]) -> Any:
    """Run a call in a process of a cluster."""
    if code_hash() != code:
        raise ConfigError(
            f"the node {socket.gethostname()} has other code of finflow than this training; install the same there"
        )
    key = reference[0].hex()
    if key not in _fetched:
        share_cores()
        _fetched.clear()
        _fetched[key] = importlib.import_module("ray").get(reference[0])
    function, shared = _fetched[key]
    return function(shared, *arguments)


@contextmanager
def changed_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Change variables of the environment during the block, for processes that start in it."""
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
