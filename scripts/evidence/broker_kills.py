"""Evidence about orders: a process that trades an account at a broker, ended by SIGKILL again and again.

`--mode paper --follow` runs as a process of its own, with a fake of Alpaca on this machine as its broker. Once an
evening is on file, the fake's market moves on: orders fill at the next close, and the bar is published. One process
lives through all days undisturbed. Another account has the same days, and its process is killed at drawn moments and
started again. What counts is the log, byte for byte, and the orders that the broker has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from finflow.errors import EvidenceError
from finflow.files import write_atomically
from finflow.line_file import HashedLog
from finflow.trading.account_state import STATE
from finflow.trading.alpaca_broker import KEY, SECRET
from finflow.trading.live_market import TRADING
from scripts.evidence import fake_alpaca
from scripts.evidence.fake_alpaca import BEFORE, FakeAlpaca, serving

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("request", "line", "clock")
REQUESTS = 16
"""Requests of an evening, about: the drawn one is among the first of a process."""
EVENING = 1.0
"""Seconds of an evening, about: the clock ends a process so long after its first request, at most."""
PATIENCE = 120.0
"""Seconds without a new line, after which the measurement is given up."""
_LOOK = 0.002
IMPATIENT = (
    "import sys; from finflow.trading import paper_trading; paper_trading.POLL = 0.05; "
    "from finflow.cli import main; sys.exit(main())"
)
"""The program that follows the account: the command line, with less time between two checks."""


@dataclass(frozen=True)
class Market:
    """An agent, and the days that it lives through.

    Attributes
    ----------
    run : Path
        Its run folder; what it trades is kept below.
    prices : DataFrame
        Closes of all days, by date.
    days : tuple of str
        Evenings.
    """

    run: Path
    prices: pd.DataFrame
    days: tuple[str, ...]

    @property
    def log(self) -> Path:
        """The log of its decisions."""
        return self.run / TRADING / STATE

    @property
    def published(self) -> Path:
        """The file of prices that the process reads."""
        return self.run.parent / f"{self.run.name}-prices.csv"

    def show(self, day: str, account: FakeAlpaca) -> None:
        """Fill the orders before a day at its close, then publish its bar."""
        closes: dict[Any, Any] = self.prices.loc[day].to_dict()
        account.trade(day, closes)
        write_atomically(self.published, self.prices.loc[:day].to_csv())

    def start(self, account: FakeAlpaca) -> subprocess.Popen[bytes]:
        """Start the process that follows the account."""
        keys = {
            **{"market.path": self.published, "trading.broker": "alpaca", "trading.alpaca.address": account.address}
        }
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        options = ["--mode", "paper", "--resume", str(self.run), "--from", self.days[0], "--follow", "--i-know", *sets]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        environ |= {KEY: fake_alpaca.KEY, SECRET: fake_alpaca.SECRET}
        output = (self.run.parent / f"{self.run.name}-output.txt").open("wb")
        with output:
            return subprocess.Popen(
                [sys.executable, "-c", IMPATIENT, *options], cwd=ROOT, env=environ, stdout=output, stderr=output
            )


@dataclass(frozen=True)
class Lived:
    """An account after all of its days.

    Attributes
    ----------
    orders : dict
        Orders that the broker has, by client id, without the broker's own numbers for them.
    duplicates : int
        Orders that were sent although the broker had them, and that it refused.
    """

    log: bytes
    orders: dict[str, Any]
    money: float
    duplicates: int
    kills: list[dict[str, Any]]
    seconds: float


def live(market: Market, kills: int = 0, seed: int = 0) -> Lived:
    """Live through all days, with so many kills on the way.

    Raises
    ------
    EvidenceError
        If the process ends by itself, nothing happens any more, or the days are over before the kills.
    """
    rng, begun = np.random.default_rng(seed), time.monotonic()
    found: list[dict[str, Any]] = []
    with serving(FakeAlpaca(day=market.days[0])) as account:
        market.show(market.days[0], account)
        day = 0
        while day < len(market.days):
            process = market.start(account)
            plan = _Plan.draw(len(found), rng) if len(found) < kills else None
            ending = None if plan is None else plan.arm(process, account, market)
            try:
                day = _follow(market, account, process, day)
            finally:
                process.kill()
                process.wait()
                account.watch = None
                if ending is not None:
                    ending.join()
            if plan is not None and day < len(market.days):
                found.append({**vars(plan), **_state(market, account, market.days[day])})
        duplicates = sum(request.startswith("POST") for request in account.requests) - len(account.orders)
        orders = {name: {k: v for k, v in one.items() if k != "id"} for name, one in account.orders.items()}
        if len(found) < kills:
            raise EvidenceError(f"{len(market.days)} days are over after {len(found)} of {kills} kills")
        return Lived(
            market.log.read_bytes(), orders, account.money, duplicates, found, round(time.monotonic() - begun, 1)
        )


def _follow(market: Market, account: FakeAlpaca, process: subprocess.Popen[bytes], day: int) -> int:
    """Move the market on as long as the process lives; the day that it has come to."""
    last = time.monotonic()
    while day < len(market.days):
        if _evenings(market.log).endswith(market.days[day]):
            day, last = day + 1, time.monotonic()
            if day < len(market.days):
                market.show(market.days[day], account)
        elif process.poll() is not None:
            if process.returncode != -9:
                said = (market.run.parent / f"{market.run.name}-output.txt").read_text("utf-8").strip()
                raise EvidenceError(f"the process ended with {process.returncode}: {said.splitlines()[-1:]}")
            break
        elif time.monotonic() - last > PATIENCE:
            raise EvidenceError(f"nothing has happened for {PATIENCE:.0f} s on {market.days[day]}")
        time.sleep(_LOOK)
    return day


def _evenings(log: Path) -> str:
    """Date of the last evening on file; empty before the first, and while a line is written."""
    with suppress(OSError):
        content = log.read_bytes()
        last = content[content.rfind(b"\n", 0, -1) + 1 :]
        if last.endswith(b"\n") and b'"kind":"paper"' in last:
            return last.split(b'"date":"', 1)[1][:10].decode()
    return ""


@dataclass
class _Plan:
    """Moment of a kill.

    Attributes
    ----------
    kind : str
        At a request of the process, at a line of the log, or by the clock.
    at : int
        Of the requests of the process (from 1 on), or of the lines that it writes.
    when : str
        Before the broker has carried out the request, or after it and before the answer.
    delay : float
        Seconds from the line, or from the first request.
    """

    kind: str
    at: int
    when: str
    delay: float

    @classmethod
    def draw(cls, number: int, rng: np.random.Generator) -> _Plan:
        """The moment of a kill, of the three kinds in turn."""
        kind = KINDS[number % len(KINDS)]
        most, longest = {"request": (REQUESTS, 0.0), "line": (3, 0.02), "clock": (1, EVENING)}[kind]
        at, when = int(rng.integers(1, most + 1)), ("before", "after")[int(rng.integers(2))]
        return cls(kind, at, when, round(float(rng.uniform(0.0, longest)), 4))

    def arm(
        self, process: subprocess.Popen[bytes], account: FakeAlpaca, market: Market
    ) -> threading.Thread | threading.Timer | None:
        """Have a process killed; the thread that does it, where there is one."""
        if self.kind == "line":
            size = market.log.stat().st_size if market.log.exists() else 0
            thread = threading.Thread(target=self._at_line, args=(process, market.log, size), daemon=True)
            thread.start()
            return thread
        seen = [0]

        def watch(when: str) -> None:
            seen[0] += when == BEFORE
            if self.kind == "clock" and seen[0] == 1 and when == BEFORE:
                threading.Timer(self.delay, process.kill).start()
            elif self.kind == "request" and (seen[0], when) == (self.at, self.when):
                process.kill()
                process.wait()

        account.watch = watch
        return None

    def _at_line(self, process: subprocess.Popen[bytes], log: Path, size: int) -> None:
        while process.poll() is None:
            with suppress(OSError):
                if log.read_bytes()[size:].count(b"\n") >= self.at:
                    break
            time.sleep(_LOOK / 2)
        time.sleep(self.delay)
        process.kill()


def _state(market: Market, account: FakeAlpaca, day: str) -> dict[str, Any]:
    """State of the evening that a kill interrupted."""
    content = market.log.read_bytes() if market.log.exists() else b""
    entries = HashedLog.read(market.log).entries
    decided = [one for one in entries if one["kind"] == "decision" and one["date"] == day]
    placed = sum(name.startswith(day) for name in account.orders)
    return {
        "day": day,
        "decided": bool(decided),
        "orders": len(decided[-1]["orders"]) if decided else 0,
        "placed": placed,
        "noted": any(one["kind"] == "placed" and one["date"] == day for one in entries),
        "half a line": bool(content) and not content.endswith(b"\n"),
    }


def compare(whole: Lived, killed: Lived) -> dict[str, Any]:
    """Differences of an account that was killed from one that was not."""
    return {
        "kills": killed.kills,
        "days": sum(b'"kind":"paper"' in line for line in whole.log.splitlines()),
        "lines": whole.log.count(b"\n"),
        "orders": len(whole.orders),
        "lost": len(set(whole.orders) - set(killed.orders)),
        "added": len(set(killed.orders) - set(whole.orders)),
        "changed": sum(killed.orders.get(name) != one for name, one in whole.orders.items()),
        "money": killed.money - whole.money,
        "identical": killed.log == whole.log,
        "duplicates": killed.duplicates,
        "seconds": {"undisturbed": whole.seconds, "killed": killed.seconds},
    }
