"""What a user's code opens is reported; code, what libraries read while imported, and what others open are not."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from finflow.training.audit import audited_foreknowledge as opened_files
from finflow.training.audit.audited_foreknowledge import OpenedFiles


def seen(function: Callable[[], object]) -> list[str]:
    """What a call opens."""
    opened = OpenedFiles()
    opened.watch("it", function)
    return list(opened.found["it"])


def test_files_are_reported_as_they_were_named_each_once(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    assert seen(lambda: path.write_text("x")) == [f"writes the file {path}"]
    assert seen(lambda: [path.read_text(), path.read_bytes(), os.close(os.open(path, os.O_RDONLY))]) == [
        f"reads the file {path}"
    ]
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert seen(lambda: np.load(tmp_path / "a.npy", mmap_mode="r")) == [f"reads the file {tmp_path / 'a.npy'}"]


def test_what_is_opened_after_a_watched_call_is_nobodys_even_where_it_raised(tmp_path: Path) -> None:
    opened = OpenedFiles()
    opened.watch("it", lambda: None)
    with pytest.raises(ZeroDivisionError):
        opened.watch("it", lambda: 1 / 0)
    (tmp_path / "a.txt").write_text("x")
    assert opened.found == {"it": {}}


def test_modules_are_code_but_what_a_users_module_reads_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data.txt").write_text("x")
    (tmp_path / "reads_at_import.py").write_text(f"DATA = open({str(tmp_path / 'data.txt')!r}).read()\n")
    (tmp_path / "plain_module.py").write_text("import json\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert seen(lambda: importlib.import_module("plain_module")) == []
    assert seen(lambda: importlib.import_module("reads_at_import")) == [f"reads the file {tmp_path / 'data.txt'}"]
    for name in ("plain_module", "reads_at_import"):
        sys.modules.pop(name)


def test_what_an_installed_library_reads_while_it_is_imported_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings.txt").write_text("x")
    read = f"open({str(tmp_path / 'settings.txt')!r}).read()"
    source = f"SETTINGS = {read}\n\n\ndef later():\n    return {read}\n"
    (tmp_path / "installed_library.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(opened_files, "_LIBRARIES", (str(tmp_path),))
    assert seen(lambda: importlib.import_module("installed_library")) == []
    library = sys.modules.pop("installed_library")
    assert seen(library.later) == [f"reads the file {tmp_path / 'settings.txt'}"]  # a data set that it ships


def test_connections_and_programs_are_reported() -> None:
    def refused(call: Callable[[], object]) -> None:
        with contextlib.suppress(OSError):
            call()

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        host = f"127.0.0.1:{taken.getsockname()[1]}"
        connects = seen(lambda: refused(lambda: socket.create_connection(taken.getsockname(), timeout=0.1)))
        asks = seen(lambda: refused(lambda: urllib.request.urlopen(f"http://{host}/prices", timeout=0.1)))
    assert connects == [f"connects to {host}"]
    assert asks[0] == f"asks for http://{host}/prices"
    assert f"runs {sys.executable}" in seen(lambda: subprocess.run([sys.executable, "-c", ""], check=True))
