"""Work on a second core: run in full, by the same rules, to the same bits."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from finflow import cores
from tests.commands import is_alive

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
        while is_alive(grandchild) and time.monotonic() < end:
            time.sleep(0.02)
        assert not is_alive(grandchild)

    def test_a_block_that_fails_leaves_no_process(self) -> None:
        def fail() -> None:
            with cores.forked(lambda: time.sleep(60.0)):
                raise KeyError("of the block")

        with pytest.raises(KeyError):
            fail()
        assert not multiprocessing.active_children()


def test_garbage_collection_does_not_touch_memory_that_is_shared_with_a_fork(two_cores: None) -> None:
    """It looks at no object from before the fork: each process of a report would copy 0.13 GB."""
    before = len(gc.get_objects())
    with cores.forked(lambda: len(gc.get_objects())) as other:
        with cores.forked(int) as inner:
            pass
        here = len(gc.get_objects())  # while the outer process lives
        assert inner() == 0
    assert before > 10_000
    assert max(here, other()) < before / 10
    assert gc.get_freeze_count() == 0
    assert len(gc.get_objects()) > before / 2


class TestSharedWithFork:
    """Calls are shared out between two processes, and come back in order."""

    def test_the_block_keeps_its_core_and_then_takes_calls_from_the_end(self, two_cores: None) -> None:
        """Three processes would take turns on two cores; and the other's first call may last longer than the block."""
        of_here, of_other = multiprocessing.Pipe()
        here = os.getpid()

        def part(number: int) -> tuple[int, int]:
            if os.getpid() != here:
                of_other.send("begun")
                of_other.recv()
            elif number == 1:
                of_here.send("none is left")
            return number, os.getpid()

        with cores.shared_with_fork(part, 3) as found:
            assert forked(_process) == here
            of_here.recv()
        numbers, processes = zip(*found(), strict=True)
        assert numbers == (0, 1, 2)
        assert processes[0] != here
        assert processes[1:] == (here, here)
        with cores.forked(lambda: 3):
            assert forked(_process) != here

    @pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: time.sleep(60.0)])
    def test_calls_of_a_process_that_dies_or_hangs_are_made_here(
        self, end: Callable[[], object], two_cores: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cores, "TIMEOUT", 1.0)
        here = os.getpid()

        def part(number: int) -> int:
            if os.getpid() != here:
                end()
            return number

        with cores.shared_with_fork(part, 3) as found:
            pass
        assert found() == [0, 1, 2]

    def test_what_fails_there_fails_here(self, two_cores: None) -> None:
        with cores.shared_with_fork(lambda number: 1 // number, 1) as found:
            time.sleep(0.1)
        with pytest.raises(ZeroDivisionError):
            found()
