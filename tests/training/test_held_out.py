"""The evaluation on the test window: nearness to a known optimum, costs that were paid, readings that are counted."""

from __future__ import annotations

import datetime as dt
import io
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from finflow import cores
from finflow.arrays import FloatArray
from finflow.cli.output import summary_lines
from finflow.config import EnvConfig, EvaluationConfig, MarketConfig, config_hash, load_config
from finflow.errors import ConfigError, EvidenceError, FinflowError, refuse
from finflow.evaluation.analysis import sweeps
from finflow.evaluation.backtest import ComparisonContext
from finflow.evaluation.report.report_page import build_page
from finflow.evaluation.report.results import ReportData, compute_results
from finflow.evaluation.statistics.significance_tests import Tries, readings_of
from finflow.line_file import append_line
from finflow.strategies import kept_fits
from finflow.strategies.classical import (
    COMPARED,
    NAMED,
    EqualWeight,
    Momentum,
    Optimised,
    PatientEqualWeight,
    named_strategy,
)
from finflow.strategies.kept_fits import KeptFits
from finflow.strategies.optimal_policy import optimum_of
from finflow.strategies.strategy import Information, equal_weights
from finflow.training.audit.configuration_audit import mark_leaks
from finflow.training.audit.look_ahead import Finding
from finflow.training.data.training_data import prepare
from finflow.training.judging import evaluations, held_out
from finflow.training.judging.evaluations import strategy_identity
from tests.training.whole_trainings import Make

SYNTHETIC = {
    "market.source": "synthetic",
    "market.synthetic.kind": "mean-reverting",
    "market.synthetic.bars": 6_000,
    "market.train_end": "2015-12-31",
    "market.validation_end": "2016-12-31",
    "market.test_end": "2018-12-31",
    "evaluation.bootstrap_samples": 100,
}


@pytest.mark.usefixtures("no_sections")
def test_the_report_of_a_made_up_market_scores_every_strategy(
    tmp_path: Path, reports: list[ReportData], fits_schema: Callable[[Any], list[str]]
) -> None:
    """The optimal policy among them, by its name."""
    config = load_config(None, {**SYNTHETIC, "output.logs_dir": tmp_path}, {})
    outcome = evaluations.backtest_strategies(config, ["optimal", "momentum"])
    (data,) = reports
    assert list(outcome.summary).count("optimal") == 1
    assert next(iter(outcome.summary)) == data.agent.name == "optimal"
    assert data.optimum is not None
    results = compute_results(data)
    page = build_page(results)
    assert fits_schema(page.document) == []
    content = page.document["optimum"]
    assert set(content["scores"]) == set(results.numbers["strategies"]) == set(outcome.summary)
    assert content["scores"]["optimal"]["score"] == 1.0
    assert content["scores"]["equal-weight"]["score"] == 0.0
    assert content["scores"]["momentum"]["score"] < 0.0
    assert content["parameters"]["persistence"] == 0.9
    text = page.html()
    for said in ("Nearness to the optimum", "persistence: 0.9", "100% A", "dynamic programming on a grid"):
        assert said in text
    heading, best = (line for line in summary_lines(page.document) if "of optimum" in line or "optimal" in line)
    assert heading.endswith("of optimum")
    assert best.endswith("1.000")


@pytest.mark.usefixtures("no_sections")
def test_a_report_says_why_there_is_no_score(tmp_path: Path, reports: list[ReportData]) -> None:
    config = load_config(None, {**SYNTHETIC, "output.logs_dir": tmp_path, "env.execution_lag": 2}, {})
    evaluations.backtest_strategies(config, ["equal-weight"])
    assert reports[0].optimum is None
    assert any("no score against the optimum: env.execution_lag = 2" in note for note in reports[0].notes)
    page = build_page(compute_results(reports[0]))
    assert "optimum" not in page.document
    assert "Nearness to the optimum" not in page.html()


