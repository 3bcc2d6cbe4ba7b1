"""A process that trades on paper, ended by SIGKILL: no evening twice, none lost, the log whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from finflow.cli import main
from tests.trading.conftest import Trained

ROOT = Path(__file__).parents[2]
LOOKS = 3000  # at the log, in hundredths of a second, until the process is given up


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_a_killed_paper_account_goes_on_as_if_it_had_never_stopped(trained: Trained) -> None:
    options = [*trained.options("paper"), "--from", "2011-11-10", "--until", "2012-01-31"]
    log = trained.log
    assert main(options) == 0
    whole = log.read_bytes()
    log.unlink()
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, str(ROOT / "main.py"), *options], cwd=ROOT, env=environ) as process:
        for _ in range(LOOKS):
            if process.poll() is not None or (log.exists() and log.read_bytes().count(b"\n") >= 10):
                break
            time.sleep(0.01)
        assert process.poll() is None
        process.kill()
    assert whole.startswith(log.read_bytes())
    assert main(options) == 0
    assert log.read_bytes() == whole
