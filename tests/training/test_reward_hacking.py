"""A reward model that was made wrong on purpose stops its training; a right one does not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from finflow.config import Config
from finflow.errors import TrainingError
from finflow.guard import signals
from finflow.preferences.preference_reward import OutcomeUnits, RewardModel, save_model
from finflow.tensor_file import read_tensors
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from tests.training.test_guarding import events_of
from tests.training.test_on_policy_phase import SMALL
from tests.training.whole_trainings import Make, Stop, check_same_files, latest, rows_of, train_through

RETURN, TURNOVER = 0, 3  # places among the outcomes that a model reads
OFFLINE = 14  # updates of the offline phase
#: A look after every rollout of a fast learner.
LOOKS: dict[str, Any] = {
    **SMALL,
    "online__algorithm": "ppo-kl",
    "online__rollout": 256,
    "online__portfolios": 8,
    "online__minibatch": 64,
    "online__entropy_coefficient": 0.0,
    "online__learning_rate": 1e-2,
    "bcell__actor_lr": 1e-2,
    "bcell__critic_lr": 3e-4,
    "market__train_end": "2011-09-30",  # a month of validation: its turnover is compared
    "train__online_episodes": 80,
    "train__validation_updates": 8,
    "train__reward_reference": "none",
    "objectives__reward": "preference",
    "offline__method": "bc",  # the model is exploited online
}


@pytest.fixture(autouse=True)
def policy_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the policy learn from the first rollout on."""
    monkeypatch.setattr("finflow.training.phases.finetune_on_policy.CRITIC_ONLY_ROLLOUTS", 0)


@pytest.fixture
def likes(tiny: Make, tmp_path: Path) -> Callable[[int], Path]:
    """Makes reward models that like one outcome of a decision, and nothing else."""
    shape = prepare(tiny()).shape

    def planted(outcome: int) -> Path:
        model = RewardModel(shape, 1, OutcomeUnits(0.01, 0.1, 0.001), torch.Generator())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            model.direct.weight[..., outcome] = 1.0
        path = tmp_path / f"likes-{outcome}.safetensors"
        save_model(path, model, {}, ())
        return path

    return planted


def hacking_of(trainer: FinFlowTrainer) -> list[dict[str, Any]]:
    return [row for row in events_of(trainer) if row["signal"] == "hacking"]


def stopped(config: Config) -> tuple[FinFlowTrainer, str]:
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    with pytest.raises(TrainingError, match="reward hacking") as caught:
        trainer.finetune()
    return trainer, str(caught.value)


def test_a_model_that_likes_turnover_is_stopped(tiny: Make, likes: Callable[[int], Path]) -> None:
    trainer, said = stopped(tiny(**LOOKS, objectives__preference__model=likes(TURNOVER)))
    assert "\n" not in said
    assert "score rose" in said
    (event,) = hacking_of(trainer)
    assert event["level"] == "alarm"
    assert "not by the reward model's score" in (trainer.run_folder / "guard-report.md").read_text()
    rows = [row for row in rows_of(trainer) if row["phase"] == "online" and "validation_score" in row]
    assert len(rows) == 4
    assert rows[-1]["score_correlation"] < -0.9
    assert {"validation_value", "validation_sharpe", "validation_concentration"} <= set(rows[-1])
    saved = read_tensors(latest(trainer))[1]["training"]["watch"]["hacking"]
    assert [look["score"] for look in saved["looks"]] == [row["validation_score"] for row in rows]


def test_it_is_stopped_by_its_turnover_alone(
    tiny: Make, likes: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "MULTIPLE", 1.2)
    monkeypatch.setattr(signals, "LOOKS", 50)
    _, said = stopped(tiny(**LOOKS, objectives__preference__model=likes(TURNOVER)))
    found = re.search(r"the turnover is ([\d.]+), over 1\.2 times the reference's ([\d.]+)", said)
    assert found is not None
    assert float(found[1]) > 1.2 * float(found[2])


def test_leaving_the_reference_is_a_stop(
    tiny: Make, likes: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "MULTIPLE", math.inf)
    keys = {"online__reference": "pretrained", "online__reference_target": 1e-6, "online__reference_beta": 1e-9}
    _, said = stopped(tiny(**LOOKS, **keys, objectives__preference__model=likes(RETURN)))
    assert "over twice its target" in said


def test_a_model_that_likes_return_is_not_stopped_and_its_looks_resume_to_the_same_bits(
    tiny: Make, likes: Callable[[int], Path], stop_training: Stop
) -> None:
    config = tiny(**LOOKS, objectives__preference__model=likes(RETURN))
    whole = train_through(config)
    assert hacking_of(whole) == []
    assert sum("validation_score" in row for row in rows_of(whole) if row["phase"] == "online") == 8
    half = stop_training(config, OFFLINE + 3)
    assert read_tensors(latest(half))[1]["training"]["watch"]["hacking"]["looks"]
    again = train_through(config, resume=half.run_folder)
    check_same_files(again, whole)
