"""Files that grow by a line at a time: a line is in them in full or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from finflow.errors import OutputError
from finflow.files import alone, flush_folder, reason


def append_line(path: Path, line: str) -> None:
    """Add a line to a file that only grows; missing folders are created.

    The line goes out in one write, at the end whatever others write at the same time, and is flushed to the disk. What
    a crash left of an earlier line is closed off first, so that it spoils no other; of a line for which the disk has
    not enough room, nothing stays.

    Raises
    ------
    OutputError
        If it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as stream, alone(stream.fileno()):
            end = stream.seek(0, os.SEEK_END)
            whole = end == 0
            if not whole:
                stream.seek(-1, os.SEEK_END)
                whole = stream.read(1) == b"\n"
            content = (("" if whole else "\n") + line + "\n").encode("utf-8")
            try:
                if stream.write(content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(stream.fileno())
            except OSError:
                stream.truncate(end)
                raise
        flush_folder(path.parent)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason(error)}") from error


def drop_last_line(path: Path, line: str) -> None:
    """Take back the line that was added last.

    Parameters
    ----------
    line
        The line that has to be its last, without its end.

    Raises
    ------
    OutputError
        If the file ends with another line, or cannot be written; nothing is taken off it then.
    """
    try:
        with path.open("r+b", buffering=0) as stream, alone(stream.fileno()):
            before, _, last = stream.read().removesuffix(b"\n").rpartition(b"\n")
            if last != line.encode("utf-8"):
                raise OutputError(f"{path} ends with another line than the one to take back: something else wrote it")
            stream.truncate(len(before) + 1 if before else 0)
            os.fsync(stream.fileno())
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason(error)}") from error
