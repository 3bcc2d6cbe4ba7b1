"""Hashes that identify what a result depends on: the source code, and texts such as settings."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
#: Rooms that decide no result: the command line only passes options on.
WITHOUT_EFFECT = ("cli",)
_IMPORT = re.compile(r"^[ \t]*(?:from [\w.]+ import (?:\([^)]*\)|[^\n(]*)|import [^\n]*)\n", re.MULTILINE)


def short_hash(text: str) -> str:
    """First eight hexadecimal digits of a text's SHA-256, for names of folders."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@cache
def code_hash(rooms: tuple[str, ...] = (), package: Path = PACKAGE) -> str:
    """Hash the source files of the package, or of some of its rooms, with their subfolders.

    Import statements, file names and folders do not count, so that moving a file leaves its results valid; any other
    change of a line does not.

    Parameters
    ----------
    rooms : tuple of str
        Top-level folders; all but those that decide no result when left out.
    package : Path
        Folder of the package.
    """
    paths = [path for path in package.rglob("*.py") if _counts(path.relative_to(package).parts[0], rooms)]
    contents = sorted(hashlib.sha256(_IMPORT.sub("", path.read_text("utf-8")).encode()).digest() for path in paths)
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16]


def _counts(part: str, rooms: tuple[str, ...]) -> bool:
    return part in rooms if rooms else part not in WITHOUT_EFFECT
