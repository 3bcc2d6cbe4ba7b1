"""Trainings with every regulariser on: a stop changes no bit, and what is deployed and measured is as configured."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from finflow.config import Config
from finflow.errors import CheckpointError
from finflow.training.checkpoints.checkpoint_reader import policy_of, read_checkpoint, read_newest
from finflow.training.data.offline_data import offline_data
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, checkpoint_of, latest, train_through

CPU = torch.device("cpu")
ALL: dict[str, object] = {
    "train__observation_noise": 0.05,
    "bcell__dropout": 0.1,
    "bcell__anchor__weight": 0.5,
    "bcell__anchor__final": 0.1,
    "bcell__anchor__updates": 30,
    "bcell__averaging__kind": "ema",
    "bcell__averaging__start": 0.3,
    "bcell__averaging__decay": 0.9,
    "offline__group_size": 4,
    "bcell__risk_measure": "cvar",
    "bcell__cql_mode": "lagrange",
    "bcell__calibration": "returns",
    "bcell__entropy_backup": "relative",
    "bcell__gradient_checkpointing": True,
}


@pytest.fixture(scope="module")
def whole(shared: Make) -> FinFlowTrainer:
    """Trained once with all regularisers on, for tests that change nothing of it."""
    return train_through(shared(**ALL))


@pytest.mark.parametrize("when", [5, 14 + 5 + 10])
def test_with_all_regularisers_on_a_stop_changes_no_bit(
    whole: FinFlowTrainer, shared: Make, stop_training: Callable[[Config, int], FinFlowTrainer], when: int
) -> None:
    stopped = stop_training(shared(**ALL), when)
    resumed = train_through(shared(**ALL), resume=stopped.run_folder)
    for name in ("latest", "best"):
        assert checkpoint_of(resumed, name).read_bytes() == checkpoint_of(whole, name).read_bytes()
    rows = [(trainer.run_folder / "metrics.jsonl").read_bytes() for trainer in (resumed, whole)]
    assert rows[0] == rows[1]


def test_the_data_do_not_depend_on_how_they_are_grouped_later(shared: Make) -> None:
    small, large = (prepare(shared(train__seed=3, offline__group_size=size)) for size in (2, 4))
    assert not offline_data(small.config, small).reused
    assert offline_data(large.config, large).reused


def test_the_deployed_policy_is_the_average(whole: FinFlowTrainer) -> None:
    bcell = whole._begin().state.bcell
    assert bcell is not None
    assert bcell.average is not None
    assert bcell.average.count == 42  # 60 updates, from 0.3 of them on
    deployed = policy_of(read_checkpoint(latest(whole)), CPU)
    own = bcell.average.policy.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in deployed.state_dict().items())
    assert not torch.equal(deployed.gate.weight, bcell.policy.gate.weight)
    assert whole.policy is bcell.average.policy
    checkpoint = read_checkpoint(latest(whole))
    for wrong in ({"gamma": "x"}, "x", {"cql_mode": "lagrange", "cql_alpha": 0.0}):
        with pytest.raises(CheckpointError, match="how its agent is configured"):
            policy_of(checkpoint._replace(facts={**checkpoint.facts, "bcell": wrong}), CPU)


def test_rows_of_metrics_say_how_the_training_generalises(whole: FinFlowTrainer) -> None:
    lines = (whole.run_folder / "metrics.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "generalisation_train_value" in row]
    online = [row for row in rows if row["phase"] == "online"]
    assert len(rows) > len(online) > 2
    assert "generalisation_kl" not in rows[0]
    assert online[0]["generalisation_kl"] == 0.0
    assert online[-1]["generalisation_kl"] > 0.0
    for row in rows:
        value = {place: row[f"generalisation_{place}_value"] for place in ("train", "validation")}
        assert np.isfinite(list(value.values())).all()
        assert row["generalisation_gap"] == pytest.approx(value["train"] - value["validation"])


def test_without_the_measurement_nothing_else_changes(shared: Make) -> None:
    with_it, without = (
        train_through(shared(train__generalisation=flag, train__online_episodes=4)) for flag in (True, False)
    )
    assert "generalisation" not in (without.run_folder / "metrics.jsonl").read_text()
    found = [read_newest(latest(one))[1].tensors for one in (with_it, without)]
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())
