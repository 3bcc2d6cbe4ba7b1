"""`--mode retrain`: folds that neither agent has seen, a rule with an error rate, and an old run left as it is."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from finflow.cli import main
from finflow.config import ProtocolConfig
from finflow.errors import MarketError
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.experiments.jobs import independent_trainings
from finflow.experiments.jobs.retrain_results import NEW, OLD, ReplacementRule, measure_lead, retrain_schema
from finflow.experiments.jobs.retraining import KnownBars, prepare_retraining, retrain_folds
from finflow.training.checkpoints.checkpoint_reader import configuration_of
from tests.commands import refusal
from tests.conftest import Page, check_numbers
from tests.evaluation.made_up import returns_of
from tests.short_trainings import SHORT, config_in, market_prices
from tests.training.whole_trainings import train_through

KEYS: dict[str, object] = {
    **SHORT,
    "market.source": "csv",
    "market.train_end": "2010-12-31",
    "market.validation_end": "2011-03-31",
    "evaluation.block_length": 5,
    "trading.retrain.folds": 2,
}
DRIFTS = np.array([0.0015, 0.0015, -0.0015, -0.0015])
#: What a training finds an edge with in seconds: calm stocks rise and wild ones fall, or the other way round.
PLANTED: dict[str, object] = {
    "market.source": "csv",
    "features.filters": "none",
    "features.regimes": False,
    "env.commission_bps": 0.0,
    "env.slippage_bps": 0.0,
    "env.episode_length": 40,
    "bcell.hidden_dim": 32,
    "bcell.expansion": 8,
    "bcell.actor_lr": 1e-2,
    "out_of_fold.blocks": 3,
    "out_of_fold.looks": 1,
    "train.n_envs": 16,
    "train.online_batch_size": 128,
    "train.online_episodes": 140,
    "train.offline_episodes": 60,
    "train.offline_training_epochs": 1,
    "offline.evaluation_updates": 0,
    "objectives.sharpe_beta": 0.0,
    "objectives.lambda_turn": 0.0,
    "objectives.lambda_cvar": 0.0,
    "evaluation.sweeps": False,
    "trading.retrain.window": 400,
    "trading.retrain.folds": 1,
    "evaluation.protocol.first_share": 0.7,  # all of the window lies after the change
}
SEEN, TRAINED, BARS = 1000, 850, 1700


def trained_on(folder: Path, table: pd.DataFrame, keys: dict[str, object]) -> Path:
    """Run folder of an agent, whose prices may go on in another file."""
    table.to_csv(folder / "prices.csv")
    return train_through(config_in(folder, {**keys, "market.path": str(folder / "prices.csv")})).run_folder


@pytest.fixture(scope="module")
def old_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    return trained_on(folder, market_prices(), KEYS)


@pytest.fixture
def old(old_once: Path, tmp_path: Path) -> Path:
    """The agent of a second in a folder of its own."""
    return Path(shutil.copytree(old_once, tmp_path / "logs" / "old"))


def retrain(run: Path, *options: str) -> int:
    return main(["--mode", "retrain", "--resume", str(run), *options])


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def answer_of(run: Path) -> tuple[Path, dict[str, Any]]:
    """The one comparison of a run."""
    (path,) = (run.parent / "retrainings" / run.name).glob("*/retrain.json")
    return path.parent, json.loads(path.read_text("utf-8"))


def planted_prices(later: float) -> pd.DataFrame:
    """Prices under one law; ``later`` multiplies the drifts of the bars that the old agent has not seen."""
    rng = np.random.default_rng(1)
    law = np.where(np.arange(BARS) < SEEN, 1.0, later)[:, None]
    returns = law * DRIFTS + rng.normal(size=(BARS, 4)) * [0.008, 0.008, 0.016, 0.016]
    dates = pd.bdate_range("2005-01-03", periods=BARS, name="Date")
    return pd.DataFrame(100.0 * np.exp(np.cumsum(returns, axis=0)), dates, list("ABCD"))


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An agent that has learned the law of the bars that it has seen."""
    table = planted_prices(later=1.0)
    ends = {"market.train_end": TRAINED, "market.validation_end": SEEN}
    keys = {**PLANTED, **{name: str(table.index[end - 1].date()) for name, end in ends.items()}}
    return trained_on(tmp_path_factory.mktemp("planted"), table, keys)


