"""Small versions of the evidence on the online phase: an edge that is there is used, and a closed policy opens."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from finflow.training.data.training_data import prepare
from finflow.training.phases.training_run import Validation
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.optimality import judge_of
from tests.short_trainings import config_in

#: A twentieth of the default's decisions, networks of an eighth of its width, no offline phase to speak of.
SMALL: dict[str, object] = {
    "bcell.hidden_dim": 32,
    "bcell.n_quantiles": 8,
    "bcell.expansion": 8,
    "bcell.actor_lr": 1e-2,
    "out_of_fold.blocks": 2,
    "out_of_fold.looks": 1,
    "train.n_envs": 16,
    "train.online_episodes": 34,
    "train.warmup_episodes": 4,
    "train.online_batch_size": 128,
    "train.offline_episodes": 6,
    "train.offline_training_epochs": 1,
    "train.validation_updates": 100_000,
    "offline.evaluation_updates": 0,
    "train.generalisation": False,
    "market.source": "synthetic",
    "market.synthetic.bars": 2500,
    "market.train_end": "2018-12-31",
    "market.validation_end": "2020-12-31",
    "objectives.sharpe_beta": 0.0,
    "objectives.lambda_turn": 0.0,
    "objectives.lambda_cvar": 0.0,
}


def learned(folder: Path, **changes: object) -> tuple[list[Validation], FinFlowTrainer]:
    found: list[Validation] = []
    trainer = FinFlowTrainer(config_in(folder, SMALL, **changes), on_validation=found.append)
    trainer.train_iql()
    trainer.finetune()
    return [one for one in found if one.phase == "online"], trainer


@pytest.mark.learning
def test_the_best_asset_is_found_and_held(tmp_path: Path) -> None:
    """Constant drift: 1 is holding the best asset throughout, 0 is equal weight; the pretrained policy is far below."""
    (start, end), trainer = learned(tmp_path, market__synthetic__kind="constant-drift")
    judge = judge_of(prepare(trainer.config))
    assert judge(start.backtest) < 0.3
    assert judge(end.backtest) > 0.8
    state = trainer._begin().state.out_of_fold
    assert state is not None
    assert state.evidence is not None
    assert state.evidence["out_of_fold_t"] > 5.0
    assert state.evidence["confidence"] > 0.8


@pytest.mark.learning
def test_where_assets_are_exchangeable_nothing_is_used(tmp_path: Path) -> None:
    """By luck at most one sample in forty uses a quarter or more of what it learned; this one is no such sample."""
    _, trainer = learned(tmp_path, market__synthetic__kind="exchangeable", train__online_episodes=24)
    state = trainer._begin().state.out_of_fold
    assert state is not None
    assert state.evidence is not None
    assert state.evidence["confidence"] <= 0.25


@pytest.mark.learning
def test_a_policy_that_hardly_trades_begins_to(tmp_path: Path) -> None:
    """From a trade rate of 1e-6, in a market where the best asset is worth holding: nothing is NaN on the way.

    Its logit, 12 below that of an eighth, has the slope of a fiftieth at least, and rises.
    """
    keys = {"market__synthetic__kind": "constant-drift", "out_of_fold__blocks": 1, "bcell__actor_lr": 3e-2}
    trainer = FinFlowTrainer(config_in(tmp_path, SMALL, **keys))
    trainer.train_iql()
    run = trainer._begin()
    trainer._hand_over(run)
    policy = trainer.agent.policy
    with torch.no_grad():
        policy.trade.bias[0] = math.log(1e-6)
    trainer.finetune()
    assert run.probe is not None
    assert all(bool(tensor.isfinite().all()) for tensor in policy.state_dict().values())
    lines = (trainer.run_folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "online"]
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert numbers
    assert all(math.isfinite(value) for value in numbers)
    assert (trainer.run_folder / "events.jsonl").read_text().count("rollback") == 0
    with torch.no_grad():
        rate = policy(run.probe).trade_rate
    assert float(rate.mean()) > 0.02  # at 1e-6 it is clamped to 1e-3
