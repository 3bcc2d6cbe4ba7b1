"""Processor cores, and what may be done on a second one meanwhile: by a thread, or by a forked process.

What is done beside is computed by one thread from beginning to end, as it would be in its turn: no sum is cut
differently, so the bits are the same with one core as with two, and timing decides nothing. Tensors' work leaves the
interpreter free, and takes a thread; a backtest holds the interpreter, and takes a process.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeVar

import torch

R = TypeVar("R")
PATIENCE = 600.0  # seconds that a forked process may take longer than what was done meanwhile

_second: ThreadPoolExecutor | None = None
_shared = False


def available_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_cores() -> None:
    """This process is one of several at work: the other cores are theirs."""
    global _shared
    _shared = True


@contextmanager
def meanwhile(part: Callable[[], R], device: torch.device) -> Iterator[Future[R]]:
    """Do ``part`` while the block runs, on a second core where there is one; both are done at the end of the block.

    The two share what they read, and write to nothing that the other reads or draws from. Results that are too small
    for a normal number are zero in ``part``, as in an update: see ``thrift``.

    Parameters
    ----------
    part : callable
        What it raises is raised at the end of the block.
    device : torch.device
        That it computes on; another than the processor is kept busy by one thread.

    Yields
    ------
    Future
        What ``part`` returns, to be asked for after the block.
    """
    done: Future[R] = Future()
    if _shared or device.type != "cpu" or available_cores() == 1:
        done.set_result(part())
        yield done
        return
    done = _thread().submit(_Modes.here().apply, part)
    try:
        yield done
    finally:
        wait([done])
    done.result()


@contextmanager
def forked(part: Callable[[], R]) -> Iterator[Callable[[], R]]:
    """Do ``part`` in a forked process while the block runs, on a second core where there is one.

    Parameters
    ----------
    part : callable
        What it changes is changed in the other process alone.

    Yields
    ------
    callable
        What ``part`` returns, to be asked for after the block. Where the process failed or hangs, it is done here, and
        fails here if it does; as it is where processes cannot be forked, or have no core to themselves.
    """
    can = sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods()
    can = can and torch.get_num_threads() == 1  # the threads of an operation do not live on in a fork
    if _shared or not can or available_cores() == 1 or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        yield part
        return
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(part, sender), daemon=True)
    child.start()
    sender.close()
    told: list[R] = []
    try:
        yield lambda: told[0] if told else part()
        with suppress(EOFError):  # it ended before its time
            told = receiver.recv() if receiver.poll(PATIENCE) else told
    finally:
        child.kill()
        child.join()
        receiver.close()


def _tell(part: Callable[[], object], sender: Connection) -> None:
    """Do a part and send what it returns, or nothing where it fails."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent says what is to be done
    share_cores()
    told: list[object] = []
    with suppress(Exception):
        told = [part()]
    sender.send(told)


class _Modes(NamedTuple):
    """What torch switches thread by thread, and results depend on."""

    threads: int
    gradients: bool
    cast: bool

    @classmethod
    def here(cls) -> _Modes:
        """Those of this thread."""
        return cls(torch.get_num_threads(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))

    def apply(self, part: Callable[[], R]) -> R:
        """Do a part in them."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        cast = torch.autocast("cpu", torch.bfloat16, enabled=self.cast, cache_enabled=False)
        with torch.set_grad_enabled(self.gradients), cast:
            return part()


def _thread() -> ThreadPoolExecutor:
    """The thread of the second core; most of what it does holds no lock of the interpreter's."""
    global _second
    if _second is None:
        _second = ThreadPoolExecutor(1, "second-core", torch.set_flush_denormal, (True,))
    return _second


def _forget() -> None:
    """A forked process has no threads but the one that forked it."""
    global _second
    _second = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
