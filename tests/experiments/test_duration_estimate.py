"""How long trainings take is estimated by a few updates of each phase, whatever the online algorithm."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.experiments.jobs.duration_estimate import DurationEstimate, Updates, estimate_all
from finflow.experiments.jobs.training_jobs import make_seed_job
from finflow.training.out_of_fold.evidence import OutOfFold
from finflow.training.phases import finetune
from tests.short_trainings import TINY, config_in, write_market

#: 1,200 decisions online: four updates after every sixteen of them, four portfolios that look four ahead.
LONGER = {"train.online_episodes": 60}
ON_POLICY = {"online.rollout": 100, "online.portfolios": 4, "online.epochs": 3, "online.minibatch": 20}


def told(folder: Path, **changes: object) -> DurationEstimate:
    keys = {name.replace("__", "."): value for name, value in changes.items()}
    prices = {"market.path": str(write_market(folder / "prices.csv"))}
    config = config_in(folder, {**TINY, **LONGER, **ON_POLICY, **prices, **keys})
    return estimate_all([make_seed_job(config, folder / "job")])


@pytest.mark.parametrize(
    ("keys", "online"),
    [
        ({}, 75 * 4),
        ({"bcell__expansion": 0}, 300 * 4),
        ({"train__updates_per_vector_step": 1}, 75),
        ({"online__algorithm": "ppo"}, 12 * 3 * 5),
    ],
    ids=str,
)
def test_the_updates_are_those_of_the_algorithm(keys: dict[str, object], online: int, tmp_path: Path) -> None:
    found = told(tmp_path, **keys)
    assert found.online_updates == online
    assert 0.0 < found.seconds < 600.0
    assert not (tmp_path / "logs").exists()


def test_a_probe_ends_after_a_few_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither evidence nor the critics' comparison is waited for, which take longer than the probe."""

    def fail(*_: object) -> None:
        raise AssertionError("the probe went on to the end")

    monkeypatch.setattr(OutOfFold, "choose", fail)
    for name in ("compare_advantages", "measure_returns"):
        monkeypatch.setattr(finetune, name, fail)
    assert told(tmp_path, out_of_fold__blocks=3).seconds > 0.0


def test_policies_of_blocks_are_pretrained_on_the_other_blocks(tmp_path: Path) -> None:
    prices = {"market.path": str(write_market(tmp_path / "prices.csv"))}
    keys = {"out_of_fold.blocks": 4, "out_of_fold.pretraining_epochs": 1}
    updates = Updates.of(config_in(tmp_path, {**TINY, **prices, **keys}), rows=320)
    assert (updates.offline, updates.of_folds) == (2 * 10, 3 * 10)  # four folds, three quarters of an epoch each
    whole = Updates.of(config_in(tmp_path, {**TINY, **prices, **keys, "out_of_fold.blocks": 1}), rows=320)
    assert (whole.offline, whole.of_folds) == (2 * 10, 0)
