"""The names of on-policy training as people type them from memory; each test names a mutant that it fails on."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from finflow import (
    PPO_PRESETS,
    AdvancedPPOTrainer,
    CheckpointConfig,
    CheckpointManager,
    CheckpointMetrics,
    EntropyScheduleConfig,
    EntropyScheduler,
    RewardNormalizer,
    RewardNormalizerConfig,
    train_advanced_ppo,
)
from finflow.errors import CheckpointError, ConfigError
from finflow.tensor_file import read_tensors

# --- the entropy schedule


def schedule(kind: Any, steps: int = 100) -> EntropyScheduler:
    return EntropyScheduler(EntropyScheduleConfig(0.01, 0.001, steps, kind))


def test_a_linear_schedule_is_half_way_at_half_time() -> None:
    """Mutant: progress is of the steps that remain."""
    assert schedule("linear").step(25) == pytest.approx(0.01 - 0.009 * 0.25)


def test_a_cosine_schedule_is_slow_at_its_ends() -> None:
    """Mutant: cos(2 pi p)."""
    assert schedule("cosine").step(25) == pytest.approx(0.001 + 0.0045 * (1.0 + math.cos(math.pi / 4.0)))


def test_an_exponential_schedule_falls_by_equal_shares() -> None:
    """Mutant: the logarithm of i / f."""
    assert schedule("exponential").step(50) == pytest.approx(math.sqrt(0.01 * 0.001))


@pytest.mark.parametrize("kind", ["linear", "cosine", "exponential"])
def test_a_schedule_holds_its_final_value(kind: str) -> None:
    """Mutant: progress is not bounded by 1."""
    scheduler = schedule(kind, steps=10)
    assert [scheduler.step(10), scheduler.step(90)] == [0.001, 0.001]
    assert scheduler.get_info() == {"progress": 1.0, "current_entropy": 0.001, "remaining_steps": 0}


def test_a_schedule_tells_where_it_is_and_begins_again() -> None:
    """Mutant: reset leaves the steps that were taken."""
    scheduler = EntropyScheduler()
    for _ in range(1000):
        scheduler.step()
    info = scheduler.get_info()
    assert (info["progress"], info["remaining_steps"]) == (0.01, 99_000)
    assert info["current_entropy"] == pytest.approx(0.01 - 0.009 * 0.01)
    scheduler.reset()
    assert scheduler.get_info()["current_entropy"] == 0.01


# --- the reward normaliser


def test_rewards_stay_as_they_are_until_thirty_were_seen() -> None:
    """Mutant: no warm-up, by which the first reward, 5.0, becomes 0.0."""
    normalizer = RewardNormalizer(RewardNormalizerConfig())
    assert [normalizer.normalize(5.0 + n) for n in range(29)] == [5.0 + n for n in range(29)]
    assert abs(normalizer.normalize(5.0)) < 2.0


def test_normalised_rewards_have_mean_0_and_deviation_1() -> None:
    """Mutant: divided by the variance."""
    normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=1000, epsilon=1e-8, clip_range=(-10.0, 10.0)))
    units = normalizer.normalize_batch(np.random.default_rng(0).normal(3.0, 0.2, 1000))
    assert (units.mean(), units.std()) == pytest.approx((0.0, 1.0), abs=1e-6)


def test_only_the_window_counts() -> None:
    """Mutant: the window keeps every reward."""
    normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=50))
    normalizer.normalize_batch(np.full(500, 1e6))
    normalizer.normalize_batch(np.tile([1.0, 3.0], 25))
    statistics = normalizer.get_statistics()
    assert (statistics["mean"], statistics["std"]) == pytest.approx((2.0, 1.0))
    assert (statistics["count"], statistics["buffer_size"]) == (550, 50)


def test_an_absurd_reward_is_clipped() -> None:
    """Mutant: no clipping."""
    normalizer = RewardNormalizer(RewardNormalizerConfig(window_size=1000, warmup=30))
    normalizer.normalize_batch(np.random.default_rng(1).normal(size=900))
    assert (normalizer.normalize(1e3), normalizer.normalize(-1e9)) == (10.0, -10.0)


def test_one_by_one_is_as_a_batch_and_large_rewards_lose_no_digit() -> None:
    """Mutant: the squares are summed about zero."""
    rewards = 1e9 + np.random.default_rng(2).normal(size=200)
    single, batch = RewardNormalizer(), RewardNormalizer()
    last = [single.normalize(reward) for reward in rewards][-1]
    assert batch.normalize_batch(rewards)[-1] == pytest.approx(last, rel=1e-9)
    assert single.get_statistics()["std"] == pytest.approx(rewards.std(), rel=1e-6)


def test_a_reset_forgets_every_reward() -> None:
    """Mutant: reset keeps the count, and with it the end of the warm-up."""
    normalizer = RewardNormalizer()
    normalizer.normalize_batch(np.arange(100.0))
    normalizer.reset()
    assert normalizer.get_statistics() == {"mean": 0.0, "std": 0.0, "count": 0, "buffer_size": 0}
    assert normalizer.normalize(7.0) == 7.0


# --- the checkpoint manager


class Loop:
    """A loop of one's own: it saves when that is due, then checks, then goes back where it must."""

    def __init__(self, **settings: Any) -> None:
        self.manager = CheckpointManager(CheckpointConfig(**({"checkpoint_dir": None} | settings)))
        self.network = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1000)
        self.went_back_to: list[int] = []

    def set(self, value: float) -> None:
        with torch.no_grad():
            self.network.weight.fill_(value)

    @property
    def finite(self) -> bool:
        return bool(self.network.weight.isfinite().all())

    def run(self, last: int, faults: dict[int, dict[str, float]], first: int = 0) -> None:
        """Weights are the step that they were learned at; a fault gives other figures, and weights that are NaN."""
        for step in range(first, last + 1):
            fault = faults.get(step, {})
            self.set(math.nan if fault.get("policy_loss", 0.0) != fault.get("policy_loss", 0.0) else float(step))
            now = metrics(step, **fault)
            if self.manager.should_save_checkpoint(step):
                self.manager.save_checkpoint(step, self.network, self.optimizer, self.scheduler, now)
            should, reason = self.manager.should_rollback(now)
            if should:
                back = self.manager.rollback(self.network, self.optimizer, self.scheduler, reason=reason)
                self.went_back_to.append(back)


