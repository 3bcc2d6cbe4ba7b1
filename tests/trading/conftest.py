"""One tiny agent for all tests of the room, in a market whose file a test may replace."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from finflow.cli import main
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.page.whole_page import Page
from finflow.line_file import HashedLog
from finflow.trading import decide_mode, decision_making, live_market, paper_trading
from finflow.trading.alpaca_broker import KEY, SECRET
from finflow.trading.decide_mode import Request
from finflow.trading.decision_making import Reasoning
from finflow.trading.live_market import load_trading_agents
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence import fake_alpaca
from scripts.evidence.fake_alpaca import FakeAlpaca, serving
from tests.short_trainings import SHORT, config_in, write_market

KEYS: dict[str, object] = {
    **SHORT,
    "market.source": "csv",
    "market.train_end": "2011-09-30",
    "market.validation_end": "2011-10-31",
    "market.test_end": "2011-12-30",
    "evaluation.sweeps": False,
}
DAY, NEXT = "2011-12-14", "2011-12-15"
#: Keys of the fake of Alpaca.
ENVIRON = {KEY: fake_alpaca.KEY, SECRET: fake_alpaca.SECRET}


@dataclass(frozen=True)
class Trained:
    """A run folder, and the prices that it was trained on, which go on beyond its test window."""

    run: Path
    prices: Path

    def options(self, mode: str, **keys: object) -> list[str]:
        """Options of a mode with this agent and its prices; keys in keyword form."""
        given = {"market.path": self.prices, **{name.replace("__", "."): value for name, value in keys.items()}}
        sets = [word for name, value in given.items() for word in ("--set", f"{name}={value}")]
        return ["--mode", mode, "--resume", str(self.run), *sets]

    def decide(self, *options: str) -> int:
        return main([*self.options("decide"), "--i-know", *options])

    def paper(self, *options: str) -> int:
        return main([*self.options("paper"), *options])

    @property
    def log(self) -> Path:
        return self.run / "trading" / "state.jsonl"

    def entries(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Lines of its log, all or those of a kind."""
        return [one for one in HashedLog.read(self.log).entries if kind in (None, one["kind"])]

    def decision(self, day: str) -> dict[str, Any]:
        return json.loads((self.run / "trading" / day / "decision.json").read_text("utf-8"))

    def evening(self, day: str, **keys: object) -> Any:
        """Decide at the paper broker, where the account begins with 20,000."""
        given = {"market.path": str(self.prices), "env.initial_capital": 20_000.0}
        given |= {name.replace("__", "."): value for name, value in keys.items()}
        date = dt.date.fromisoformat(day)
        return decide_mode.decide(Request((self.run,), given, date=date, accept_verdict=True, broker="paper")).decision

    def price_table(self) -> pd.DataFrame:
        return pd.read_csv(self.prices, index_col=0)

    def replayed(self, **keys: object) -> list[dict[str, Any]]:
        """Evenings of a paper account from November 10 on, which are those of the backtest over the same bars."""
        given = {name.replace("__", "."): value for name, value in keys.items()}
        agents = load_trading_agents([self.run], {"market.path": str(self.prices), **given})
        data = prepare(agents.config)
        window = range(data.panel.bars_until("2011-11-09"), data.split.test_end)
        run = run_backtests(data.held_out_process(), window, agents.strategies())[0]
        assert main([*self.options("paper", **keys), "--from", "2011-11-10", "--until", "2011-12-30"]) == 0
        lines = [line for line in self.entries() if line["filled"] is not None]
        np.testing.assert_allclose([one["simple_return"] for one in lines[1:]], run.returns, rtol=0.0, atol=1e-10)
        np.testing.assert_allclose([one["filled"] for one in lines[:-1]], run.weights, rtol=0.0, atol=1e-10)
        np.testing.assert_allclose([one["cost"] for one in lines[:-1]], run.costs, rtol=0.0, atol=1e-10)
        assert [one["date"] for one in lines[1:]] == [str(day) for day in run.dates]
        return lines


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    prices = write_market(folder / "prices.csv")
    trainer = FinFlowTrainer(config_in(folder, {**KEYS, "market.path": str(prices)}))
    trainer.train()
    return Trained(trainer.run_folder, prices)


def copy_of(trained: Trained, folder: Path) -> Trained:
    shutil.copytree(trained.run, folder / "run")
    return Trained(folder / "run", Path(shutil.copy(trained.prices, folder / "prices.csv")))


@pytest.fixture
def trained(trained_once: Trained, tmp_path: Path) -> Trained:
    """The agent in a folder of its own."""
    return copy_of(trained_once, tmp_path)


@pytest.fixture(scope="session")
def decided_once(trained_once: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The agent after its decision of `DAY` on 20,000 in cash, which nobody writes to."""
    trained = copy_of(trained_once, tmp_path_factory.mktemp("decided"))
    assert trained.decide("--date", DAY, "--cash", "20000") == 0
    return trained


@pytest.fixture
def decided(decided_once: Trained, tmp_path: Path) -> Trained:
    """The agent after its decision of `DAY`, in a folder of its own."""
    return copy_of(decided_once, tmp_path)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evenings without most of their time: agents, features, orders and reasons are computed once, and no page."""

    def once(function: Callable[..., Any], key: Callable[..., str]) -> Callable[..., Any]:
        found: dict[str, Any] = {}

        def computed(*given: Any) -> Any:
            if key(*given) not in found:
                found[key(*given)] = function(*given)
            return found[key(*given)]

        return computed

    agents = once(live_market.load_trading_agents, lambda *given: repr(given))
    market = once(live_market.market_until, lambda panel, _: str(panel.dates[-1]))
    for module in (decide_mode, paper_trading):
        monkeypatch.setattr(module, "load_trading_agents", agents)
        monkeypatch.setattr(module, "market_until", market)
    rounded = once(decision_making.round_orders, lambda account, wanted, *_: repr((account, wanted.tolist())))
    monkeypatch.setattr(decision_making, "round_orders", rounded)
    monkeypatch.setattr(Page, "html", lambda page: "")
    monkeypatch.setattr(Reasoning, "reasons", once(Reasoning.reasons, lambda one: str(one.market.panel.dates[-1])))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAlpaca]:
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)
    with serving(FakeAlpaca()) as account:
        yield account
