"""Commands that are refused, with the line that they are answered with, Ctrl-C, and processes that have ended."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from finflow.cli import main


def refusal(
    capsys: pytest.CaptureFixture[str], *arguments: str, command: Callable[[Sequence[str]], int] = main, status: int = 2
) -> str:
    """The one line on standard error that a command ends with, and its status."""
    capsys.readouterr()
    assert command(arguments) == status
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    return said


@contextlib.contextmanager
def ctrl_c_as(handler: Callable[..., object] | signal.Handlers) -> Iterator[None]:
    """Have Ctrl-C do this, whether or not these tests were begun in the background, where a shell has it ignored."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def is_alive(process: int) -> bool:
    """Whether a process is there, and no mere entry in a table, which it is until somebody asks for its end."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
