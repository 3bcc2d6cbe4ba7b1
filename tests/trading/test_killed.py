"""Processes that trade on paper and at a broker, ended by SIGKILL: no evening twice, none lost, the log whole."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from finflow.cli import main
from scripts.evidence.broker_kills import Market, compare, live
from tests.trading.conftest import Trained

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
ROOT = Path(__file__).parents[2]
LOOKS = 3000  # at the log, in hundredths of a second, until the process is given up


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


def test_kills_trade_nothing_twice_and_lose_nothing(trained: Trained) -> None:
    """A small version of the evidence: a process that trades at a broker, killed again and again."""
    prices = pd.read_csv(trained.prices, index_col=0)
    days = tuple(day for day in prices.index if day > "2011-12-01")[:6]
    run = trained.run.parent / "killed"
    shutil.copytree(trained.run, run)
    whole = live(Market(trained.run, prices, days))
    killed = live(Market(run, prices, days), kills=3, seed=1)
    found = compare(whole, killed)
    assert len(found["kills"]) == 3
    assert found["orders"] > len(days)
    assert (found["lost"], found["added"], found["changed"], found["money"]) == (0, 0, 0, 0.0)
    assert found["identical"], found
