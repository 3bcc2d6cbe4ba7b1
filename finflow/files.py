"""Files that are either there in full or not there at all.

A reader never sees half a file, and a stop at any moment, or a full disk, leaves the previous version in place.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from finflow.errors import OutputError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file by way of a temporary one beside it; folders that are missing are made.

    The temporary file is flushed to the disk before it takes the name, and the folder is flushed after, so that the
    new file also survives a loss of power. Text is written as UTF-8 with the line ends it has.

    Parameters
    ----------
    path
        The file to write; an existing one is replaced.
    content
        All that the file will hold.

    Raises
    ------
    OutputError
        If the file cannot be written. What was there before is still there, and no temporary file is left.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        _flush_folder(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {path}: {reason}; free some space there or choose another folder") from error


def _flush_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk, where the system can open folders (Windows cannot)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
