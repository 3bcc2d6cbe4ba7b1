"""Small versions of the evidence on rollouts: an edge that is there is found and used; where none is, nothing is."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.training.data.training_data import prepare
from finflow.training.phases.training_run import Validation
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.optimality import judge_of
from tests.short_trainings import config_in

#: A twentieth of the default's decisions, networks of an eighth of its width, no offline phase to speak of.
SMALL: dict[str, object] = {
    "online.algorithm": "rollouts",
    "bcell.hidden_dim": 32,
    "bcell.rollouts.portfolios": 16,
    "bcell.rollouts.horizon": 8,
    "bcell.rollouts.blocks": 3,
    "bcell.rollouts.learning_rate": 1e-2,
    "bcell.rollouts.looks": 1,
    "bcell.rollouts.critic_updates": 1,
    "train.online_episodes": 34,
    "train.offline_episodes": 6,
    "train.offline_training_epochs": 1,
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
    evidence = trainer._begin().state.rollouts.evidence  # type: ignore[union-attr]
    assert evidence is not None
    assert evidence["out_of_fold_t"] > 5.0
    assert evidence["confidence"] > 0.8


@pytest.mark.learning
def test_where_assets_are_exchangeable_nothing_is_used(tmp_path: Path) -> None:
    """By luck at most one sample in forty uses a quarter or more of what it learned; this one is no such sample."""
    _, trainer = learned(tmp_path, market__synthetic__kind="exchangeable", train__online_episodes=24)
    evidence = trainer._begin().state.rollouts.evidence  # type: ignore[union-attr]
    assert evidence is not None
    assert evidence["confidence"] <= 0.25
