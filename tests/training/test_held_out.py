"""The evaluation of a made-up market tells how near to its best policy everything comes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pandas as pd
import pytest

from finflow.cli.output import summary_rows
from finflow.config import Config, load_config
from finflow.errors import ConfigError
from finflow.evaluation.page import build_page
from finflow.evaluation.results import ReportData, as_json, judge
from finflow.training import held_out

SYNTHETIC = {
    "market.source": "synthetic",
    "market.synthetic.kind": "mean-reverting",
    "market.synthetic.bars": 6_000,
    "market.train_end": "2015-12-31",
    "market.validation_end": "2016-12-31",
    "market.test_end": "2018-12-31",
    "evaluation.bootstrap_samples": 100,
}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[ReportData]:
    """What reports would be made from; without the figures, which take seconds."""
    made: list[ReportData] = []

    def keep(folder: Path, data: ReportData) -> Path:
        made.append(data)
        return folder / "report.html"

    monkeypatch.setattr(held_out, "write_report", keep)
    return made


def settings(folder: Path, **changes: object) -> Config:
    return load_config(None, {**SYNTHETIC, "output.logs_dir": folder, **changes}, {})


def test_the_report_of_a_made_up_market_scores_every_strategy(tmp_path: Path, reports: list[ReportData]) -> None:
    outcome = held_out.backtest_strategies(settings(tmp_path), ["momentum"])
    (data,) = reports
    assert data.optimum is not None
    results = judge(data)
    content = json.loads(as_json(data, results))["optimum"]
    assert set(content["scores"]) == set(results.metrics) == set(outcome.summary)
    assert content["scores"]["optimal"]["score"] == 1.0
    assert content["scores"]["equal-weight"]["score"] == 0.0
    assert content["scores"]["momentum"]["score"] < 0.0
    assert content["scores"]["momentum"]["score"] == outcome.summary["momentum"]["optimality"]
    assert content["parameters"]["persistence"] == 0.9
    text = build_page(data, results, [], [], [])
    for said in ("Nearness to the optimum", "persistence: 0.9", "100% A", "dynamic programming on a grid"):
        assert said in text
    heading, *rows = summary_rows(outcome.summary)
    assert heading[-1] == "of optimum"
    assert dict((row[0], row[-1]) for row in rows)["optimal"] == "1.000"


def test_the_optimal_policy_can_be_backtested_by_name(tmp_path: Path, reports: list[ReportData]) -> None:
    outcome = held_out.backtest_strategies(settings(tmp_path), ["optimal"])
    assert list(outcome.summary).count("optimal") == 1
    assert next(iter(outcome.summary)) == reports[0].agent.name == "optimal"
    with pytest.raises(ConfigError, match=r"market\.source = embedded has no known optimum"):
        held_out.backtest_strategies(load_config(None, {}, {}), ["optimal"])


def test_a_report_says_why_there_is_no_score(tmp_path: Path, reports: list[ReportData]) -> None:
    outcome = held_out.backtest_strategies(settings(tmp_path, **{"env.execution_lag": 2}), ["equal-weight"])
    assert reports[0].optimum is None
    assert any("no score against the optimum: env.execution_lag = 2" in note for note in reports[0].notes)
    assert "optimum" not in json.loads(as_json(reports[0], judge(reports[0])))
    assert "Nearness to the optimum" not in build_page(reports[0], judge(reports[0]), [], [], [])
    assert "optimality" not in outcome.summary["equal-weight"]


def test_a_report_says_what_trading_cost_there(
    tmp_path: Path, tiny: Callable[..., Config], reports: list[ReportData]
) -> None:
    """A reader must not take a ledger with impact and a limit for the default one."""
    close = pd.read_csv(tmp_path / "prices.csv", index_col="Date")
    (tmp_path / "fields").mkdir()
    close.to_csv(tmp_path / "fields" / "close.csv")
    (close * 0.0 + 1e6).to_csv(tmp_path / "fields" / "volume.csv")
    held_out.backtest_strategies(tiny(), ["momentum"])
    sized = tiny(market__path=str(tmp_path / "fields"), env__costs__impact=0.5, env__max_weight=0.4)
    held_out.backtest_strategies(sized, ["momentum"])
    plain, told = (cast("dict[str, str]", data.facts["execution"]) for data in reports)
    assert {name: told[name] for name in told.keys() - plain.keys()} == {
        "costs.impact": "0.5",
        "initial capital": "1,000,000",
        "max_weight": "0.4",
    }
    assert ["move no market" in " ".join(data.notes) for data in reports] == [True, False]
    assert "later prices stay as they were" in " ".join(reports[1].notes)
