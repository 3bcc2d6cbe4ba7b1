"""Processor cores, and what may be done on a second one meanwhile: by a thread, or by a forked process.

What is done beside is computed by one thread from beginning to end, as it would be in its turn: no sum is cut
differently, so the bits are the same with one core as with two, and timing decides nothing. Tensors' work leaves the
interpreter free, and takes a thread; a backtest holds the interpreter, and takes a process.
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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple, TypeVar

import torch

R = TypeVar("R")
SECOND = "second-core"
PATIENCE = 600.0  # seconds that a forked process may take longer than ten times what was done meanwhile

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
    for a normal number are zero in ``part``, as in an update: see ``thrift``. Where an operation has several threads of
    its own (``train.threads``), one thing is done after the other.

    Parameters
    ----------
    part : callable
        What it raises is raised at the end of the block at the latest.
    device : torch.device
        That it computes on; another than the processor is kept busy by one thread.

    Yields
    ------
    Future
        What ``part`` returns, to be asked for after the block.
    """
    done: Future[R] = Future()
    if device.type != "cpu" or not _second_core() or threading.current_thread().name.startswith(SECOND):
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
    told: list[R] = []
    started = _fork(part) if _second_core() and _may_fork() else None
    if started is None:
        yield part
        return
    child, receiver = started
    began = time.monotonic()
    try:
        yield lambda: told[0] if told else part()
        with suppress(EOFError):  # it ended before its time
            told = receiver.recv() if receiver.poll(PATIENCE + 10.0 * (time.monotonic() - began)) else told
    finally:
        child.kill()
        child.join()
        receiver.close()


def _second_core() -> bool:
    """Whether there is one to spare: the threads of an operation share what there is, and do not live on in a fork."""
    return not _shared and torch.get_num_threads() == 1 and available_cores() > 1


def _may_fork() -> bool:
    can = sys.platform != "darwin" and "fork" in multiprocessing.get_all_start_methods()
    cuda = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    return can and not cuda and not multiprocessing.current_process().daemon


def _fork(part: Callable[[], object]) -> tuple[BaseProcess, Connection] | None:
    """A process that does a part, and where it will tell; None where the machine has no room for it."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_tell, args=(part, receiver, sender), daemon=True)
    try:
        child.start()
    except OSError:
        receiver.close()
        return None
    finally:
        sender.close()
    return child, receiver


def _tell(part: Callable[[], object], receiver: Connection, sender: Connection) -> None:
    """Do a part and send what it returns, or nothing where it fails."""
    receiver.close()  # the parent's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent says what is to be done
    threading.Thread(target=end_with_parent, daemon=True).start()
    share_cores()
    with suppress(Exception):  # it will fail again where it is done again, and be heard there
        sender.send([part()])


def end_with_parent() -> None:
    """Wait for the process that started this one to end, however it does, and end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


class _Modes(NamedTuple):
    """What torch switches thread by thread, and results depend on."""

    gradients: bool
    cast: bool

    @classmethod
    def here(cls) -> _Modes:
        """Those of this thread."""
        return cls(torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))

    def apply(self, part: Callable[[], R]) -> R:
        """Do a part in them."""
        cast = torch.autocast("cpu", torch.bfloat16, enabled=self.cast, cache_enabled=False)
        with torch.set_grad_enabled(self.gradients), cast:
            return part()


def _thread() -> ThreadPoolExecutor:
    """The thread of the second core; most of what it does holds no lock of the interpreter's."""
    global _second
    if _second is None:
        _second = ThreadPoolExecutor(1, SECOND, torch.set_flush_denormal, (True,))
    return _second


def _forget() -> None:
    """A forked process has no threads but the one that forked it."""
    global _second
    _second = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
