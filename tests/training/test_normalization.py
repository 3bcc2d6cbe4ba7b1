"""Rewards in units of their recent past, and schedules by their formulas: both go on where they stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from stable_baselines3.common.running_mean_std import RunningMeanStd

from finflow import EntropyScheduleConfig, EntropyScheduler, RewardNormalizer, RewardNormalizerConfig
from finflow.config import Config, load_config
from finflow.errors import ConfigError
from finflow.training.data.replay import MarketTensors, make_batch
from finflow.training.data.reward_normalizer import ReturnScale
from finflow.training.data.rewards import RewardUnits
from finflow.training.on_policy.on_policy_rollouts import Trajectories
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, Stop, latest, train_through


def exact(window: np.ndarray) -> tuple[float, float]:
    """Mean and population deviation in rational arithmetic."""
    values = [Fraction(float(value)) for value in window]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return float(mean), float(variance) ** 0.5


def test_a_million_evictions_at_an_offset_of_1e8_leave_no_drift() -> None:
    """Rewards of deviation 1 around 1e8, among which outliers of 1e12 came and went; doubles there are 1.5e-8 apart."""
    rng = np.random.default_rng(1)
    normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=1000))
    for _ in range(20):
        rewards = 1e8 + rng.normal(size=50_050)
        rewards[rng.integers(0, 49_000, 5)] = 1e12
        normalizer.update(rewards)
    found = normalizer.get_statistics()
    assert found["count"] == 1_001_000
    assert (found["mean"], found["std"]) == pytest.approx(exact(rewards[-1000:]), rel=1e-12)


@pytest.mark.parametrize("shift", [True, False])
def test_after_the_warm_up_a_reward_is_normalised_by_the_formula_and_clipped(shift: bool) -> None:
    normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=10, warmup=3, shift=shift))
    normalizer.update([1.0, 2.0])
    assert (normalizer.apply(2.5), normalizer.denormalize(2.5)) == (2.5, 2.5)
    normalizer.update(3.0)
    expected = (2.5 - 2.0 * shift) / (np.std([1.0, 2.0, 3.0]) + 1e-8)
    assert normalizer.apply(2.5) == pytest.approx(expected, rel=1e-12)
    assert normalizer.apply(np.full(2, 2.5)).tolist() == pytest.approx([expected] * 2, rel=1e-12)
    tensor = normalizer.apply(torch.tensor([2.5]))
    assert (tensor.item(), tensor.dtype) == (pytest.approx(expected, rel=1e-5), torch.float32)
    assert normalizer.denormalize(normalizer.apply(2.5)) == pytest.approx(2.5, rel=1e-12)
    assert (normalizer.apply(1e30), normalizer.apply(-1e30)) == (10.0, -10.0)
    assert np.isnan(normalizer.apply(float("nan")))
    normalizer.reset()
    assert normalizer.get_statistics() == {"mean": 0.0, "std": 0.0, "count": 0, "buffer_size": 0}
    assert normalizer.apply(2.5) == 2.5


def test_what_is_no_reward_never_enters_the_window() -> None:
    normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=10, warmup=0))
    normalizer.update([1.0, float("nan"), float("inf"), -float("inf"), 1e200, 3.0, 5e-324, 1e30])
    found = normalizer.get_statistics()
    assert found["count"] == 4
    expected = exact(np.array([1.0, 3.0, 5e-324, 1e30]))
    assert (found["mean"], found["std"]) == pytest.approx(expected, rel=1e-12)  # sums of doubles round


def test_it_goes_on_exactly_where_it_stopped() -> None:
    first, other = (RewardNormalizer(RewardNormalizerConfig(window_size=20)) for _ in range(2))
    first.update(np.random.default_rng(2).normal(1e6, 1.0, 55))
    tensors, state = first.capture()
    other.restore(tensors, json.loads(json.dumps(state)))
    for one in (first, other):
        one.update(np.linspace(-1.0, 1.0, 13))
    assert first.get_statistics() == other.get_statistics()
    for wrong, fact in (
        ({"window": torch.ones(3)}, {}),
        ({"window": torch.full((3,), torch.nan, dtype=torch.float64)}, {}),
        ({"moments": torch.full((4,), torch.inf, dtype=torch.float64)}, {}),
        ({"moments": torch.ones(3, dtype=torch.float64)}, {}),
        ({}, {"count": 2}),
        ({}, {"count": "3"}),
        ({}, {"since": -1}),
    ):
        with pytest.raises(ValueError):
            other.restore(tensors | wrong, state | fact)


@given(st.lists(st.floats(-100.0, 100.0), min_size=1, max_size=40), st.integers(2, 12))
def test_the_public_normaliser_is_in_units_of_its_window(rewards: list[float], size: int) -> None:
    normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=size, clip_range=(-3.0, 10.0), warmup=0))
    for count, reward in enumerate(rewards, start=1):
        window = np.array(rewards[max(0, count - size) : count])
        expected = np.clip((reward - window.mean()) / (window.std() + 1e-8), -3.0, 10.0)
        normalised = normalizer.normalize(reward)
        if window.std() > 1e-6:
            assert normalised == pytest.approx(expected, rel=1e-6, abs=1e-6)
    statistics = normalizer.get_statistics()
    assert statistics["count"] == len(rewards)
    assert statistics["buffer_size"] == min(len(rewards), size)
    assert statistics["mean"] == pytest.approx(np.mean(rewards[-size:]), abs=1e-9)


def test_a_batch_is_normalised_by_the_window_after_it() -> None:
    """Equal rewards are zero with the mean subtracted, and unchanged without."""
    rewards = np.array([[1.0, 2.0], [3.0, 4.0]])
    units = RewardNormalizer(RewardNormalizerConfig(warmup=4)).normalize_batch(rewards)
    np.testing.assert_allclose(units, (rewards - 2.5) / np.sqrt(1.25), atol=1e-7)
    assert RewardNormalizer().normalize_batch([1.0] * 30).tolist() == [0.0] * 30
    kept = RewardNormalizer(RewardNormalizerConfig(shift=False)).normalize_batch([1.0] * 30)
    np.testing.assert_allclose(kept, 1.0)


def test_a_task_s_scale_is_that_of_stable_baselines3() -> None:
    """Its moments begin with 1e-4 of a return of mean 0 and variance 1, which after 600 returns is a share of 2e-7."""
    rng, theirs, gamma = np.random.default_rng(3), RunningMeanStd(shape=()), 0.9
    rewards, ended = rng.normal(2.0, 1.0, (200, 3)), rng.random((200, 3)) < 0.1
    returns = np.zeros(3)
    for step in range(200):
        returns = returns * gamma + rewards[step]
        theirs.update(returns)
        returns[ended[step]] = 0.0
    nothing = torch.empty(0)
    taken = Trajectories((), (), nothing, nothing, nothing, torch.from_numpy(ended), rewards, np.ones_like(ended))
    running, scale = np.zeros(3), ReturnScale(RewardNormalizerConfig())
    parts = [taken._replace(rewards=rewards[rows], ended=taken.ended[rows]) for rows in (slice(0, 80), slice(80, 200))]
    units = [scale.normalize_batch(one.rewards, one.discounted_returns(running, gamma)) for one in parts]
    np.testing.assert_allclose(running, returns)
    np.testing.assert_allclose(units[1], rewards[80:] / np.sqrt(theirs.var + 1e-8), rtol=1e-5)
    first = ReturnScale(RewardNormalizerConfig())
    np.testing.assert_array_equal(first.normalize_batch(rewards[:9], rewards[:9]), rewards[:9])  # the warm-up


def test_presets_of_the_normaliser() -> None:
    assert RewardNormalizerConfig.preset("stable") == RewardNormalizerConfig(
        5000, clip_range=(-5.0, 5.0), form="windowed"
    )
    assert RewardNormalizerConfig.preset("fast") == RewardNormalizerConfig(
        500, clip_range=(-10.0, 10.0), form="windowed"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: RewardNormalizerConfig(window_size=1),
        lambda: RewardNormalizerConfig(clip_range=(1.0, -1.0)),
        lambda: RewardNormalizerConfig(warmup=-1),
        lambda: RewardNormalizerConfig(form="window"),  # type: ignore[arg-type]
        lambda: RewardNormalizerConfig.preset("slow"),
        lambda: schedule_of("steep", 0.1, 0.01, 5),
        lambda: schedule_of("linear", 0.0, 0.01, 5),
        lambda: schedule_of("linear", 0.1, math.inf, 5),
        lambda: schedule_of("linear", 0.1, 0.01, 0),
        lambda: EntropyScheduleConfig.preset("slow"),
    ],
)
def test_settings_that_make_none_are_refused_in_one_line(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert "\n" not in str(error.value)


def test_training_samples_normalised_rewards_and_stores_raw_ones_and_resumes_exactly(
    tiny: Make, stop_training: Stop
) -> None:
    keys = {
        "train__reward_normalization__enabled": True,
        "train__reward_normalization__window_size": 120,
        "bcell__calibration": "returns",
    }
    trainer = FinFlowTrainer(tiny(**keys))
    trainer.train_iql()
    state, data = trainer._begin().state, trainer.collect_offline_data()
    normalizer = state.reward_normalizer
    assert normalizer is not None
    units = RewardUnits.of(trainer.training_data.process, data.reward_scale, "equal-weight", torch.device("cpu"))
    places = np.linspace(0, len(data) - 1, 120).astype(int)
    scaled = units.scaled(torch.from_numpy(data.reward[places]).double(), torch.from_numpy(data.bar[places]).long())
    offline = normalizer.get_statistics()
    assert offline["mean"] == pytest.approx(float(scaled.mean()), abs=1e-6)
    assert offline["count"] == 120
    trainer.finetune()
    assert state.learners is not None
    replay, online = state.learners.everyone[0].replay, normalizer.get_statistics()
    assert online["count"] == 120 + replay.written
    last = replay.rows((replay.written - 120 + torch.arange(120)) % replay.places)
    mean = float(units.scaled(last["reward"].double(), last["bar"]).mean())
    assert online["mean"] == pytest.approx(mean, abs=1e-5)  # the replay's are raw, float32

    market = trainer._begin().training_data
    tensors = MarketTensors.of(market.process, torch.device("cpu"))
    rows = replay.rows(torch.arange(16))
    raw = make_batch(rows, tensors, units)
    normalised = make_batch(rows, tensors, units._replace(normalizer=normalizer))
    expected = (raw.rewards - online["mean"]) / online["std"]
    torch.testing.assert_close(normalised.rewards, expected.float(), rtol=1e-4, atol=1e-5)

    stopped = stop_training(tiny(**keys), 14 + 5 + 9)
    resumed = train_through(tiny(**keys), resume=stopped.run_folder)
    assert latest(resumed).read_bytes() == latest(trainer).read_bytes()


# --- schedules


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
