"""A PostgreSQL server for tests of storages, and searches without pictures."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(map(str, FOLDERS)))


def _other_user() -> str | None:
    """PostgreSQL refuses to run as root: somebody else."""
    if os.getuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


@pytest.fixture
def no_study_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports of searches with all their numbers but no pictures, which take seconds."""
    monkeypatch.setattr("finflow.experiments.tuning.study_report.draw_study_figures", lambda *given: [])


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a database on a server of the test's own."""
    pytest.importorskip("psycopg")
    initdb, server = _program("initdb"), _program("postgres")
    if initdb is None or server is None:
        pytest.skip("no PostgreSQL here: Debian's package postgresql brings it")
    with tempfile.TemporaryDirectory(prefix="finflow-pg-", ignore_cleanup_errors=True) as folder:
        user = _other_user()
        if user is not None:
            shutil.chown(folder, user)
        how = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        data = f"{folder}/data"
        options = ["-U", "finflow", "-A", "trust", "--locale=C", "-E", "UTF8", "--no-sync"]
        made = subprocess.run([initdb, "-D", data, *options], check=False, **how)
        if made.returncode:
            pytest.skip(f"initdb failed: {made.stderr[-200:]}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-k", folder]
        process = subprocess.Popen([server, "-D", data, "-p", str(port), *options], **how)
        try:
            _wait(port, process)
            yield f"postgresql+psycopg://finflow@127.0.0.1:{port}/postgres"
        finally:
            process.send_signal(signal.SIGINT)  # fast: it waits for no client
            process.wait(30)


def _wait(port: int, process: subprocess.Popen[str]) -> None:
    import psycopg

    for _ in range(100):
        try:
            psycopg.connect(f"postgresql://finflow@127.0.0.1:{port}/postgres", connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if process.poll() is not None:
                pytest.skip("the PostgreSQL server did not start")
            time.sleep(0.1)
    pytest.skip("the PostgreSQL server did not answer")
