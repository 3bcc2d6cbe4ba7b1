"""How long trainings take is estimated by a few updates of each phase, whatever the online algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.experiments.jobs.duration_estimate import DurationEstimate, Updates, estimate_all
from finflow.experiments.jobs.training_jobs import make_seed_job
from finflow.training.phases import finetune_rollouts
from tests.short_trainings import TINY, config_in, write_market

#: 1,200 decisions online, or 75 updates of rollouts.
LONGER = {"train.online_episodes": 60, "bcell.rollouts.portfolios": 4, "bcell.rollouts.horizon": 4}
ON_POLICY = {"online.rollout": 100, "online.portfolios": 4, "online.epochs": 3, "online.minibatch": 20}


def told(folder: Path, **changes: object) -> DurationEstimate:
    keys = {name.replace("__", "."): value for name, value in changes.items()}
    prices = {"market.path": str(write_market(folder / "prices.csv"))}
    config = config_in(folder, {**TINY, **LONGER, **ON_POLICY, **prices, **keys})
    return estimate_all([make_seed_job(config, folder / "job")])


@pytest.mark.parametrize(
    ("algorithm", "online"),
    [("rollouts", 75 + 300), ("sac", 300), ("ppo", 12 * 3 * 5)],
)
def test_the_updates_are_those_of_the_algorithm(algorithm: str, online: int, tmp_path: Path) -> None:
    found = told(tmp_path, online__algorithm=algorithm)
    assert found.online_updates == online
    assert 0.0 < found.seconds < 600.0
    assert not (tmp_path / "logs").exists()


def test_a_probe_ends_after_a_few_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither evidence nor critics are waited for, which take longer than the probe."""

    def fail(*_: object) -> None:
        raise AssertionError("the probe went on to the end")

    for name in ("_choose_blend", "update_critics", "_judge"):
        monkeypatch.setattr(finetune_rollouts, name, fail)
    assert told(tmp_path, online__algorithm="rollouts").seconds > 0.0


def test_policies_of_blocks_are_pretrained_on_the_other_blocks(tmp_path: Path) -> None:
    prices = {"market.path": str(write_market(tmp_path / "prices.csv"))}
    keys = {"online.algorithm": "rollouts", "bcell.rollouts.blocks": 4, "bcell.rollouts.pretraining_epochs": 1}
    updates = Updates.of(config_in(tmp_path, {**TINY, **prices, **keys}), rows=320)
    assert (updates.offline, updates.of_folds) == (2 * 10, 3 * 10)  # four folds, three quarters of an epoch each