@pytest.mark.usefixtures("no_sections")
def test_a_report_says_what_trading_cost_there(tmp_path: Path, tiny: Make, reports: list[ReportData]) -> None:
    """A reader must not take a ledger with impact and a limit for the default one."""
    close = pd.read_csv(tmp_path / "prices.csv", index_col="Date")
    (tmp_path / "fields").mkdir()
    close.to_csv(tmp_path / "fields" / "close.csv")
    (close * 0.0 + 1e6).to_csv(tmp_path / "fields" / "volume.csv")
    evaluations.backtest_strategies(tiny(), ["momentum"])
    sized = tiny(market__path=str(tmp_path / "fields"), env__costs__impact=0.5, env__max_weight=0.4)
    evaluations.backtest_strategies(sized, ["momentum"])
    plain, told = (cast("dict[str, str]", data.facts["execution"]) for data in reports)
    assert {name: told[name] for name in told.keys() - plain.keys()} == {
        "costs.impact": "0.5",
        "initial capital": "1,000,000",
        "max_weight": "0.4",
    }
    assert ["have no market impact" in " ".join(data.notes) for data in reports] == [True, False]
    assert "later prices do not change" in " ".join(reports[1].notes)


USERS_RULE = """
import numpy as np

class Wavering:
    name = "wavering"
    def __init__(self):
        self.days = 0
    def decide(self, information):
        self.days += 1
        weights = np.zeros(len(information.portfolio))
        weights[self.days % 2] = 1.0
        return weights
"""


def test_a_backtest_has_everything_that_trading_needs_to_be_judged_by(
    tmp_path: Path,
    tiny: Make,
    reports: list[ReportData],
    monkeypatch: pytest.MonkeyPatch,
    read_page: Callable[[str], Any],
    numbers_hold: Callable[[Any, Any], int],
    fits_schema: Callable[[Any], list[str]],
) -> None:
    """Of a strategy of a user's own, which remembers, by its import path."""
    (tmp_path / "wavering_rule.py").write_text(USERS_RULE)
    monkeypatch.syspath_prepend(tmp_path)
    wavering = "wavering_rule:Wavering"
    own = ("own", dt.date(2011, 12, 1), dt.date(2012, 1, 13)), ("learned", dt.date(2010, 12, 1), dt.date(2011, 1, 31))
    monkeypatch.setattr(sweeps, "PERIODS", own)
    config = tiny(evaluation__tax__enabled=True, evaluation__rebalance_every=60)
    outcome = evaluations.backtest_strategies(config, [wavering, "equal-weight"])
    (data,) = reports
    assert [section.key for section in data.sections] == ["attribution", "tax", "sweeps", "stress", "ranking"]
    page = build_page(compute_results(data))
    content = page.document
    assert fits_schema(content) == []
    assert content["stress"]["own"]["sample"] == "out-of-sample"
    assert content["stress"]["learned"]["sample"] == "in-sample"
    assert content["sweeps"]["break_even"]["return_bps"] == 0.0
    free, dear = (content["sweeps"]["costs_bps"][key]["wavering"]["annual_cost"] for key in ("0", "50"))
    assert free == 0.0
    assert dear == pytest.approx(252 * 2 * 0.005, rel=0.02)  # all of it sold, and all bought, every day
    assert set(COMPARED) <= set(content["sweeps"]["lags"]["2"])
    after, before = (content["tax"]["strategies"]["wavering"][key] for key in ("after", "before"))
    assert after != before
    assert numbers_hold(read_page(page.html()), content) > 400

    traded = pd.read_parquet(io.BytesIO(data.files["trades.parquet"]))
    assert set(traded["strategy"]) == {"wavering", "equal-weight"}
    assert len(pd.read_parquet(io.BytesIO(data.files["holdings.parquet"]))) > len(data.agent.dates)

    manifest = json.loads((outcome.run_folder / "manifest.json").read_text("utf-8"))
    assert manifest["strategies"] == [wavering, "equal-weight"]
    assert manifest["configuration_sha256"] == config_hash(config)
    assert manifest["versions"]["skfolio"]
    assert len(manifest["data_sha256"]) == 64
    assert load_config(outcome.run_folder / "config.yaml", {}, {}) == config


