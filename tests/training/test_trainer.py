"""The whole job on a small market: repeatable, resumable, blind to the test window."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch

from finflow.config import ActingConfig
from finflow.errors import CheckpointError, MarketError
from finflow.evaluation.statistics.significance_tests import readings_of
from finflow.guard.checkpoint_folder import numbered
from finflow.training.judging.agent_strategy import load_agents, policy_identity
from finflow.training.judging.evaluations import evaluate_agents
from finflow.training.judging.held_out import ledger_of
from finflow.training.trainer import EvaluationOutcome, FinFlowTrainer
from tests.short_trainings import market_prices, write_market
from tests.training.test_on_policy_phase import SMALL
from tests.training.whole_trainings import (
    Make,
    Stop,
    best,
    check_same_files,
    check_same_learning,
    latest,
    rows_of,
    train_through,
)


class Whole(NamedTuple):
    """A training that was never stopped, and its outcome; tests leave its files alone."""

    trainer: FinFlowTrainer
    outcome: EvaluationOutcome


@pytest.fixture(scope="module", autouse=True)
def _often_logged() -> Iterator[None]:
    """Rows of losses every 20 updates: a training has 32 online."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("finflow.training.phases.training_run.LOG_EVERY", 20)
        yield


@pytest.fixture(scope="module")
def whole(shared: Make, tear_sheets: None, _often_logged: None) -> Whole:
    """Trained once for all tests, with everything that a report has."""
    trainer = FinFlowTrainer(shared())
    return Whole(trainer, trainer.train())


@pytest.mark.usefixtures("no_pictures")
def test_the_same_seed_gives_identical_checkpoints_and_numbers(whole: Whole, shared: Make) -> None:
    first, second = whole.trainer, FinFlowTrainer(shared())
    reports = [outcome.report.parent for outcome in (whole.outcome, second.train())]
    assert first.run_folder != second.run_folder
    check_same_files(first, second)
    assert (reports[0] / "metrics.json").read_bytes() == (reports[1] / "metrics.json").read_bytes()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ((slice(0, 400), slice(450, 700)), "2 assets are not listed throughout the training window (B, C)"),
        ((slice(0, 0), slice(300, 700)), "1 asset is not listed throughout the training window (C)"),
        ((slice(0, 0), slice(620, 700)), None),  # ends after the training window
    ],
)
def test_a_market_with_gaps_is_announced_before_anything_is_learned_in_it(
    shared: Make, tmp_path: Path, rows: tuple[slice, slice], words: str | None
) -> None:
    prices = pd.read_csv(shared().market.path, index_col=0)
    for column, missing in enumerate(rows, start=1):
        prices.iloc[missing, column] = np.nan
    prices.to_csv(tmp_path / "ragged.csv")
    trainer = FinFlowTrainer(shared(market__path=str(tmp_path / "ragged.csv"), market__benchmark="A"))
    assert trainer._begin().state.counters.update == 0
    said = [line for line in (trainer.run_folder / "console.log").read_text().splitlines() if "not listed" in line]
    assert len(said) == (words is not None)
    if words is not None:
        assert words in said[0]
        assert "listed at the time" in said[0]


def test_a_run_writes_what_was_promised(whole: Whole) -> None:
    trainer, outcome = whole
    folder = trainer.run_folder
    for name in ("config.yaml", "manifest.json", "dataset.json", "metrics.jsonl", "console.log", "reports/report.html"):
        assert (folder / name).stat().st_size > 0, name
    assert list(folder.glob("events.out.tfevents.*"))
    for path in (folder / "reports").glob("*.png"):
        assert path.stat().st_size > 5000, path.name
    assert (folder / "reports" / "equity.png").exists()
    assert "quantstats" in (folder / "reports" / "tearsheet.html").read_text("utf-8").lower()
    kept = sorted(path.name for path in (folder / "models").glob("checkpoint_[0-9]*"))
    assert len(kept) == trainer.config.train.max_checkpoints
    rows = rows_of(trainer)
    for kind in ("validation_sharpe", "critic_gradient"):
        judged = [row for row in rows if row["phase"] == "online" and kind in row]
        assert judged
        assert all(-0.2 < row["cvar"] < 0.0 and abs(row["sharpe"]) < 20.0 for row in judged)
    assert next(iter(outcome.summary)) == "finflow"
    assert {"equal-weight", "buy-and-hold", "minimum-variance", "risk-parity", "momentum"} <= set(outcome.summary)


