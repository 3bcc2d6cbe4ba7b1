"""Schedules follow their formulas, count their own steps, and go on where they stopped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from finflow import EntropyScheduleConfig, EntropyScheduler
from finflow.config import Config, load_config
from finflow.errors import ConfigError
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make

FORMULAS: dict[str, Callable[[float], float]] = {
    "linear": lambda p: 0.01 - (0.01 - 0.001) * p,
    "cosine": lambda p: 0.001 + (0.01 - 0.001) * (1 + math.cos(math.pi * p)) / 2,
    "exponential": lambda p: 0.01 * math.exp(math.log(0.001 / 0.01) * p),
}


def schedule_of(kind: Any, initial: float, final: float, steps: int) -> EntropyScheduler:
    return EntropyScheduler(EntropyScheduleConfig(initial, final, steps, kind))


@pytest.mark.parametrize("kind", FORMULAS)
def test_every_step_is_on_the_formula_and_the_end_is_held(kind: str) -> None:
    schedule = schedule_of(kind, 0.01, 0.001, 40)
    values = [schedule.value, *(schedule.step() for _ in range(50))]
    assert values[0] == pytest.approx(0.01, rel=1e-12)
    for step, value in enumerate(values[:40]):
        assert value == pytest.approx(FORMULAS[kind](step / 40), rel=1e-12)
    assert values[40:] == [0.001] * 11
    assert schedule.get_info() == {"progress": 1.0, "current_entropy": 0.001, "remaining_steps": 0}
    schedule.reset()
    assert schedule.get_info() == {"progress": 0.0, "current_entropy": values[0], "remaining_steps": 40}


@pytest.mark.parametrize(
    ("name", "initial", "final", "steps", "middle"),
    [
        ("fast", 0.02, 0.0001, 50_000, 0.02 * math.exp(math.log(0.0001 / 0.02) / 2)),
        ("stable", 0.01, 0.005, 150_000, 0.0075),
        ("default", 0.01, 0.001, 100_000, 0.0055),
    ],
)
def test_presets(name: str, initial: float, final: float, steps: int, middle: float) -> None:
    scheduler = EntropyScheduler(EntropyScheduleConfig.preset(name))
    assert scheduler.get_info() == {"progress": 0.0, "current_entropy": initial, "remaining_steps": steps}
    assert scheduler.step(steps // 2) == pytest.approx(middle)
    assert scheduler.step(steps // 2) == final


def test_the_defaults_of_the_configuration_and_of_the_scheduler_agree() -> None:
    """Over 100,000 updates; without ``steps`` a training's schedule takes the updates of its phase."""
    keys = Config().train.entropy_schedule
    assert EntropyScheduler.of(keys, 100_000).config == EntropyScheduleConfig()
    assert EntropyScheduler.of(keys, 985).config.decay_steps == 985


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedule_of("steep", 0.1, 0.01, 5),
        lambda: schedule_of("linear", 0.0, 0.01, 5),
        lambda: schedule_of("linear", 0.1, math.inf, 5),
        lambda: schedule_of("linear", 0.1, 0.01, 0),
        lambda: EntropyScheduleConfig.preset("slow"),
    ],
)
def test_settings_that_make_no_schedule_are_refused_in_one_line(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert "\n" not in str(error.value)


def test_a_target_entropy_can_only_move_where_alpha_is_tuned() -> None:
    with pytest.raises(ConfigError, match=r"bcell\.alpha_mode = fixed has no target entropy"):
        load_config(None, {"bcell.alpha_mode": "fixed", "train.target_entropy_schedule.enabled": True}, {})


def test_the_online_phase_follows_the_annealed_coefficient(tiny: Make) -> None:
    """At the last of 20 updates the schedule stands at its 19th step."""
    keys = {"train__entropy_schedule__steps": 100, "train__online_episodes": 4}
    trainer = FinFlowTrainer(tiny(bcell__alpha_mode="annealed", train__offline_training_epochs=1, **keys))
    trainer.train_iql()
    assert trainer._begin().state.entropy_schedule.taken == 0
    result = trainer.finetune()
    assert result["alpha"] == pytest.approx(0.01 - 0.009 * 19 / 100, rel=1e-6)
    assert trainer._begin().state.entropy_schedule.get_info()["remaining_steps"] == 80
