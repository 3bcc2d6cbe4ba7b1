"""Work on a second core: run in full, by the same rules, to the same bits."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow import cores

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Of an operation, as in training."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are."""
    monkeypatch.setattr(cores, "available_cores", lambda: 2)


@pytest.mark.parametrize("count", [1, 2])
def test_both_functions_run_and_the_second_on_its_own_thread_where_a_core_is_free(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: count)
    where = cores.run_both(threading.current_thread, threading.current_thread, CPU)
    assert where[0] is threading.current_thread()
    assert len(set(where)) == count


def test_an_exception_of_either_is_raised_after_both_have_ended(two_cores: None) -> None:
    """Or the other would go on writing while the caller cleans up."""
    begun, done = threading.Event(), threading.Event()

    def slow() -> None:
        begun.wait(10.0)
        done.set()

    def fail() -> None:
        begun.set()
        raise KeyError

    with pytest.raises(KeyError):
        cores.run_both(fail, slow, CPU)
    assert done.is_set()
    with pytest.raises(ZeroDivisionError):
        cores.run_both(lambda: None, lambda: 1 // 0, CPU)


def test_the_second_computes_with_the_gradients_and_the_precision_of_the_caller(two_cores: None) -> None:
    def modes() -> tuple[object, ...]:
        product = torch.ones(2, 2) @ torch.ones(2, 2, requires_grad=True)
        return torch.get_num_threads(), product.requires_grad, product.dtype

    for gradients, cast in ((True, False), (False, False), (True, True), (True, False)):
        with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16, enabled=cast):
            here, there = cores.run_both(modes, modes, CPU)
        assert there == here == (1, gradients, torch.bfloat16 if cast else torch.float32)


def thread_of_second(device: torch.device = CPU) -> threading.Thread:
    return cores.run_both(lambda: None, threading.current_thread, device)[1]


def test_one_thread_runs_both_where_no_core_is_free(two_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations have several threads, other processes use the cores, or another device computes."""
    here = threading.current_thread()
    assert thread_of_second() is not here
    assert thread_of_second(torch.device("meta")) is here
    torch.set_num_threads(2)
    assert thread_of_second() is here
    torch.set_num_threads(1)
    monkeypatch.setattr(cores, "_shared", False)
    cores.share_cores()
    assert thread_of_second() is here


def test_a_call_from_the_second_thread_does_not_wait_for_itself(two_cores: None) -> None:
    def nested() -> tuple[str, str]:
        return threading.current_thread().name, thread_of_second().name

    outer, inner = cores.run_both(lambda: None, nested, CPU)[1]
    assert outer == inner != threading.current_thread().name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_a_second_thread_of_its_own(two_cores: None) -> None:
    """That of its parent is not in it, and to wait for it would be for ever."""
    cores.run_both(lambda: None, lambda: None, CPU)
    child = os.fork()
    if child == 0:
        os._exit(0 if cores.run_both(lambda: None, lambda: 1, CPU)[1] == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0


def _runs(process: int) -> bool:
    """Whether it does; one that has ended and that nobody has asked for yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _process(_: object = None) -> int:
    return os.getpid()


def forked(work: Callable[[], Any]) -> Any:
    """Result of some work in a process of its own."""
    with cores.forked(work) as found:
        pass
    return found()


@pytest.mark.skipif(sys.platform == "darwin" or not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("two_cores")
class TestForked:
    """A part in a process of its own returns what it would here, or is done here."""

    def test_another_process_does_it_and_a_result_larger_than_a_pipe_comes_whole(self) -> None:
        process, numbers = forked(lambda: (os.getpid(), np.arange(1_000_000)))
        assert process != os.getpid()
        assert np.array_equal(numbers, np.arange(1_000_000))

    @pytest.mark.parametrize("obstacle", ["one core", "a daemon", "no room", "threads"])
    def test_where_no_process_may_be_started_it_is_done_here(
        self, obstacle: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A daemon may start none; threads do not live on in a fork, and an operation would wait for them for ever."""

        def full() -> int:
            raise OSError("no room for another process")

        if obstacle == "one core":
            monkeypatch.setattr(cores, "available_cores", lambda: 1)
        elif obstacle == "a daemon":
            monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
        elif obstacle == "no room":
            monkeypatch.setattr(os, "fork", full)
        else:
            torch.set_num_threads(2)
        assert forked(_process) == os.getpid()

    def test_what_it_does_in_turn_forks_no_further(self) -> None:
        inner, outer = forked(lambda: (forked(_process), os.getpid()))
        assert inner == outer != os.getpid()

    def test_what_fails_there_fails_here(self) -> None:
        with pytest.raises(ZeroDivisionError):
            forked(lambda: 1 // 0)

    @pytest.mark.parametrize(
        "end",
        [lambda: lambda: 7, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: time.sleep(60.0)],
        ids=["a result that cannot be sent", "killed", "hangs"],
    )
    def test_what_does_not_come_back_is_done_here(
        self, end: Callable[[], object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cores, "TIMEOUT", 1.0)
        here = os.getpid()
        assert forked(lambda: end() if os.getpid() != here else 7) == 7

    def test_it_ends_with_its_parent(self) -> None:
        """Killed, the parent can tell nobody."""
        receiver, sender = multiprocessing.Pipe(duplex=False)

        def child() -> None:
            sender.send(os.getpid())
            time.sleep(60.0)

        parent = os.fork()
        if parent == 0:
            with cores.forked(child):
                time.sleep(60.0)
        grandchild = receiver.recv()
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        end = time.monotonic() + 30.0
        while _runs(grandchild) and time.monotonic() < end:
            time.sleep(0.02)
        assert not _runs(grandchild)

    def test_a_block_that_fails_leaves_no_process(self) -> None:
        def fail() -> None:
            with cores.forked(lambda: time.sleep(60.0)):
                raise KeyError("of the block")

        with pytest.raises(KeyError):
            fail()
        assert not multiprocessing.active_children()


def test_the_second_core_is_left_to_a_process_that_fills_it(two_cores: None) -> None:
    """Two threads and that process would take turns on two cores."""
    here = threading.current_thread()
    with cores.forked(lambda: 3, fills_core=True) as other:
        assert thread_of_second() is here
    assert other() == 3
    assert thread_of_second() is not here
    with cores.forked(lambda: 3):
        assert thread_of_second() is not here
