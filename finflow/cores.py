"""Work on a second processor core: tensors by a thread, Python code by a forked process.

Each piece of work is computed by one thread from beginning to end, so results have the same bits on one core as on two,
and do not depend on timing. Tensor operations release the interpreter's lock, so a thread is enough for them; a
backtest holds it, and needs a process. Torch is loaded with the first work: processes of tasks start without it.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    import torch

R = TypeVar("R")
S = TypeVar("S")
THREAD_NAME = "second-core"
TIMEOUT = 600.0  # seconds that a forked process may take, beyond ten times the duration of the block

_second: ThreadPoolExecutor | None = None
_shared = False


def available_cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_cores() -> None:
    """Leave the other cores to other processes: this one is one of several at work."""
    global _shared
    _shared = True


def run_both(first: Callable[[], R], second: Callable[[], S], device: torch.device) -> tuple[R, S]:
    """Run two independent functions, the second on another core where one is free.

    They may share what they read; neither writes to or draws from anything that the other uses. Where an operation has
    several threads of its own (``train.threads``), they run one after the other.

    Parameters
    ----------
    second : callable
        Denormal results are zero in it, as in an update.
    device : torch.device
        That they compute on; another than the processor is kept busy by one thread.

    Returns
    -------
    tuple
        What both return. An exception of either is raised after both have ended.
    """
    if device.type != "cpu" or not _has_second_core() or threading.current_thread().name.startswith(THREAD_NAME):
        of_second = second()
        return first(), of_second
    future = _executor().submit(_TorchModes.current().apply, second)
    try:
        of_first = first()
    finally:
        wait([future])
    return of_first, future.result()


@contextmanager
def forked(part: Callable[[], R], fills_core: bool = False) -> Iterator[Callable[[], R]]:
    """Run a function in a forked process while the block runs, on a second core where one is free.

    Parameters
    ----------
    part : callable
        Its changes to objects stay in the other process.
    fills_core : bool
        Use one core alone in the block: the other process works for about as long.

    Yields
    ------
    callable
        Returns the result of ``part``, after the block. Where the process failed or hangs, or where processes cannot be
        forked or have no core of their own, it calls ``part`` in this process, which may raise.
    """
    results: list[R] = []
    calls: ForkedCalls[None, R] | None = ForkedCalls.start(lambda _: part())
    if calls is None:
        yield part
        return
    calls.begin(None)
    try:
        with _one_core() if fills_core else nullcontext():
            yield lambda: results[0] if results else part()
        with suppress(EOFError):  # the process ended without a result
            results.append(calls.result())
    finally:
        calls.end()


@contextmanager
def _one_core() -> Iterator[None]:
    """Leave the other core to another process during the block."""
    global _shared
    before, _shared = _shared, True
    try:
        yield
    finally:
        _shared = before


class ForkedCalls(Generic[S, R]):
    """Calls of a function in a forked process, one at a time, beside work in this one.

    What a call changes is there for the next one, and in that process alone.
    """

    def __init__(self, child: BaseProcess, connection: Connection) -> None:
        self._child, self._connection = child, connection
        self._began = time.monotonic()

    @classmethod
    def start(cls, function: Callable[[S], R]) -> ForkedCalls[S, R] | None:
        """Fork; None where there is no second core, or where processes cannot be forked."""
        started = _fork(function) if _has_second_core() and _may_fork() else None
        return None if started is None else cls(*started)

    def begin(self, argument: S) -> None:
        """Begin a call."""
        self._began = time.monotonic()
        with suppress(OSError):  # the process has ended: the result says so
            self._connection.send(argument)

    def result(self) -> R:
        """Wait for what the call returns.

        Raises
        ------
        EOFError
            If the call raised an exception, or the process failed or hangs.
        """
        try:
            if not self._connection.poll(TIMEOUT + 10.0 * (time.monotonic() - self._began)):
                raise EOFError
            found: R = self._connection.recv()
        except OSError as error:
            raise EOFError from error
        return found

    def end(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.join()
        self._connection.close()


def _has_second_core() -> bool:
    """Return True where a core is free; threads of operations would share it, and do not survive a fork."""
    import torch

    return not _shared and torch.get_num_threads() == 1 and available_cores() > 1


def _may_fork() -> bool:
    """Return True where forking is safe: no CUDA, no macOS, no daemonic process."""
    import torch

    can = sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods()
    cuda = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return can and not cuda and not multiprocessing.current_process().daemon


def _fork(function: Callable[[S], R]) -> tuple[BaseProcess, Connection] | None:
    """Start a process that answers calls, and return it with this end of its pipe; None where none can be started."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_serve, args=(function, here, there), daemon=True)
    try:
        child.start()
    except OSError:
        here.close()
        return None
    finally:
        there.close()
    return child, here


def _serve(function: Callable[[S], R], parents: Connection, own: Connection) -> None:
    """Answer calls in the forked process until one fails; the pipe closes then."""
    parents.close()
    begin_as_worker()
    with suppress(Exception):  # the parent calls it again, and reports the failure
        while True:
            own.send(function(own.recv()))


def begin_as_worker() -> None:
    """Set up a process that works for its parent: on one core, ignoring Ctrl-C, and ended with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes; the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    share_cores()


def _end_with_parent() -> None:
    """Wait for the process that started this one to end, however it does, and end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


class _TorchModes(NamedTuple):
    """Settings of torch that belong to a thread and change results."""

    gradients: bool
    cast: bool

    @classmethod
    def current(cls) -> _TorchModes:
        """Modes of this thread."""
        import torch

        return cls(torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))

    def apply(self, part: Callable[[], R]) -> R:
        """Run a function in these modes, and without denormal results, whatever ran in this thread before."""
        import torch

        torch.set_flush_denormal(True)
        cast = torch.autocast("cpu", torch.bfloat16, enabled=self.cast, cache_enabled=False)
        with torch.set_grad_enabled(self.gradients), cast:
            return part()


def _executor() -> ThreadPoolExecutor:
    """Executor of one thread for the second core."""
    global _second
    if _second is None:
        _second = ThreadPoolExecutor(1, THREAD_NAME)
    return _second


def _reset_after_fork() -> None:
    """Drop the executor: a forked process has no threads but the one that forked it."""
    global _second
    _second = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