def test_a_report_without_sweeps_runs_nothing_again(
    tmp_path: Path, tiny: Make, reports: list[ReportData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training ends with a report: where it has to be quick, evaluation.sweeps leaves out what takes long."""
    played: list[int] = []
    play = held_out.run_shared_backtests
    monkeypatch.setattr(held_out, "run_shared_backtests", lambda *given: (played.append(1), play(*given))[1])
    monkeypatch.setattr(ComparisonContext, "backtest", lambda *given, **named: pytest.fail("run again"))
    training_data = prepare(tiny())
    held_out.judge_held_out(training_data, {"equal-weight": EqualWeight}, "equal-weight", tmp_path, sweeps=False)
    assert played == [1]
    assert [section.key for section in reports[0].sections] == ["attribution", "ranking"]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.usefixtures("reports", "no_sections")
def test_a_second_report_on_the_same_prices_fits_nothing(
    count: int, tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says the same, whichever process made the fits; without a cache, everything is fitted again."""
    solved = {"minimum-variance", "inverse-volatility"}
    monkeypatch.setattr(held_out, "COMPARED", ("equal-weight", *solved))
    monkeypatch.setattr(kept_fits, "KeptFits", KeptFits)
    monkeypatch.setattr(cores, "available_cores", lambda: count)
    made, fit = tmp_path / "made", Optimised.fit

    def counted(self: Optimised, returns: FloatArray) -> FloatArray:
        append_line(made, f"{self.name} {os.getpid()}")
        return fit(self, returns)

    monkeypatch.setattr(Optimised, "fit", counted)

    def summary(**keys: object) -> dict[str, dict[str, float]]:
        made.write_text("")
        return evaluations.backtest_strategies(tiny(market__cache_dir=str(tmp_path), **keys), ["momentum"]).summary

    first = summary()
    names, processes = (set(words) for words in zip(*map(str.split, made.read_text().splitlines()), strict=True))
    assert names == solved
    assert (str(os.getpid()) in processes) == (count == 1)
    (file,) = (tmp_path / "fits").iterdir()
    kept = file.read_text().split("\n")
    assert len([line for line in kept if line]) == len(made.read_text().splitlines())
    assert summary() == first
    assert made.read_text() == ""
    assert [line for line in file.read_text().split("\n") if line] == [line for line in kept if line]
    assert summary(market__use_cache=False) == first
    assert {line.split()[0] for line in made.read_text().splitlines()} == solved


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["momentum", "momentum"], "names momentum twice"),
        (["optimal"], r"market\.source = embedded has no known optimum"),
    ],
)
def test_strategies_that_cannot_be_judged_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        evaluations.backtest_strategies(load_config(None, {}, {}), names)


@pytest.mark.usefixtures("no_sections")
def test_every_strategy_that_is_judged_counts_once(tiny: Make, tmp_path: Path, reports: list[ReportData]) -> None:
    ledger = tmp_path / "kept" / "readings.jsonl"
    make = partial(tiny, output__readings=str(ledger))
    for name in ("momentum", "buy-and-hold", "momentum"):
        evaluations.backtest_strategies(make(), [name])
    evaluations.backtest_strategies(make(env__commission_bps=40), ["momentum"])
    assert [data.tries.others for data in reports] == [0, 1, 1, 1]
    assert reports[0].patient.name == "equal-weight-patient"
    assert 0.0 < reports[0].patient.turnover[1:].sum() < reports[0].baseline.turnover[1:].sum()
    assert "equal-weight-patient" not in [run.name for run in reports[0].strategies]
    config = make(evaluation__rebalance_every=5, evaluation__configurations_tried=7)
    evaluations.backtest_strategies(config, ["momentum"])
    assert reports[-1].tries.others == 2
    assert reports[-1].tries.total == 9
    kept = readings_of(ledger, prepare(config).panel.sha256)
    assert [one.name for one in kept] == ["momentum", "buy-and-hold", "momentum", "momentum", "momentum"]
    active = reports[0].agent.returns - reports[0].baseline.returns
    assert kept[0].active_sharpe == pytest.approx(active.mean() / active.std(ddof=1))
    assert reports[1].tries.sharpes == (kept[0].active_sharpe,)
    assert kept[0].window == (str(reports[0].agent.dates[0]), str(reports[0].agent.dates[-1]))
    assert "equal-weight" in kept[0].compared