@pytest.mark.learning
@pytest.mark.usefixtures("images")
def test_after_a_change_of_regime_the_new_agent_replaces_the_old_one(
    planted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(planted, tmp_path / "logs" / "changed"))
    planted_prices(later=-1.0).to_csv(tmp_path / "changed.csv")
    before = files_of(run)
    assert retrain(run, "--set", f"market.path={tmp_path / 'changed.csv'}") == 0
    assert files_of(run) == before
    folder, found = answer_of(run)
    assert found["answer"] == "replace"
    assert found["bounds"]["low"] > 0.5  # seen: 2.18 and 3.10, of leads of 3.34 and 4.23
    assert found["lead"] > 2.5  # 1.94 where the new agent learns nothing, and the old one loses
    new = folder / found["run"]
    assert f"--mode decide --resume {new}" in capsys.readouterr().out
    jsonschema.validate(found, retrain_schema())
    assert check_numbers(Page((folder / "retrain.html").read_text("utf-8")), found) > 15
    config = configuration_of(new)
    assert str(config.market.validation_end) > found["folds"][-1]["learned_until"]
    assert main(["--mode", "decide", "--resume", str(new), "--date", found["until"], "--accept-drift"]) == 0
    assert (new / "trading" / found["until"] / "orders.csv").is_file()


