"""A small version of the evidence: a process that trades at a broker, killed again and again, and what it traded."""

from __future__ import annotations

import shutil
import signal

import pandas as pd
import pytest

from scripts.evidence.broker_kills import Market, compare, live
from tests.trading.conftest import Trained


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_kills_trade_nothing_twice_and_lose_nothing(trained: Trained) -> None:
    prices = pd.read_csv(trained.prices, index_col=0)
    days = tuple(day for day in prices.index if day > "2011-12-01")[:3]
    run = trained.run.parent / "killed"
    shutil.copytree(trained.run, run)
    whole = live(Market(trained.run, prices, days))
    killed = live(Market(run, prices, days), kills=2, seed=1)
    found = compare(whole, killed)
    assert len(found["kills"]) == 2
    assert found["orders"] > len(days)
    assert (found["lost"], found["added"], found["changed"], found["money"]) == (0, 0, 0, 0.0)
    assert found["identical"], found