def test_prices_after_validation_cannot_change_what_is_learned(whole: Whole, shared: Make, tmp_path: Path) -> None:
    crashed = write_market(tmp_path / "crashed.csv", changed_after="2011-10-31")
    check_same_learning(whole.trainer, train_through(shared(market__path=str(crashed))))


@pytest.mark.parametrize("when", [9, 14 + 5 + 22])  # 2 epochs of 7 updates, 5 warm-up steps, 32 online updates
def test_stopped_and_resumed_equals_never_stopped(whole: Whole, shared: Make, stop_training: Stop, when: int) -> None:
    stopped = stop_training(shared(), when)
    resumed = train_through(shared(), resume=stopped.run_folder)
    assert resumed.run_folder == stopped.run_folder.resolve()
    check_same_files(resumed, whole.trainer)


def test_an_earlier_checkpoint_branches_into_a_new_run(whole: Whole, shared: Make) -> None:
    earlier = sorted((whole.trainer.run_folder / "models").glob("checkpoint_[0-9]*"))[0]
    content = earlier.read_bytes()
    branch = train_through(shared(), resume=earlier)
    assert branch.run_folder != whole.trainer.run_folder
    check_same_files(branch, whole.trainer)
    assert earlier.read_bytes() == content


def test_a_resumed_run_keeps_its_configuration_and_an_online_checkpoint_is_not_pretrained(
    whole: Whole, shared: Make
) -> None:
    with pytest.raises(CheckpointError, match="another configuration"):
        FinFlowTrainer(shared(bcell__gamma=0.9), resume=whole.trainer.run_folder)
    with pytest.raises(CheckpointError, match="online phase"):
        FinFlowTrainer(shared(), pretrained=latest(whole.trainer))


