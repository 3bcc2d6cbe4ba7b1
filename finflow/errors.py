"""Errors a user can act on.

Each message is one line that says what is wrong, where, and what to do about it. The command line prints the
message and exits with status 2; anything that is not a `FinflowError` is a fault in finflow itself.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

MOST_CHARACTERS = 800
ENDING = 300  # characters, which say what to do


class FinflowError(Exception):
    """A user's mistake, or an outside condition that the user can fix; its text is one line of limited length."""

    def __str__(self) -> str:
        """Text on one line; of a longer one, as where it quotes a file, the beginning and the end."""
        text = " ".join(super().__str__().splitlines())
        return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS // 2]} ... {text[-ENDING:]}"


class ConfigError(FinflowError):
    """A configuration key, value or file that cannot be used."""


class MarketError(FinflowError):
    """Market data that is missing, malformed or too short."""


class CheckpointError(FinflowError):
    """A checkpoint that is missing, damaged, or made by another version or configuration."""


class OutputError(FinflowError):
    """A folder or file that cannot be written."""


class EvidenceError(FinflowError):
    """Numbers that cannot carry the statistic asked of them: gaps, too few returns, too few seeds."""


class TrainingError(FinflowError):
    """A training that cannot go on, and what to try."""


def refuse(wrong: object, answer: str, kind: type[FinflowError] = FinflowError) -> None:
    """Raise an error with the answer to a mistake, where it was made."""
    if wrong:
        raise kind(answer)


def one_line(error: object, most: int = 160) -> str:
    """Text of an error on one line, of so many characters at most."""
    return " ".join(str(error).split())[:most]


def typed_line(error: BaseException) -> str:
    """Class and text of an error on one line."""
    return f"{type(error).__name__}: {one_line(error)}"


def first_few(names: Sequence[str], most: int) -> str:
    """Names separated by commas, so many at most, and the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def program() -> str:
    """Name that finflow was called by, for messages with commands."""
    path = Path(sys.argv[0])
    if path.suffix != ".py":
        return "finflow"
    if path.name == "__main__.py" and path.parent.parent.name == "scripts":
        return "python -m scripts." + path.parent.name
    return "python scripts/" + path.name if path.parent.name == "scripts" else "python main.py"


def command(mode: str, *words: object) -> str:
    """The command of a mode as a user types it; scripts have only some modes, and name ``main.py``."""
    name = program() if program() == "finflow" else "python main.py"
    return f"{name} --mode {mode} {shlex.join(map(str, words))}"