def metrics(step: int, **changes: float) -> CheckpointMetrics:
    usual = {"policy_loss": 0.2, "value_loss": 0.8, "kl_divergence": 0.01, "mean_reward": 10.0}
    return CheckpointMetrics(step, time.time(), explained_variance=0.5, entropy=1.0, **(usual | changes))


NAN, KL = {"policy_loss": math.nan}, {"kl_divergence": 0.5}


@pytest.mark.parametrize("fault", [NAN, KL])
def test_a_fault_at_a_step_that_is_saved_is_not_gone_back_to(fault: dict[str, float]) -> None:
    """Mutant: a checkpoint is healthy as soon as it is saved, by which the fault itself is restored."""
    loop = Loop()
    loop.run(200, {200: fault})
    assert (loop.went_back_to, loop.finite, loop.network.weight.item()) == ([100], True, 100.0)


def test_separate_faults_go_back_to_the_newest_checkpoint_before_each() -> None:
    """Mutant: a second rollback takes an older one although checks have passed since the first."""
    loop = Loop()
    loop.run(700, {430: KL, 560: KL, 640: KL})
    assert loop.went_back_to == [400, 500, 600]
    assert loop.manager.get_statistics()["last_rollback_step"] == 640


def test_a_fault_that_comes_again_at_once_goes_further_back() -> None:
    """Mutant: the checkpoint that did not help is taken again."""
    loop = Loop()
    loop.run(432, {430: KL, 431: KL, 432: KL})
    assert loop.went_back_to == [400, 300, 200]


def test_each_threshold_is_compared_as_it_is_written() -> None:
    """Mutant: the value loss alone is compared, or a limit is another multiple."""
    for beyond, within in (
        ({"kl_divergence": 0.101}, {"kl_divergence": 0.099}),
        ({"policy_loss": 2.21}, {"policy_loss": 2.19}),  # with a value loss of 0.8: 3 times the usual 1.0
        ({"mean_reward": 4.99}, {"mean_reward": 5.01}),
    ):
        for changes, expected in ((beyond, True), (within, False)):
            manager = CheckpointManager(CheckpointConfig(None))
            for step in range(10):
                assert manager.should_rollback(metrics(step)) == (False, "")
            assert manager.should_rollback(metrics(10, **changes))[0] is expected


def test_checkpoints_are_files_of_which_the_best_and_the_newest_stay(tmp_path: Path) -> None:
    """Mutant: a discarded checkpoint stays on the disk, as the latest or as the best."""
    loop = Loop(checkpoint_dir=tmp_path, max_checkpoints=2)
    rewards = {step: {"mean_reward": 20.0 if step == 100 else 10.0 + step / 1000} for step in range(501)}
    loop.run(500, rewards | {500: KL | {"mean_reward": 99.0}})
    names = sorted(path.stem.removeprefix("checkpoint_") for path in tmp_path.iterdir())
    assert names == ["000000400", "best", "latest"]
    steps = {name: read_tensors(tmp_path / f"checkpoint_{name}.safetensors")[1]["step"] for name in names}
    assert steps == {"000000400": 400, "best": 100, "latest": 400}
    assert loop.manager.load_best_checkpoint(loop.network) == 100


def test_statistics_have_the_five_keys_and_presets_their_values() -> None:
    """Mutant: the presets' intervals are exchanged, or a sixth key is told."""
    loop = Loop(max_checkpoints=2)
    loop.run(330, {330: KL})
    assert loop.manager.get_statistics() == {
        "num_checkpoints": 3,
        "best_checkpoint_step": 0,
        "best_reward": 10.0,
        "rollback_count": 1,
        "last_rollback_step": 330,
    }
    given = CheckpointConfig("d", 100, 5, 0.1, 3.0, 0.5, 10)
    assert given == CheckpointConfig("d") == CheckpointConfig.preset("standard", "d")
    assert CheckpointConfig.preset("conservative", "d") == CheckpointConfig("d", 50, 10, 0.05, 2.0, 0.7)
    assert CheckpointConfig.preset("aggressive", "d") == CheckpointConfig("d", 200, 3, 0.15, 5.0, 0.3)