@pytest.mark.usefixtures("no_sections")
def test_a_failed_evaluation_stays_a_try_without_a_figure(
    tiny: Make, reports: list[ReportData], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny()
    with monkeypatch.context() as patch:
        patch.setattr(held_out, "tables_of", lambda *_: refuse(True, "weights that are not finite"))
        with pytest.raises(FinflowError, match="not finite"):
            evaluations.backtest_strategies(config, ["momentum"])
    evaluations.backtest_strategies(config, ["buy-and-hold"])
    assert reports[-1].tries == Tries(configurations=1, others=1)


@pytest.mark.usefixtures("no_sections")
def test_a_leak_that_an_audit_finds_is_named_in_later_reports(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from finflow.strategies.strategy import equal_weights\n"
        "class Rule:\n    name = 'mine'\n    def decide(self, seen):\n        return equal_weights(seen.listed)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny()
    evaluations.backtest_strategies(config, ["mine:Rule"])
    day = np.datetime64("2020-01-06")
    found = [Finding("strategy mine:Rule", "replaced", (day,), 1, "LEAK", 0.3, "decision of 2020-01-06")]
    (line,) = mark_leaks(config, found, ["mine:Rule"], None)
    assert line.startswith("mine:Rule is marked as a leak in ")
    outcome = evaluations.backtest_strategies(config, ["momentum"])
    page = outcome.report.read_text("utf-8")
    assert "since an audit found a leak: mine:Rule (decision of 2020-01-06)" in page


@pytest.mark.usefixtures("no_sections")
def test_a_damaged_ledger_stops_the_evaluation_before_it_reads(
    tiny: Make, reports: list[ReportData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies with the runs unless named."""
    config = tiny()
    ledger = config.output.logs_dir / "readings.jsonl"
    evaluations.backtest_strategies(config, ["momentum"])
    assert json.loads(ledger.read_text())["panel"] == prepare(config).panel.sha256
    ledger.write_text("nonsense\n")
    monkeypatch.setattr(held_out, "run_shared_backtests", lambda *_: pytest.fail("the window was read"))
    with pytest.raises(EvidenceError, match=r"line 1 of the ledger of test readings .* is damaged"):
        evaluations.backtest_strategies(config, ["momentum"])
    assert ledger.read_text() == "nonsense\n"


def test_a_rule_is_known_by_its_settings_and_a_users_own_by_its_source() -> None:
    class Mine:
        name = "momentum"

        def decide(self, information: Information) -> np.ndarray:
            return equal_weights(information.listed)

    identities = {strategy_identity(one) for one in (Momentum(21), Momentum(5), Mine())}
    assert len(identities) == 3
    assert strategy_identity(Momentum(21)) in identities


def test_moving_a_strategys_file_leaves_its_identity() -> None:
    """Ledgers written before finflow's strategies lay in the files of today know them by these hashes."""
    known = json.loads((Path(__file__).parent / "fixtures" / "strategy_identities.json").read_text())
    own = {name: named_strategy(name, EvaluationConfig()) for name in NAMED}
    own["equal-weight-patient"] = PatientEqualWeight()
    own["optimal"] = optimum_of(MarketConfig(source="synthetic"), EnvConfig()).policy
    assert {name: strategy_identity(one) for name, one in own.items()} == known
