"""Commands that are refused, and the line that they are answered with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from finflow.cli import main


def refusal(
    capsys: pytest.CaptureFixture[str],
    *arguments: str,
    command: Callable[[Sequence[str]], int] = main,
    status: int = 2,
) -> str:
    """The one line on standard error that a command ends with, and its status."""
    capsys.readouterr()
    assert command(arguments) == status
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    return said
