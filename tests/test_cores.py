"""What is done on a second core meanwhile is done in full, by the same rules, and to the same bits."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture(params=(1, 2))
def count(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Processor cores that this process seems to have."""
    monkeypatch.setattr(cores, "available_cores", lambda: request.param)
    return int(request.param)


def test_both_are_done_at_the_end_of_the_block(count: int) -> None:
    where: list[threading.Thread] = []
    with cores.meanwhile(lambda: where.append(threading.current_thread()), CPU):
        where.append(threading.current_thread())
    assert len(where) == 2
    assert len(set(where)) == count


def test_what_a_part_raises_is_raised_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    reached: list[str] = []

    def fail() -> None:
        raise ArithmeticError("of the part")

    with pytest.raises(ArithmeticError, match="of the part"), cores.meanwhile(fail, CPU):
        reached.append("the end of the block")
    assert reached


def test_a_block_that_fails_waits_for_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the part would go on writing while somebody else cleans up."""
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    begun, done = threading.Event(), threading.Event()

    def slow() -> None:
        begun.wait(10.0)
        done.set()

    def fail() -> None:
        with cores.meanwhile(slow, CPU):
            begun.set()
            raise KeyError("of the block")

    with pytest.raises(KeyError):
        fail()
    assert done.is_set()


def test_a_part_computes_as_the_thread_that_asked(two_cores: None) -> None:
    """With its gradients and its precision."""

    def modes() -> tuple[object, ...]:
        product = torch.ones(2, 2) @ torch.ones(2, 2, requires_grad=True)
        return torch.get_num_threads(), product.requires_grad, product.dtype

    for gradients, cast in ((True, False), (False, False), (True, True), (True, False)):
        with (
            torch.set_grad_enabled(gradients),
            torch.autocast("cpu", torch.bfloat16, enabled=cast),
            cores.meanwhile(modes, CPU) as found,
        ):
            here = modes()
        assert found.result() == here == (1, gradients, torch.bfloat16 if cast else torch.float32)


def test_operations_of_several_threads_leave_no_core(two_cores: None) -> None:
    torch.set_num_threads(2)
    with cores.meanwhile(threading.current_thread, CPU) as found:
        pass
    assert found.result() is threading.current_thread()


def test_a_part_of_a_part_is_done_in_its_turn(two_cores: None) -> None:
    """The second core has one thread, which would wait for itself."""

    def outer() -> str:
        with cores.meanwhile(lambda: threading.current_thread().name, CPU) as found:
            pass
        return found.result()

    with cores.meanwhile(outer, CPU) as found:
        pass
    assert found.result() != threading.current_thread().name


def test_a_part_has_no_denormal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    with cores.meanwhile(lambda: (torch.tensor(1e-40) * 1.0).item(), CPU) as found:
        pass
    assert found.result() == 0.0


def test_a_process_among_others_keeps_to_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    monkeypatch.setattr(cores, "_shared", False)
    cores.share_cores()
    where: list[threading.Thread] = []
    with cores.meanwhile(lambda: where.append(threading.current_thread()), CPU):
        pass
    assert where == [threading.current_thread()]


def test_another_device_is_kept_busy_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    with cores.meanwhile(threading.current_thread, torch.device("meta")) as found:
        pass
    assert found.result() is threading.current_thread()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_a_second_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of its parent is not in it, and to wait for it would be for ever."""
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    with cores.meanwhile(lambda: None, CPU):
        pass
    child = os.fork()
    if child == 0:
        found: list[int] = []
        with cores.meanwhile(lambda: found.append(1), CPU):
            pass
        os._exit(0 if found == [1] else 1)
    assert os.waitpid(child, 0)[1] == 0


def _runs(process: int) -> bool:
    """Whether it does; one that has ended and that nobody has asked for yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _process(_: object = None) -> int:
    return os.getpid()


@pytest.mark.skipif(sys.platform == "darwin" or not hasattr(os, "fork"), reason="processes are not forked here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("two_cores")
class TestForked:
    """A part in a process of its own returns what it would here, or is done here."""

    def test_another_process_does_it(self) -> None:
        with cores.forked(_process) as found:
            here = os.getpid()
        assert found() != here

    def test_a_large_result_comes_whole(self) -> None:
        """Larger than a pipe holds."""
        with cores.forked(lambda: np.arange(1_000_000)) as found:
            pass
        assert np.array_equal(found(), np.arange(1_000_000))

    def test_one_core_does_it_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cores, "available_cores", lambda: 1)
        with cores.forked(_process) as found:
            pass
        assert found() == os.getpid()

    def test_what_it_does_in_turn_forks_no_further(self) -> None:
        def within() -> tuple[int, int]:
            with cores.forked(_process) as found:
                pass
            return found(), os.getpid()

        with cores.forked(within) as found:
            pass
        inner, outer = found()
        assert inner == outer != os.getpid()

    def test_what_fails_there_fails_here(self) -> None:
        with cores.forked(lambda: 1 // 0) as found:
            pass
        with pytest.raises(ZeroDivisionError):
            found()

    def test_what_cannot_be_sent_is_done_here(self) -> None:
        with cores.forked(lambda: lambda: 7) as found:
            pass
        assert found()() == 7

    def test_where_the_process_is_killed_it_is_done_here(self) -> None:
        here = os.getpid()

        def fragile() -> int:
            if os.getpid() != here:
                os.kill(os.getpid(), signal.SIGKILL)
            return 7

        with cores.forked(fragile) as found:
            pass
        assert found() == 7

    def test_a_daemon_does_it_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may start no other process."""
        monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
        with cores.forked(_process) as found:
            pass
        assert found() == os.getpid()

    def test_where_no_process_can_be_started_it_is_done_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def full() -> int:
            raise OSError("no room for another process")

        monkeypatch.setattr(os, "fork", full)
        with cores.forked(_process) as found:
            pass
        assert found() == os.getpid()

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

    def test_where_the_process_hangs_it_is_done_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cores, "PATIENCE", 0.2)
        here = os.getpid()
        with cores.forked(lambda: time.sleep(60.0) if os.getpid() != here else 7) as found:
            pass
        assert found() == 7

    def test_where_operations_have_several_threads_it_is_done_here(self) -> None:
        """They do not live on in a fork, and an operation would wait for them for ever."""
        torch.set_num_threads(2)
        with cores.forked(_process) as found:
            pass
        assert found() == os.getpid()

    def test_a_block_that_fails_leaves_no_process(self) -> None:
        def fail() -> None:
            with cores.forked(lambda: time.sleep(60.0)):
                raise KeyError("of the block")

        with pytest.raises(KeyError):
            fail()
        assert not multiprocessing.active_children()