def test_former_names_and_wrong_settings_are_one_line_that_says_what_to_write() -> None:
    """Mutant: they end in a TypeError."""
    wrong: list[tuple[Any, str]] = [
        (lambda: CheckpointMetrics(loss=1.0, reward=2.0), "has no loss: write policy_loss and value_loss"),  # type: ignore[call-arg]
        (lambda: CheckpointMetrics(kl=1.0), "has no kl: write kl_divergence"),  # type: ignore[call-arg]
        (lambda: CheckpointManager(folder="d"), r"no folder: write .*CheckpointConfig\(checkpoint_dir="),  # type: ignore[call-arg]
        (lambda: CheckpointConfig("d", loss_spike=2.0), "has no loss_spike: write rollback_on_loss_spike_factor"),  # type: ignore[call-arg]
        (lambda: CheckpointConfig("d", rollback_on_loss_spike_factor=0.5), "rollback_on_loss_spike_factor .* 0.5"),
        (lambda: CheckpointConfig.preset("careful", "d"), "conservative, standard or aggressive, not 'careful'"),
        (lambda: CheckpointManager("d"), "takes CheckpointConfig"),  # type: ignore[arg-type]
    ]
    for make, words in wrong:
        with pytest.raises(ConfigError, match=words):
            make()
    loop = Loop()
    with pytest.raises(CheckpointError, match="no healthy checkpoint to go back to"):
        loop.manager.rollback(loop.network, loop.optimizer, loop.scheduler, reason="none was saved")


# --- the whole


def test_a_trainer_learns_and_tells_its_statistics(tmp_path: Path) -> None:
    """Mutant: the coefficient is not that of the schedule."""
    env = gym.make("CartPole-v1")
    trainer = AdvancedPPOTrainer(
        state_dim=4,
        action_dim=2,
        lr=3e-4,
        entropy_config=EntropyScheduleConfig(0.02, 0.01, 40),
        reward_config=RewardNormalizerConfig(),
        checkpoint_config=CheckpointConfig(tmp_path, save_interval=10),
    )
    before = [parameter.clone() for parameter in trainer.begin(env) and trainer.agent.parameters()]
    assert trainer.collect_rollout(env, n_steps=128) == 1.0
    told = trainer.train_step(n_epochs=10, batch_size=64)
    assert told["current_entropy_coef"] == pytest.approx(0.015)
    assert any(not torch.equal(old, new) for old, new in zip(before, trainer.agent.parameters(), strict=True))
    statistics = trainer.get_full_statistics()
    assert (statistics["training_step"], statistics["entropy.progress"]) == (1, 0.5)
    assert {"reward_normalizer.mean", "checkpoint.best_reward", "checkpoint.rollback_count"} <= statistics.keys()
    assert (tmp_path / "checkpoint_latest.safetensors").is_file()


def test_a_constant_reward_is_not_normalised_away() -> None:
    """Mutant: the mean is subtracted, by which CartPole's rewards, all 1, become 0."""
    env = gym.make("CartPole-v1")
    for config, largest in ((None, 1.0), (RewardNormalizerConfig(), 0.5)):
        trainer = AdvancedPPOTrainer(4, 2, reward_config=config)
        trainer.collect_rollout(env, n_steps=256)
        assert trainer._rollout is not None
        returns = trainer._rollout.returns - trainer._rollout.values  # advantages: of rewards that are 0 about 0
        assert returns.abs().max() > largest
    with pytest.warns(UserWarning, match="a constant reward vanishes"):
        AdvancedPPOTrainer(4, 2, reward_config=RewardNormalizerConfig(form="windowed"))
    with pytest.raises(ConfigError, match='add form="windowed"'):
        AdvancedPPOTrainer(4, 2, reward_config=RewardNormalizerConfig(window_size=500))


def test_a_training_is_one_call_and_a_task_has_its_preset() -> None:
    """Mutant: the name of a preset is not looked up."""
    trainer = train_advanced_ppo(gym.make("CartPole-v1"), n_iterations=2, n_ppo_epochs=4, batch_size=32, lr=1e-3)
    assert trainer.get_full_statistics()["decisions"] == 2 * 2048
    env = gym.make("CartPole-v1")
    trainer = train_advanced_ppo(env, n_iterations=2, settings="CartPole-v1")
    assert trainer.get_full_statistics()["decisions"] == 2 * 128
    assert (trainer.settings.learning_rate, trainer.settings.clip) == (3e-4, 0.2)
    assert AdvancedPPOTrainer(4, 2, settings=PPO_PRESETS["Atari"]).settings.clip == 0.1
    with pytest.raises(ConfigError, match="there are CartPole-v1, LunarLander-v3, Atari, MuJoCo"):
        AdvancedPPOTrainer(4, 2, settings="Pong")
