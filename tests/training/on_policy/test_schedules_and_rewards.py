"""Entropy schedules and reward normalisation against their formulas."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import finflow
from finflow.errors import ConfigError
from finflow.training.on_policy.entropy_scheduler import EntropyScheduleConfig, EntropyScheduler
from finflow.training.on_policy.reward_normalizer import RewardNormalizer, RewardNormalizerConfig


def test_the_default_schedule_is_linear_from_a_hundredth_to_a_thousandth() -> None:
    scheduler = EntropyScheduler(
        EntropyScheduleConfig(initial_entropy=0.01, final_entropy=0.001, decay_steps=100, schedule_type="linear")
    )
    assert scheduler.advance(50) == pytest.approx(0.0055)
    assert scheduler.get_info() == {"progress": 0.5, "current_entropy": pytest.approx(0.0055), "remaining_steps": 50}
    assert scheduler.advance(1000) == 0.001
    scheduler.reset()
    assert scheduler.value == 0.01


@pytest.mark.parametrize(
    ("name", "initial", "final", "steps", "middle"),
    [
        ("fast", 0.02, 0.0001, 50_000, 0.02 * math.exp(math.log(0.0001 / 0.02) / 2)),
        ("stable", 0.01, 0.005, 150_000, 0.0075),
        ("default", 0.01, 0.001, 100_000, 0.0055),
    ],
)
def test_presets(name: str, initial: float, final: float, steps: int, middle: float) -> None:
    scheduler = EntropyScheduler.preset(name)
    assert scheduler.value == initial
    assert scheduler.advance(steps // 2) == pytest.approx(middle)
    assert scheduler.advance(steps // 2) == final


def test_a_share_of_the_training_sets_the_steps() -> None:
    assert EntropyScheduleConfig(decay_share=0.8).over(15_750).decay_steps == 12_600
    assert EntropyScheduleConfig().over(15_750).decay_steps == 100_000


@given(st.lists(st.floats(-100.0, 100.0), min_size=1, max_size=40), st.integers(2, 12))
def test_rewards_are_in_units_of_the_window(rewards: list[float], size: int) -> None:
    normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=size, epsilon=1e-8, clip_range=(-3.0, 10.0)))
    for count, reward in enumerate(rewards, start=1):
        window = np.array(rewards[max(0, count - size) : count])
        expected = np.clip((reward - window.mean()) / (window.std() + 1e-8), -3.0, 10.0)
        found = normalizer.normalize(reward)
        if window.std() > 1e-6:
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    statistics = normalizer.get_statistics()
    assert statistics["count"] == len(rewards)
    assert statistics["buffer_size"] == min(len(rewards), size)
    assert statistics["mean"] == pytest.approx(np.mean(rewards[-size:]), abs=1e-9)


def test_a_batch_is_normalised_by_the_window_after_it() -> None:
    found = RewardNormalizer().normalize_batch(np.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_allclose(found, (np.array([[1.0, 2.0], [3.0, 4.0]]) - 2.5) / np.sqrt(1.25), atol=1e-7)


def test_a_reward_that_is_always_the_same_is_nothing_with_the_mean_taken_off_and_itself_without() -> None:
    assert RewardNormalizer().normalize_batch([1.0] * 5).tolist() == [0.0] * 5
    kept = RewardNormalizer(RewardNormalizerConfig(shift=False)).normalize_batch([1.0] * 5)
    np.testing.assert_allclose(kept, 1.0)


def test_what_is_no_number_is_not_remembered() -> None:
    normalizer = RewardNormalizer()
    normalizer.normalize_batch([1.0, 3.0])
    assert math.isnan(normalizer.normalize(math.nan))
    assert normalizer.get_statistics()["mean"] == 2.0


def test_reward_presets_and_reset() -> None:
    assert RewardNormalizer.preset("stable").config == RewardNormalizerConfig(5000, clip_range=(-5.0, 5.0))
    fast = RewardNormalizer.preset("fast")
    assert (fast.config.window_size, fast.config.clip_range) == (500, (-10.0, 10.0))
    fast.normalize(3.0)
    fast.reset()
    assert fast.get_statistics()["count"] == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: EntropyScheduler(EntropyScheduleConfig(initial_entropy=0.0)),
        lambda: EntropyScheduler(EntropyScheduleConfig(schedule_type="sudden")),  # type: ignore[arg-type]
        lambda: EntropyScheduler(EntropyScheduleConfig(decay_steps=0)),
        lambda: EntropyScheduleConfig(decay_share=1.5).over(10),
        lambda: EntropyScheduleConfig.preset("slow"),
        lambda: RewardNormalizerConfig(window_size=1),
        lambda: RewardNormalizerConfig(clip_range=(1.0, -1.0)),
        lambda: RewardNormalizerConfig.preset("slow"),
    ],
)
def test_settings_that_cannot_be_are_one_line(make: Any) -> None:
    with pytest.raises(ConfigError) as found:
        make()
    assert "\n" not in str(found.value)


def test_all_are_importable_from_finflow() -> None:
    names = ("EntropyScheduler", "RewardNormalizer", "CheckpointManager", "CheckpointMetrics", "RollbackManager")
    for name in (*names, "AdvancedPPOTrainer", "train_advanced_ppo", "EntropyScheduleConfig", "RewardNormalizerConfig"):
        assert getattr(finflow, name).__name__ == name
