"""Files, connections and programs that a user's code opens, seen by an audit hook of the interpreter (PEP 578).

A hook cannot be taken back. So there is one for the life of the process, set at the first watched call, and it returns
at once unless a call is being watched.

Seen is what Python itself opens. What a library opens in compiled code of its own (Parquet by pyarrow, HDF5), and
memory shared between processes, raise no event.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_CODE = (".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib", ".pth")
_OF_THE_SYSTEM = ("/proc/", "/sys/", "/dev/", "/usr/share/zoneinfo/")
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_ACTIVE: list[dict[str, None]] = []
_HOOKED: list[bool] = []


class OpenedFiles:
    """A record of what each component opens: component -> what, in words, each once, in order."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, None]] = {}

    def watch(self, component: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of a component, and record what it opens until it returns or raises."""
        if not _HOOKED:
            sys.addaudithook(_hook)
            _HOOKED.append(True)
        _ACTIVE.append(self.found.setdefault(component, {}))
        try:
            return function(*args, **kwargs)
        finally:
            _ACTIVE.pop()


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if not _ACTIVE or event not in _WORDS:
        return
    text = _WORDS[event](*args)
    if text is not None and not _imports_a_library(sys._getframe(1)):
        _ACTIVE[-1][text] = None


def _imports_a_library(frame: FrameType | None) -> bool:
    """Return true where a library that is being imported opens, and not the code that is watched."""
    while frame is not None and frame.f_code is not OpenedFiles.watch.__code__:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(_LIBRARIES):
            return True
        frame = frame.f_back
    return False


def _file(path: object, mode: object = None, flags: object = 0) -> str | None:
    """A file that holds no code and belongs to no device or system; None for others, and for what was open before."""
    if not isinstance(path, str | bytes | os.PathLike):
        return None
    name = os.fsdecode(path)
    if name.endswith(_CODE) or "__pycache__" in name or os.path.abspath(name).startswith(_OF_THE_SYSTEM):
        return None
    writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
    return f"writes the file {name}" if writes else f"reads the file {name}"


def _place(address: object) -> str:
    return ":".join(map(str, address[:2])) if isinstance(address, tuple) else str(address)


_WORDS: dict[str, Callable[..., str | None]] = {
    "open": _file,
    "sqlite3.connect": lambda database, *_: f"opens the database {database}",
    "socket.connect": lambda _, address: f"connects to {_place(address)}",
    "socket.sendto": lambda _, address: f"sends to {_place(address)}",
    "urllib.Request": lambda address, *_: f"asks for {address}",
    "subprocess.Popen": lambda program, *_: f"runs {program}",
    "os.system": lambda command, *_: f"runs {command!s}",
    "os.exec": lambda program, *_: f"runs {program!s}",
    "os.posix_spawn": lambda program, *_: f"runs {program!s}",
    "os.spawn": lambda _, program, *__: f"runs {program!s}",
}
"""By event of the interpreter, its arguments in words."""
