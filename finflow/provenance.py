"""Hashes that identify what a result depends on: the source code, and texts such as settings."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
#: Rooms that decide no result: the command line only passes options on.
WITHOUT_EFFECT = ("cli",)
#: Room of the configuration: a default value counts in the hash of every configuration that has it, not here.
CONFIGURATION = "config"
_IMPORT = re.compile(r"^[ \t]*(?:from [\w.]+ import (?:\([^)]*\)|[^\n(]*)|import [^\n]*)\n", re.MULTILINE)
_DEFAULT = re.compile(r"(?<=\bkey\()\s*(?:[\w.+-]+|\"[^\"]*\")(?=,)")


def short_hash(text: str) -> str:
    """First eight hexadecimal digits of a text's SHA-256, for names of folders."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@cache
def code_hash(rooms: tuple[str, ...] = (), package: Path = PACKAGE) -> str:
    """Hash the source files of the package, or of some of its rooms, with their subfolders.

    Import statements, file names and folders do not count, so that moving a file leaves its results valid, and neither
    do the numbers and words that are defaults of configuration keys: a result that depends on them names its
    configuration too (`finflow.config.config_hash`). Any other change of a line counts.

    Parameters
    ----------
    rooms : tuple of str
        Top-level folders; all but those that decide no result when left out.
    package : Path
        Folder of the package.
    """
    paths = [path for path in package.rglob("*.py") if _counts(path.relative_to(package).parts[0], rooms)]
    contents = sorted(hashlib.sha256(_deciding(path, package).encode()).digest() for path in paths)
    return hashlib.sha256(b"".join(contents)).hexdigest()[:16]


def _deciding(path: Path, package: Path) -> str:
    """The text of a file without what decides no result, or is told by its configuration."""
    text = _IMPORT.sub("", path.read_text("utf-8"))
    return _DEFAULT.sub("", text) if path.relative_to(package).parts[0] == CONFIGURATION else text


def _counts(part: str, rooms: tuple[str, ...]) -> bool:
    return part in rooms if rooms else part not in WITHOUT_EFFECT
