"""The offline phase ends where validation gains nothing more, the same whether it was interrupted or not."""

from __future__ import annotations

import json

import pytest

from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, Stop, latest, train_through

#: The policy stays as it is, so that no validation is better than the first, after 3 of 14 updates.
UNCHANGING: dict[str, object] = {"bcell__actor_lr": 1e-300, "train__validation_updates": 3, "offline__patience": 6}


def offline_rows(trainer: FinFlowTrainer) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (trainer.run_folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["phase"] == "offline"]


def test_the_offline_phase_ends_when_no_validation_is_better(shared: Make, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = FinFlowTrainer(shared(**UNCHANGING))
    result = trainer.train_iql()
    validated = [row["update"] for row in offline_rows(trainer) if "validation_value" in row]
    assert validated == [3, 6, 9]  # the best was the first, and six updates followed it
    assert result["fitted_q_value"] == offline_rows(trainer)[-1]["fitted_q_value"]
    assert "ends after 9 updates: no better validation for 6 (offline.patience)" in capsys.readouterr().out


def test_without_patience_every_epoch_is_made(shared: Make) -> None:
    trainer = FinFlowTrainer(shared(**UNCHANGING | {"offline__patience": 0}))
    trainer.train_iql()
    assert [row["update"] for row in offline_rows(trainer) if "validation_value" in row] == [3, 6, 9, 12, 14]


@pytest.fixture(scope="module")
def whole(shared: Make) -> FinFlowTrainer:
    """A training that was never stopped."""
    return train_through(shared(**UNCHANGING, train__online_episodes=4))


@pytest.mark.parametrize("when", [7, 9, 9 + 25])  # before the end, at it, and online, past 20 steps of warm-up
def test_a_phase_that_ended_early_is_resumed_bit_for_bit(
    whole: FinFlowTrainer, shared: Make, stop_training: Stop, when: int
) -> None:
    config = shared(**UNCHANGING, train__online_episodes=4)
    stopped = stop_training(config, when)
    resumed = train_through(config, resume=stopped.run_folder)
    assert latest(resumed).read_bytes() == latest(whole).read_bytes()
    logs = [(one.run_folder / "metrics.jsonl").read_bytes() for one in (resumed, whole)]
    assert logs[0] == logs[1]
