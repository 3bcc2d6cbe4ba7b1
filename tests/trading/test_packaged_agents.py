"""The agent that comes with finflow: it decides at once, on other prices too, and nothing is written beside it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from finflow.agent.networks.decision import describe_holding
from finflow.cli import main
from finflow.errors import CheckpointError
from finflow.trading.live_market import load_trading_agents, run_data, run_verdict
from finflow.training.checkpoints.packaged_agents import AGENTS, package_agent, packaged_agent
from tests.commands import refusal
from tests.trading.conftest import Trained


def contents() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in AGENTS.rglob("*") if path.is_file()}


def other_prices(path: Path) -> Path:
    """Four tickers of other names until today, with the fields that the agent's own prices lack."""
    rng, dates = np.random.default_rng(0), pd.bdate_range("2003-01-01", dt.date.today())
    parts = []
    for ticker in ("AAA", "BBB", "CCC", "DDD"):
        close = 50.0 * np.exp(rng.normal(0.0003, 0.012, len(dates)).cumsum())
        fields = {"open": close, "high": 1.01 * close, "low": 0.99 * close, "close": close, "volume": 1e6 + 0.0 * close}
        parts.append(pd.DataFrame({"date": dates, **fields, "tic": ticker}))
    pd.concat(parts).sort_values(["date", "tic"]).to_csv(path, index=False)
    return path


def test_it_decides_as_of_the_last_embedded_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents()
    assert main(["--mode", "decide", "--agent", "sp500", "--set", f"output.logs_dir={tmp_path}"]) == 0
    shown = capsys.readouterr().out
    age = (dt.date.today() - dt.date(2022, 12, 28)).days
    assert "Decision of 2022-12-28" in shown
    assert f"judged until 2022-12-28; the newest price is {age} days old\n" in shown
    assert "the evaluation found this agent worse than equal weight" in shown
    assert (tmp_path / "sp500" / "trading" / "2022-12-28" / "orders.csv").is_file()
    assert contents() == before
    assert sum(map(len, before.values())) < 2_000_000


def test_it_decides_on_other_tickers_with_other_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = other_prices(tmp_path / "prices.csv")
    keys = {"market.source": "csv", "market.path": prices, "output.logs_dir": tmp_path}
    chosen = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
    assert main(["--mode", "decide", "--agent", "sp500", "--dry-run", *chosen]) == 0
    shown = capsys.readouterr().out
    assert "on these prices it was never judged" in shown
    assert all(f"\n  {ticker} " in shown for ticker in ("AAA", "BBB", "CCC", "DDD"))


def test_it_explains_a_date_of_its_test_window(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mode", "explain", "--agent", "sp500", "--date", "2020-03-16"]) == 0
    assert "2020-03-16" in capsys.readouterr().out


def test_an_agent_made_from_a_run_is_the_same_agent(trained_once: Trained, tmp_path: Path) -> None:
    package_agent(trained_once.run, tmp_path / "mine")
    own, packaged = (load_trading_agents([path], {}) for path in (trained_once.run, tmp_path / "mine"))
    assert packaged.identity == own.identity
    assert run_verdict(packaged) == run_verdict(own)
    assert run_data(packaged) == run_data(own)
    assert describe_holding(packaged.policies[0].blend) == describe_holding(own.policies[0].blend)
    names = packaged.alone.tensors
    assert not any("optimiser" in name or "critic" in name or name.startswith("learners") for name in names)


def test_a_run_without_a_report_makes_no_agent(trained_once: Trained, tmp_path: Path) -> None:
    models = trained_once.run / "models"
    with pytest.raises(CheckpointError, match="give a run that was evaluated"):
        package_agent(models, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_mistakes_are_answered_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "finflow has sp500; others follow --resume" in refusal(capsys, "--mode", "decide", "--agent", "sp501")
    assert "go on with --i-know" in refusal(capsys, "--mode", "decide", "--agent", "sp500", "--broker", "paper")
    assert "leave one of them out" in refusal(capsys, "--mode", "decide", "--agent", "sp500", "--resume", "logs/run")
    assert "another configuration or another version" in refusal(
        capsys, "--mode", "train", "--resume", str(packaged_agent("sp500"))
    )
