"""Every final evaluation leaves a reading, and what was tried before deflates."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from finflow.config import EnvConfig, EvaluationConfig, MarketConfig
from finflow.errors import EvidenceError
from finflow.evaluation.report.results import ReportData
from finflow.evaluation.statistics.readings_ledger import readings_of
from finflow.strategies.classical import NAMED, PatientEqualWeight, named_strategy
from finflow.strategies.optimal_policy import optimum_of
from finflow.strategies.rolling_rules import Momentum
from finflow.strategies.strategy import Information, equal_weights
from finflow.training.data.training_data import prepare
from finflow.training.judging import evaluations, held_out
from finflow.training.judging.reading_count import strategy_identity
from tests.training.whole_trainings import Make

pytestmark = pytest.mark.usefixtures("no_sections")


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
