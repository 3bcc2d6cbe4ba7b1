"""Work beside this process, in other processes on other cores.

Each piece of work is computed by one thread from beginning to end, so results have the same bits on one core as on two,
and do not depend on timing. Torch is loaded with the first work: processes of tasks start without it.
"""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

R = TypeVar("R")
S = TypeVar("S")
TIMEOUT = 600.0  # seconds that a forked process may take, beyond ten times the duration of the block
EXIT_TIMEOUT = 5.0  # seconds in which a process whose pipe is closed has to be gone

_shared = False
_listener: Callable[[tuple[str, Any]], object] | None = None  # of a worker process
_sending = threading.Lock()


def available_cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_cores() -> None:
    """Leave the other cores to other processes: this one is one of several at work."""
    global _shared
    _shared = True


@contextmanager
def forked(part: Callable[[], R]) -> Iterator[Callable[[], R]]:
    """Run a function, whose changes stay there, in a forked process while the block runs: on a second core, if free.

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
        yield lambda: results[0] if results else part()
        with suppress(EOFError):  # the process ended without a result
            results.append(calls.result())
    finally:
        calls.end()


@contextmanager
def shared_with_fork(part: Callable[[int], R], count: int) -> Iterator[Callable[[], list[R]]]:
    """Call a function of 0, 1, ... in a forked process while the block runs, then from the last one on here as well.

    The block has one core to itself, and forks no further. Whichever process makes a call, its result is the same.

    Yields
    ------
    callable
        Returns the results in order, after the block. Calls that the process did not finish are made here.
    """
    global _shared
    found: dict[int, R] = {}
    left = deque(range(count))
    calls: ForkedCalls[int, R] | None = ForkedCalls.start(part)

    def take_first(process: ForkedCalls[int, R]) -> None:
        with suppress(EOFError, IndexError):
            while True:
                number = left.popleft()
                process.send(number)
                kind, result = process.receive()
                if kind == "error":  # made again here, where it raises
                    return
                found[number] = result

    if calls is None:
        yield lambda: [part(number) for number in range(count)]
        return
    began, before, _shared = time.monotonic(), _shared, True
    waiting = threading.Thread(target=take_first, args=(calls,), daemon=True)
    waiting.start()
    try:
        yield lambda: [found[number] if number in found else part(number) for number in range(count)]
        with suppress(IndexError):
            while True:
                number = left.pop()
                found[number] = part(number)
        waiting.join(TIMEOUT + 10.0 * (time.monotonic() - began))
    finally:
        _shared = before
        calls.end()
        waiting.join()


def _may_fork() -> bool:
    """Return True where forking is safe: no CUDA, no macOS, no daemonic process."""
    import torch

    can = sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods()
    cuda = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return can and not cuda and not multiprocessing.current_process().daemon


class WorkerProcess:
    """A process that answers calls of a function of one argument, one at a time, over a pipe.

    Parameters
    ----------
    method : str
        ``fork``, a copy of this process, or ``spawn``, one that has nothing but the pickled function.
    environment : mapping
        Changes of the environment that it starts with.
    """

    def __init__(self, function: Callable[[Any], Any], method: str, environment: Mapping[str, str] = {}) -> None:
        context: Any = multiprocessing.get_context(method)
        copied = method == "fork"
        self._connection, there = context.Pipe()
        arguments = (function, there, self._connection if copied else None)
        self.process = context.Process(target=_serve, args=arguments, daemon=copied)
        if copied:
            gc.freeze()  # a collection writes to all objects that it looks at, and so copies the memory they share
        try:
            with changed_environment(environment):
                self.process.start()
        finally:
            there.close()

    def send(self, argument: Any) -> None:
        """Begin a call; where the process has ended, `receive` says so."""
        with suppress(OSError):
            self._connection.send(argument)

    def receive(self, timeout: float | None = None) -> tuple[str, Any]:
        """Wait for a message: ``result``, ``error`` with an exception, or what the call reports before its end.

        Raises EOFError if the process has ended, or hangs.
        """
        try:
            if timeout is not None and not self._connection.poll(timeout):
                raise EOFError
            message: tuple[str, Any] = self._connection.recv()
        except OSError as error:
            raise EOFError from error
        return message

    def end(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self._connection.close()
        if not multiprocessing.active_children():
            gc.unfreeze()

    def exit_reason(self) -> str:
        """Return the end of the process in words, after it has ended by itself."""
        self.process.join(EXIT_TIMEOUT)
        status = self.process.exitcode
        if status is None or status >= 0:
            return f"its process ended with status {status}"
        names = {one.value: one.name for one in signal.Signals}
        return f"its process was killed ({names.get(-status, f'signal {-status}')})"


class ForkedCalls(WorkerProcess, Generic[S, R]):
    """Calls of a function in a forked process, one at a time, beside work in this one.

    What a call changes is there for the next one, and in that process alone.
    """

    @classmethod
    def start(cls, function: Callable[[S], R], waited_for: bool = False) -> ForkedCalls[S, R] | None:
        """Fork; None where processes cannot be forked, or there is no second core.

        Where this process waits for each call (``waited_for``), one core is enough.
        """
        import torch

        # Threads of operations (``train.threads``) do not survive a fork.
        second_core = not _shared and torch.get_num_threads() == 1 and available_cores() > 1
        with suppress(OSError):
            return cls(function, "fork") if (waited_for or second_core) and _may_fork() else None
        return None

    def begin(self, argument: S) -> None:
        """Begin a call."""
        self._began = time.monotonic()
        self.send(argument)

    def result(self) -> R:
        """Wait for what the call returns.

        Raises EOFError if the call raised an exception, or the process failed or hangs.
        """
        kind, found = self.receive(TIMEOUT + 10.0 * (time.monotonic() - self._began))
        if kind == "error":
            raise EOFError from found
        result: R = found
        return result


def _serve(function: Callable[[Any], Any], connection: Connection, of_parent: Connection | None) -> None:
    """Answer calls in a worker process, to the end of its parent or its pipe."""
    if of_parent is not None:
        of_parent.close()
    else:
        warnings.simplefilter("ignore")  # those of libraries, as in the command line
    report_to(connection.send)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all processes; the parent handles it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    share_cores()
    with suppress(EOFError):
        while True:
            argument = connection.recv()
            try:
                report("result", function(argument))
            except BaseException as error:
                error.add_note(traceback.format_exc())
                report("error", error)


def report(kind: str, content: Any) -> None:
    """Send a message to whoever waits for the call that this process is making."""
    if _listener is not None:
        with _sending:
            _listener((kind, content))


def report_to(listener: Callable[[tuple[str, Any]], object]) -> None:
    """Have the messages of this process taken by a function."""
    global _listener
    _listener = listener


def _end_with_parent() -> None:
    """Wait for the process that started this one to end, however it does, and end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


@contextmanager
def changed_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Change variables of the environment during the block."""
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