def test_a_damaged_latest_falls_back_to_the_one_before(
    whole: Whole, shared: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(whole.trainer.run_folder, tmp_path / "run")
    content = latest(whole.trainer).read_bytes()
    for path in (run / "models" / f"{name}.safetensors" for name in ("checkpoint_latest", numbered(14 + 32))):
        path.unlink()
        path.write_bytes(content[: len(content) // 2])
    resumed = train_through(shared(), resume=run)
    assert "using the newest intact one" in capsys.readouterr().out
    assert latest(resumed).read_bytes() == content


def test_other_prices_cannot_be_resumed_on(tiny: Make, tmp_path: Path) -> None:
    config = tiny(train__offline_training_epochs=1)
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    write_market(tmp_path / "prices.csv", seed=4)
    with pytest.raises(CheckpointError, match="other prices"):
        FinFlowTrainer(config, resume=trainer.run_folder)


@pytest.mark.usefixtures("no_pictures")
def test_an_agent_is_evaluated_from_its_checkpoint_alone(whole: Whole, tmp_path: Path) -> None:
    trainer, outcome = whole
    again = evaluate_agents(load_agents([best(trainer)], {}), tmp_path / "again")
    assert again.summary == outcome.summary
    assert (again.report.parent / "metrics.json").read_bytes() == (outcome.report.parent / "metrics.json").read_bytes()
    dear = evaluate_agents(load_agents([best(trainer)], {"env.commission_bps": 50.0}), tmp_path / "dear")
    assert dear.summary["equal-weight"]["annual_cost"] > outcome.summary["equal-weight"]["annual_cost"]


@pytest.mark.usefixtures("no_pictures")
def test_an_agent_that_acts_otherwise_is_another_try(whole: Whole, tmp_path: Path) -> None:
    trainer, outcome = whole
    keys = {"acting.temperature": 0.5, "acting.top_p": 0.5}
    first, again = (evaluate_agents(load_agents([best(trainer)], keys), tmp_path / name) for name in ("first", "again"))
    assert first.summary == again.summary
    assert first.summary["finflow"] != outcome.summary["finflow"]
    assert first.summary["momentum"] == outcome.summary["momentum"]
    said = "drawn with temperature 0.5; only the largest assets, 0.5 of all together"
    assert said in first.report.read_text("utf-8")
    readings = readings_of(ledger_of(trainer.config), trainer.training_data.panel.sha256)
    assert readings[-1].judged == readings[-2].judged != policy_identity(trainer.policy)
    assert policy_identity(trainer.policy, ActingConfig()) == policy_identity(trainer.policy)


def test_a_training_window_shorter_than_an_episode_says_so(shared: Make) -> None:
    with pytest.raises(MarketError, match=r"env\.episode_length"):
        FinFlowTrainer(shared(env__episode_length=600))


@pytest.mark.parametrize(
    "changes",
    [
        {
            **{"bcell__dropout": 0.2, "train__observation_noise": 0.05},
            **{"bcell__alpha_mode": "annealed", "env__execution_lag": 0},
        },
        {
            **{"bcell__alpha_mode": "fixed", "env__execution_lag": 2, "env__max_weight": 0.5},
            **{"env__no_trade_band": 0.01, "train__n_envs": 3, "train__updates_per_vector_step": 2},
            "train__save_best": False,
        },
        {
            **{"train__profile": True},  # phases of fewer updates than those before a trace
            **{"offline__method": "td3bc", "train__best_by": "sharpe"},
        },
        {"offline__method": "bc", "bcell__n_quantiles": 1, "offline__evaluation_updates": 0},
    ],
)
def test_options_train_to_the_end(shared: Make, changes: dict[str, object]) -> None:
    trainer = FinFlowTrainer(shared(train__online_episodes=6, **changes))
    assert np.isfinite(list(trainer.train_iql().values())).all()
    assert np.isfinite(list(trainer.finetune().values())).all()
    traces = sorted(path.name for path in trainer.run_folder.glob("trace_*.json"))
    assert traces == (["trace_offline.json", "trace_online.json"] if trainer.config.train.profile else [])


# --- listings and ends


#: B ends within the training window, C lists within it, D lists within it and ends in the test window.
ENDED, LATE, LATER = 520, 400, 450
ALGORITHMS: dict[str, dict[str, Any]] = {"sac": {"bcell__cql_samples": 4, "out_of_fold__blocks": 2}, "ppo": SMALL}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_agent_learns_across_listings_and_ends(
    algorithm: str, tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It decides and learns over what is listed at the time."""
    monkeypatch.setattr("finflow.training.phases.training_run.LOG_EVERY", 1)
    close = market_prices(assets="ABCDEF")
    close.iloc[ENDED:, 1] = np.nan
    close.iloc[:LATE, 2] = np.nan
    close.iloc[:LATER, 3] = np.nan
    close.iloc[680:, 3] = np.nan
    close.to_csv(tmp_path / "ragged.csv")
    keys = {"market__path": str(tmp_path / "ragged.csv"), "market__benchmark": "A", "train__online_episodes": 6}
    trainer = train_through(tiny(**{**ALGORITHMS[algorithm], **keys}, offline__evaluation_updates=0))
    rows = rows_of(trainer)
    names = [name for row in rows for name in row if "loss" in name or "entropy" in name or "gradient" in name]
    assert {"offline", "online"} <= {row["phase"] for row in rows}
    assert len(names) > 20
    assert all(math.isfinite(row[name]) for row in rows for name in row if name in names)
    process, agent = trainer.training_data.process, trainer.agent
    listed = process.panel.listed
    for bar in (LATE - 1, LATE + 1, LATER + 1, ENDED, ENDED + 1, ENDED + 2, 610):
        state = process.start(np.full(3, bar), np.random.default_rng(bar).dirichlet(np.ones(6), 3))
        observation = process.observe(state)
        for deterministic in (True, False):
            weights = agent.act(observation, deterministic)
            known = listed[bar - 1]
            assert (weights[:, :-1][:, ~known] == 0.0).all(), bar
            assert (weights[:, :-1][:, known] > 0.0).all()
            np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)
    learners = trainer._begin().state.learners
    assert (learners is None) == (algorithm == "ppo")
    for one in learners.everyone if learners is not None else ():  # stored decisions name what is listed, no more
        columns, count = one.replay.columns, len(one.replay)
        known = torch.tensor(listed)[columns["bar"][:count] - 1]
        weights = columns["action"][:count, :-1]
        assert (~known).any()
        assert bool((weights[~known] == 0.0).all())
        assert bool((weights[known] > 0.0).all())
