"""Hashes that identify what a result depends on: the source code, and texts such as settings."""

from __future__ import annotations

import ast
import contextlib
import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from finflow.errors import OutputError
from finflow.files import write_atomically

PACKAGE = Path(__file__).resolve().parent
#: Rooms that decide no result: the command line only passes options on.
WITHOUT_EFFECT = ("cli",)
#: Room of the configuration: a default value counts in the hash of every configuration that has it, not here.
CONFIGURATION = "config"
_SILENT = (ast.Import, ast.ImportFrom, ast.Pass)


def package_version(name: str = "finflow") -> str:
    """Version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def short_hash(text: str) -> str:
    """First eight hexadecimal digits of a text's SHA-256, for names of folders."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@cache
def code_hash(rooms: tuple[str, ...] = (), package: Path = PACKAGE) -> str:
    """Hash the syntax trees of the package, or of some of its rooms, with their subfolders.

    Each statement at the top of a file counts once, wherever it stands: moving it leaves its results valid, and so do
    changes of formatting, comments, docstrings, imports and names of files. Neither do the numbers and words count that
    are defaults of configuration keys: a result that depends on them names its configuration too
    (`finflow.config.config_hash`).

    Parameters
    ----------
    rooms : tuple of str
        Top-level folders; all but those that decide no result when left out.
    """
    paths = sorted(path for path in package.rglob("*.py") if _counts(path.relative_to(package).parts[0], rooms))
    sources = [path.read_bytes() for path in paths]
    whole = hashlib.sha256(b"\0".join([repr(rooms).encode(), *sources])).hexdigest()[:16]
    kept = package / "__pycache__" / f"{whole}.hash"  # parsing takes a second: once for a state of the files
    with contextlib.suppress(OSError):
        return kept.read_text("ascii")
    statements: list[bytes] = []
    for path, source in zip(paths, sources, strict=True):
        has_defaults = path.relative_to(package).parts[0] == CONFIGURATION
        for statement in ast.parse(source).body:
            if not _is_silent(statement):
                statements.append(hashlib.sha256("\0".join(_words(statement, has_defaults)).encode()).digest())
    found = hashlib.sha256(b"".join(sorted(statements))).hexdigest()[:16]
    with contextlib.suppress(OSError, OutputError):  # a package that cannot be written to is parsed again
        kept.parent.mkdir(exist_ok=True)
        write_atomically(kept, found)
    return found


def _words(node: ast.AST, has_defaults: bool) -> Iterator[str]:
    """A syntax tree in the order of the text, without what decides no result."""
    yield type(node).__name__
    for name in node._fields:
        value: Any = getattr(node, name, None)
        # A call of `key` defines a configuration key by its default, its description and its bounds.
        if name == "args" and has_defaults and isinstance(node, ast.Call) and getattr(node.func, "id", "") == "key":
            value = [one for one in value if not isinstance(getattr(one, "operand", one), ast.Constant)]
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                if not _is_silent(part):
                    yield name
                    yield from _words(part, has_defaults)
            elif part is not None or isinstance(value, list):
                yield f"{name} {part!r}"
    yield ""


def _is_silent(node: ast.AST) -> bool:
    """Test whether a statement is an import, a text that stands alone, or does nothing."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or isinstance(node, _SILENT)


def _counts(part: str, rooms: tuple[str, ...]) -> bool:
    return part in rooms if rooms else part not in WITHOUT_EFFECT
