"""Files that grow by a line at a time: a line is in them in full or not at all.

Each line of a hashed log holds the SHA-256 of the line before it (``previous``) and of itself (``sha256``), so that a
changed, removed or inserted line is detected. A crash while a line is written leaves a part of one at the end: it is
cut off when the next line is written, and reported.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finflow.errors import FinflowError, OutputError
from finflow.files import exclusively, flush_folder, lock_file, reason
from finflow.json_text import parse_json

LOCK = ".state.lock"  # beside a hashed log, held while a line is written
START = "0" * 64  # `previous` of its first line


def append_line(path: Path, line: str) -> None:
    """Add a line to a file that only grows; missing folders are created.

    The line goes out in one write, at the end whatever others write at the same time, and is flushed to the disk. What
    a crash left of an earlier line is closed off first, so that it spoils no other; of a line for which the disk has
    not enough room, nothing stays.

    Raises OutputError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b", buffering=0) as stream:
            lock_file(stream)
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(end - 1, 0))
            begun = stream.read(1) not in (b"", b"\n")
            content = ("\n" * begun + line + "\n").encode("utf-8")
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


@dataclass
class HashedLog:
    """Contents of the lines of a log, without the hashes, and the report of an unfinished last line, if any."""

    path: Path
    entries: list[dict[str, Any]] = field(default_factory=list)
    message: str | None = None
    _newest: str = START
    _whole: int = 0

    @classmethod
    def read(cls, path: Path) -> HashedLog:
        """Read a log and check it line by line; an empty one where there is no file.

        Raises FinflowError: One line that names the first line that is not what was written.
        """
        log = cls(path)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return log
        except OSError as error:
            raise FinflowError(f"{path} cannot be read: {error.strerror or error}") from None
        *lines, rest = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            log._add(line, number)
        log._whole = len(content) - len(rest)
        if rest:
            log.message = (
                f"the last line of {path.name} was cut short by a crash: it is left out, and its step is done again"
            )
        return log

    def append(self, entry: Mapping[str, Any]) -> None:
        """Write one more line, flushed to the disk.

        Raises OutputError if it cannot be written; the log is then as it was.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with exclusively(self.path.with_name(LOCK)):
            self._catch_up()
            content = {**entry, "previous": self._newest}
            line = _canonical({**content, "sha256": _digest(content)})
            append_line(self.path, line)
        self._add(line.encode(), len(self.entries) + 1)
        self._whole += len(line.encode()) + 1

    def _catch_up(self) -> None:
        """Read what another process has appended meanwhile, and cut off what a crash has left behind it."""
        try:
            if self.path.exists() and self.path.stat().st_size > self._whole:
                log = HashedLog.read(self.path)
                self.entries[:], self._newest, self._whole = log.entries, log._newest, log._whole
                os.truncate(self.path, self._whole)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {reason(error)}") from error

    def _add(self, line: bytes, number: int) -> None:
        try:
            content = parse_json(line)
            digest, previous = content.pop("sha256"), content["previous"]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._changed(number, "it is not a line of a log") from None
        if digest != _digest(content):
            raise self._changed(number, "its SHA-256 is not that of what it says")
        if previous != self._newest:
            raise self._changed(number, "it does not follow the line before it")
        del content["previous"]
        self.entries.append(content)
        self._newest = digest

    def _changed(self, number: int, why: str) -> FinflowError:
        return FinflowError(
            f"line {number} of {self.path} was changed after it was written ({why}): put the file back as it was, or "
            "move it away to begin a new log with --holdings"
        )


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(content).encode(errors="surrogatepass")).hexdigest()


def _canonical(content: Mapping[str, Any]) -> str:
    """JSON text with sorted keys; floats as Python writes them, from which they are read back exactly."""
    return json.dumps(dict(content), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
