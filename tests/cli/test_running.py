"""How a signal stops a run."""

from __future__ import annotations

import signal
import threading

import pytest

from finflow.cli.exit_status import run_safely, stopping_between_updates
from finflow.errors import FinflowError


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_for_a_stop_and_the_second_stops_at_once(
    first: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []
    with stopping_between_updates(lambda: asked.append(True)):
        signal.raise_signal(first)
        assert asked == [True]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert asked == [True]
    assert "once more to stop at once" in capfd.readouterr().err


def test_handlers_are_put_back_whatever_happens() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    inside = []

    def work() -> None:
        with stopping_between_updates(lambda: None):
            inside.append(signal.getsignal(signal.SIGINT))
            raise FinflowError("stop")

    with pytest.raises(FinflowError):
        work()
    assert inside[0] is not before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_another_thread_trains_without_touching_the_handlers() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with stopping_between_updates(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_an_interrupt_stops_a_command_that_a_shell_started_in_the_background() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_safely(lambda _: signal.raise_signal(signal.SIGINT), []) == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
