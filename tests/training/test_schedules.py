"""Schedules follow their formulas, count their own steps, and go on where they stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from finflow.config import Config, EntropyScheduleConfig, load_config
from finflow.errors import ConfigError
from finflow.training.phases.schedules import EntropySchedule, scheduled
from finflow.training.trainer import FinFlowTrainer

Make = Callable[..., Config]
FORMULAS: dict[str, Callable[[float], float]] = {
    "linear": lambda p: 0.01 - (0.01 - 0.001) * p,
    "cosine": lambda p: 0.001 + (0.01 - 0.001) * (1 + math.cos(math.pi * p)) / 2,
    "exponential": lambda p: 0.01 * math.exp(math.log(0.001 / 0.01) * p),
}


@pytest.mark.parametrize("kind", FORMULAS)
def test_every_step_is_on_the_formula_and_the_end_is_held(kind: str) -> None:
    schedule = EntropySchedule(kind, 0.01, 0.001, steps=40)
    values = [schedule.value, *(schedule.step() for _ in range(50))]
    assert values[0] == pytest.approx(0.01, rel=1e-12)
    for step, value in enumerate(values[:40]):
        assert value == pytest.approx(FORMULAS[kind](step / 40), rel=1e-12)
    assert values[40:] == [0.001] * 11
    assert values == [scheduled(kind, 0.01, 0.001, step / 40) for step in range(51)]


def test_the_default_is_what_was_promised() -> None:
    schedule = EntropySchedule.of(EntropyScheduleConfig())
    assert schedule.get_info() == {"progress": 0.0, "current_entropy": 0.01, "remaining_steps": 100_000}
    schedule.taken = 50_000
    assert schedule.value == pytest.approx(0.0055)


def test_the_information_and_the_way_back_to_the_beginning() -> None:
    schedule = EntropySchedule("linear", 0.01, 0.002, steps=4)
    schedule.step()
    assert schedule.get_info() == {"progress": 0.25, "current_entropy": pytest.approx(0.008), "remaining_steps": 3}
    for _ in range(9):
        schedule.step()
    assert schedule.get_info() == {"progress": 1.0, "current_entropy": 0.002, "remaining_steps": 0}
    schedule.reset()
    assert schedule.get_info() == {"progress": 0.0, "current_entropy": 0.01, "remaining_steps": 4}


def test_a_schedule_may_rise() -> None:
    schedule = EntropySchedule("exponential", 0.1, 0.4, steps=2)
    assert schedule.step() == pytest.approx(0.2)
    assert schedule.step() == 0.4


def test_it_goes_on_where_it_stopped() -> None:
    first, other = (EntropySchedule("cosine", 0.01, 0.001, steps=10) for _ in range(2))
    for _ in range(3):
        first.step()
    tensors, state = first.capture()
    other.restore(tensors, json.loads(json.dumps(state)))
    assert [first.step() for _ in range(9)] == [other.step() for _ in range(9)]
    for wrong in ({"taken": -1}, {"taken": 1.5}, {"taken": None}, {"taken": True}):
        with pytest.raises(ValueError):
            other.restore({}, wrong)


@pytest.mark.parametrize(
    "given", [("steep", 0.1, 0.01, 5), ("linear", 0.0, 0.01, 5), ("linear", 0.1, math.inf, 5), ("linear", 0.1, 0.01, 0)]
)
def test_what_is_no_schedule_is_refused(given: tuple[str, float, float, int]) -> None:
    with pytest.raises(ValueError):
        EntropySchedule(*given)


def test_a_target_entropy_can_only_move_where_alpha_is_tuned() -> None:
    with pytest.raises(ConfigError, match=r"bcell\.alpha_mode = fixed has no target entropy"):
        load_config(None, {"bcell.alpha_mode": "fixed", "train.target_entropy_schedule.enabled": True}, {})


def test_the_online_phase_follows_the_annealed_coefficient(tiny: Make) -> None:
    """At the last of 60 updates the schedule stands at its 59th step."""
    keys = {"train__entropy_schedule__steps": 100, "train__online_episodes": 12}
    trainer = FinFlowTrainer(tiny(bcell__alpha_mode="annealed", train__offline_training_epochs=1, **keys))
    trainer.train_iql()
    assert trainer._begin().state.entropy_schedule.taken == 0
    result = trainer.finetune()
    assert result["alpha"] == pytest.approx(0.01 - 0.009 * 59 / 100, rel=1e-6)
    assert trainer._begin().state.entropy_schedule.get_info()["remaining_steps"] == 40


def test_a_moving_target_entropy_moves_the_temperature(tiny: Make) -> None:
    ends = []
    for final in (0.02, 0.98):
        schedule = {"enabled": True, "initial": 0.5, "final": final, "steps": 5}
        keys = {f"train__target_entropy_schedule__{name}": value for name, value in schedule.items()}
        short = {"train__offline_training_epochs": 1, "train__online_episodes": 4, "bcell__alpha_lr": 0.05}
        trainer = FinFlowTrainer(tiny(**short, **keys))
        trainer.train_iql()
        ends.append(trainer.finetune()["alpha"])
    assert ends[0] < ends[1]
