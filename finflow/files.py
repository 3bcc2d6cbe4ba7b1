"""Files that are either there in full or not there at all.

A reader never sees half a file, and a stop at any moment, or a full disk, leaves the previous version in place.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from finflow.errors import FinflowError, OutputError

if TYPE_CHECKING:
    import pandas as pd

LOCK = ".lock"
PROBE = 1 << 20  # bytes: a run of any size writes more
_NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|Cannot allocate memory")  # as torch says on a CPU


def write_atomically(path: Path, content: bytes | str, mode: int = 0o666) -> None:
    """Write a file by way of a temporary one in its folder; missing folders are created.

    The temporary file is flushed to the disk before it takes the name, and the folder is flushed after, so that the
    new file also survives a loss of power. Text is written as UTF-8 with the line ends it has.

    Raises OutputError if the file cannot be written: what was there before is still there, and no temporary file.
    """
    write_together({path: content}, mode)


def write_together(files: Mapping[Path, bytes | str], mode: int = 0o666) -> None:
    """Write files as `write_atomically` does, none of them before all are safely on the disk.

    Only then do they take their names, in the order given: a full disk leaves every previous file in place.

    Raises OutputError if a file cannot be written; the line names it.
    """
    staged: dict[Path, Path] = {}
    path = Path()
    try:
        with ExitStack() as temporaries:
            for path, content in files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                staged[path] = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
                temporaries.callback(staged[path].unlink, missing_ok=True)
                _write(staged[path], content.encode("utf-8") if isinstance(content, str) else content, mode)
            for path, temporary in staged.items():
                os.replace(temporary, path)
        for folder in dict.fromkeys(path.parent for path in staged):
            flush_folder(folder)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason(error)}") from error


def check_writable(folder: Path, key: str = "output.logs_dir", keep: bool = True) -> None:
    """Fail before any work is done if a folder cannot be written, or has no room even for `PROBE` bytes.

    An error names the configuration's ``key``; without ``keep``, a folder that was created does not stay. Where several
    processes write into one folder it has to stay: one must not remove it while another is about to write.

    Raises OutputError; nothing that was created is left then.
    """
    created = missing_folders(folder)
    probe = folder / f".probe.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(PROBE))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        keep = False
        raise OutputError(f"cannot write to {folder}: {reason(error, key)}") from error
    finally:
        if not keep:
            remove_empty(created)


def read_input(path: Path, name: str, error: type[FinflowError], wanted: str = "a file") -> bytes:
    """Read a file that a user names; an ``error`` of one line if it does not exist or cannot be read.

    ``name``: its name in messages, such as the key of the configuration that holds the path. ``wanted``: the kind of
    file that a message asks for where the path is a folder.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise error(f"{name} {path} does not exist") from None
    except IsADirectoryError:
        raise error(f"{name} {path} is a folder; name {wanted}") from None
    except OSError as failure:
        raise error(f"{name} {path} cannot be read: {failure.strerror or failure}") from None


def read_text_input(path: Path, name: str, error: type[FinflowError], wanted: str = "a text file") -> str:
    """Read a file that a user names as UTF-8 text; parameters and errors as of `read_input`."""
    try:
        return read_input(path, name, error, wanted).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise error(f"{name} {path} is not UTF-8 text") from None


def missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that are not there yet, the innermost first."""
    return [place for place in (folder, *folder.parents) if not os.path.lexists(place)]


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders that are empty; leave the others."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def describe_lack(error: Exception) -> str | None:
    """Describe what this machine lacks, a package, memory or a file; None for a fault in finflow."""
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("finflow"):
        place = f"{sys.executable} on {platform.node()}"
        return f"the package {error.name} is not installed for {place}; the README has the lines to install"
    if isinstance(error, MemoryError) or "OutOfMemoryError" in type(error).__name__ or _NO_MEMORY.search(str(error)):
        return (
            "out of memory: use smaller batches (--batch-size), fewer train.offline_episodes or train.n_envs, or a "
            "smaller bcell.hidden_dim or bcell.memory_capacity"
        )
    if not isinstance(error, OSError):
        return None
    names = " and ".join(str(name) for name in (error.filename, error.filename2) if name is not None)
    return f"{names}: {error.strerror}" if names else str(error.strerror or error)


def reason(error: OSError, key: str = "") -> str:
    """The cause of a failed write, and a way out."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        why = "a file is in the way"
    else:
        why = error.strerror or str(error)
    full = "free some space there or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{why}; {full}choose another {key or 'folder'}"


def _write(path: Path, content: bytes, mode: int) -> None:
    with open(path, "xb", opener=partial(os.open, mode=mode)) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def flush_folder(folder: Path) -> None:
    """Flush a folder's list of names to the disk, where the system can open folders (Windows cannot)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Lock a file against other processes of this machine.

    It is created if it is missing, and must never be replaced: a process that waits for the old one would not notice.
    """
    with path.open("ab") as stream:
        lock_file(stream)
        yield


@contextmanager
def in_use(path: Path, doing: str = "training in") -> Iterator[None]:
    """Lock a file or folder against other processes by a file next to it, which the end of a process unlocks.

    Raises OutputError if another process has it, or the lock cannot be written.
    """
    lock = path.with_name(f".{path.name}{LOCK}")
    created = missing_folders(lock.parent)
    try:
        stream = _locked(lock)
    except OSError as error:
        raise OutputError(f"cannot write {lock}: {reason(error)}") from error
    if stream is None:
        raise OutputError(f"another process is {doing} {path}; wait for it, or stop it first")
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes no file that is open
            lock.unlink()
        stream.close()
        remove_empty(created)


def _locked(path: Path) -> IO[bytes] | None:
    """The file, opened and locked; None where another process has locked it."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError), ExitStack() as opened:
            stream = opened.enter_context(path.open("ab"))
            if not lock_file(stream, wait=False):
                return None
            if os.path.samestat(os.fstat(stream.fileno()), path.stat()):  # else its last holder has removed it
                opened.pop_all()
                return stream


def lock_file(file: IO[Any], wait: bool = True, of_process: bool = False) -> bool:
    """Lock an open file until it is closed; false where another has locked it and is not waited for.

    ``of_process``: copies of this process do not hold the lock. True also where the system has no such locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    lock = fcntl.lockf if of_process else fcntl.flock
    try:
        lock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # another error means a file system without locks
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True


SHARE = 4  # of the memory: the bytes, what is read of them, and what is made of that
CELL = 8  # bytes


def fits_memory(size: int) -> bool:
    """True for so many bytes as one file may take: a quarter of the machine's memory."""
    return size <= machine_memory() // SHARE


def machine_memory() -> int:
    """Bytes of this machine's memory; a large number where the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return 1 << 36


def read_table(path: Path) -> pd.DataFrame:
    """Read a Parquet file, unless it would take more memory than a file may.

    A few kilobytes can hold billions of rows of one value, so the rows that its footer declares are counted first.

    Raises ValueError if it would; OSError or pyarrow.ArrowException if it cannot be read as Parquet.
    """
    import pandas as pd
    from pyarrow.parquet import read_metadata

    footer = read_metadata(path)
    if footer.num_rows < 0 or not fits_memory(footer.num_rows * max(footer.num_columns, 1) * CELL):
        raise ValueError(
            f"it holds {footer.num_rows:,} rows of {footer.num_columns:,} columns, more than this machine can take"
        )
    return pd.read_parquet(path)