@pytest.mark.learning
def test_where_nothing_is_new_the_old_agent_is_kept(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert retrain(planted) == 0
    folder, found = answer_of(planted)
    assert found["answer"] == "keep"
    assert found["run"] is None
    assert not (folder / "agent").exists()
    assert f"--mode decide --resume {planted}" in capsys.readouterr().out


@given(
    seen=st.integers(300, 2000),
    new=st.integers(1, 900),
    folds=st.integers(1, 5),
    share=st.floats(0.1, 0.9),
    purge=st.integers(0, 30),
    window=st.integers(50, 2500),
)
def test_no_evaluated_bar_was_seen_by_either_agent(
    seen: int, new: int, folds: int, share: float, purge: int, window: int
) -> None:
    known = KnownBars(seen, seen + new, history=100, window=window, purge=purge, fewest_evaluated=25)
    try:
        found = retrain_folds(known, folds, ProtocolConfig(first_share=share))
    except MarketError as error:
        assert "new bars" in str(error)  # noqa: PT017
        return
    judged = [bar for fold in found for bar in fold.tests[0]]
    assert judged == list(range(judged[0], seen + new))  # one after another, up to the newest
    assert len(judged) >= 25
    for fold in found:
        (piece,), (test,) = fold.pieces, fold.tests
        assert test.start > seen
        assert piece.stop == test.start - purge
        assert piece.stop > seen  # it has learned from something that the old agent had not
        assert len(piece) <= window + 100
        assert 3 <= fold.validation <= max(3, window // 2)


def test_a_retraining_does_not_depend_on_what_it_is_judged_by(old: Path, tmp_path: Path) -> None:
    """Other prices from the first evaluated bar on: the same panel, features and rewards to learn from, bit for bit."""

    def prepared(table: pd.DataFrame) -> Any:
        table.to_csv(tmp_path / "prices.csv")
        base = configuration_of(old)
        market = base.market.model_copy(update={"path": tmp_path / "prices.csv", "test_end": None})
        return prepare_retraining(old, base.model_copy(update={"market": market}))

    table = market_prices()
    first = prepared(table)
    changed = table.copy()
    changed.iloc[first.folds[1].tests[0].start :] *= [0.5, 2.0, 1.7, 0.4]
    second = prepared(changed)
    one, other = (made.trainings[1].training_data(made.panel) for made in (first, second))
    assert one.panel.sha256 == other.panel.sha256
    np.testing.assert_array_equal(one.process.asset_features, other.process.asset_features)
    np.testing.assert_array_equal(one.process.growth, other.process.growth)
    one, other = (made.old_data.process.panel for made in (first, second))  # what the old agent's are fitted on
    assert one.sha256 == other.sha256
    assert first.folder != second.folder


def test_without_a_true_lead_it_replaces_as_rarely_as_it_says() -> None:
    """Pairs of equally good agents, correlated with each other and from day to day; 2.5 % are to be replaced."""
    rng, rule = np.random.default_rng(0), ReplacementRule(0.95, 0.0)
    replaced = 0
    for number in range(200):
        shocks = rng.normal(size=(253, 3))
        common = shocks[1:, 0] + 0.3 * shocks[:-1, 0]
        new, old = (0.0004 + 0.01 * (0.8 * common + 0.6 * shocks[1:, place]) for place in (1, 2))
        lead = measure_lead(returns_of(NEW, new), returns_of(OLD, old), rule, Resampling(200, 10, number))
        replaced += rule.answer(lead) == "replace"
    assert replaced <= 12  # 5 expected; 13 or more have a probability under .2 %


def test_a_clear_lead_replaces_and_a_margin_above_it_does_not() -> None:
    rng = np.random.default_rng(1)
    old = rng.normal(0.0, 0.01, 500)
    new = 0.5 * old + 0.0015 + rng.normal(0.0, 0.004, 500)
    runs, settings = (returns_of(NEW, new), returns_of(OLD, old)), Resampling(400, 10, 0)
    lead = measure_lead(*runs, ReplacementRule(0.95, 0.0), settings)
    assert ReplacementRule(0.95, 0.0).answer(lead) == "replace"
    assert ReplacementRule(0.95, lead.interval.low).answer(lead) == "keep"
    later = measure_lead(*runs, ReplacementRule(0.95, 0.0, comparison=4), settings)
    assert later.interval.low < lead.interval.low  # a later comparison of the same agent asks for more
    assert later.value == lead.value


def test_chances_of_all_comparisons_sum_to_what_the_confidence_leaves() -> None:
    chances = [ReplacementRule(0.95, 0.0, number).chance for number in range(1, 5000)]
    assert chances[0] == pytest.approx(0.025)
    assert sum(chances) == pytest.approx(0.05, rel=1e-3)
    assert ReplacementRule(0.95, 0.0, 9).samples(100) * chances[8] >= 5.0


def test_an_agent_that_is_all_cash_has_no_ratio_and_is_kept() -> None:
    new, idle = np.random.default_rng(0).normal(0.001, 0.01, 200), np.zeros(200)
    lead = measure_lead(returns_of(NEW, new), returns_of(OLD, idle), ReplacementRule(0.95, 0.0), Resampling(200, 5, 0))
    assert not lead.interval.defined
    assert ReplacementRule(0.95, 0.0).answer(lead) == "keep"


def test_a_stopped_retraining_ends_with_the_same_bytes_and_a_later_one_is_counted(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retrain(old) == 0
    assert "comparison 1 of this agent" in capsys.readouterr().out
    folder, _ = answer_of(old)
    whole = {name: (folder / name).read_bytes() for name in ("retrain.json", "retrain.html", "returns.csv")}
    shutil.rmtree(folder)

    real, begun = independent_trainings.train_one, []

    def stopped_at_the_second(panels: Any, training: Any) -> Any:
        begun.append(training.name)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return real(panels, training)

    monkeypatch.setattr(independent_trainings, "train_one", stopped_at_the_second)
    assert retrain(old) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert not (folder / "retrain.json").exists()
    for _ in range(2):  # the second time nothing is left to do, and nothing changes
        assert retrain(old) == 0
        assert begun == ["fold-01", "fold-02", "fold-02"]
        assert {name: (folder / name).read_bytes() for name in whole} == whole
    table = market_prices()
    table.iloc[:200, 0] *= 0.5
    table.to_csv(tmp_path / "restated.csv")
    capsys.readouterr()
    assert retrain(old, "--set", f"market.path={tmp_path / 'restated.csv'}") == 0
    said = capsys.readouterr().out
    assert "warning: history:" in said
    assert "comparison 2 of this agent" in said


def test_a_dry_run_counts_and_writes_nothing(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(old.parent)
    assert retrain(old, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "fold 2 is trained up to" in said
    assert "2 trainings; to run: fold-01; fold-02\n" in said
    assert files_of(old.parent) == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "market.test_end=2011-05-31"), "new bars, of which"),
        (("--tickers", "A", "B"), "keeps the universe"),
        (("--set", "market.tickers=A B"), "another universe"),
        (("--set", "market.validation_end=2011-04-29"), "market.validation_end says what the old agent"),
        (("--set", "bcell.hidden_dim=16"), "bcell.hidden_dim as it was"),
        (("--protocol", "cpcv"), "--protocol belongs to"),
        (("--cluster", "auto"), "--cluster belongs to"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    old: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert said in refusal(capsys, "--mode", "retrain", "--resume", str(old), *options)


def test_without_new_bars_or_a_training_there_is_nothing_to_compare(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    market_prices().loc[:"2011-03-31"].to_csv(tmp_path / "short.csv")
    given = ("--mode", "retrain", "--resume", str(old), "--set", f"market.path={tmp_path / 'short.csv'}")
    assert "there are no new bars" in refusal(capsys, *given)
    assert "needs --resume" in refusal(capsys, "--mode", "retrain")
    assert "does not exist" in refusal(capsys, "--mode", "retrain", "--resume", str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert "has no checkpoint" in refusal(capsys, "--mode", "retrain", "--resume", str(tmp_path / "empty"))
    job = tmp_path / "job"
    job.mkdir()
    shutil.copy(old / "config.yaml", job / "config.yaml")
    (job / "job.json").write_text('{"seed": 0, "seeds": 2}', "utf-8")
    assert "takes one training" in refusal(capsys, "--mode", "retrain", "--resume", str(job))
