"""The advanced trainer: learning, statistics, rollback of a poisoned loop, and a resume that is bitwise the same."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.nn.utils import parameters_to_vector

from finflow import (
    AdvancedPPOTrainer,
    CheckpointConfig,
    EntropyScheduleConfig,
    RewardNormalizerConfig,
    train_advanced_ppo,
)
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.errors import CheckpointError, ConfigError, TrainingError
from tests.training.on_policy.on_policy_tasks import CountingTask, FollowTask

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "policy-optimisation.md").read_text("utf-8")


def carts(count: int = 4) -> Any:
    """CartPole, several at once."""
    return SyncVectorEnv([lambda: gym.make("CartPole-v1")] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def follow(count: int = 4) -> Any:
    return SyncVectorEnv([FollowTask] * count, autoreset_mode=AutoresetMode.SAME_STEP)


def parameters(trainer: AdvancedPPOTrainer) -> torch.Tensor:
    return parameters_to_vector(trainer.agent.parameters()).detach()


@pytest.mark.learning
@pytest.mark.parametrize(
    ("rewards", "seed"), [(None, 0), (RewardNormalizerConfig(), 1)], ids=["as they are", "normalised"]
)
def test_cartpole_is_solved_in_20_000_steps(rewards: RewardNormalizerConfig | None, seed: int) -> None:
    """The greedy policy reaches 475 of 500 in episodes that were not trained on; a random one reaches about 22."""
    trainer = train_advanced_ppo(gym.make("CartPole-v1"), 10, 2000, reward_config=rewards, seed=seed)
    env = carts(20)
    observations, _ = env.reset(seed=10_000)
    returns, over = np.zeros(20), np.zeros(20, np.bool_)
    while not over.all():
        observations, earned, terminated, truncated, _ = env.step(trainer.act(observations))
        returns += earned * ~over
        over |= terminated | truncated
    assert returns.mean() >= 475.0


@pytest.mark.parametrize("algorithm", ["ppo", "ppo-kl", "trpo", "a2c", "reinforce"])
def test_statistics_are_those_that_are_promised(algorithm: str) -> None:
    trainer = AdvancedPPOTrainer(4, 2, 3e-4, settings=OnPolicySettings.of(algorithm))
    assert trainer.collect_rollout(carts(), n_steps=256) == 1.0
    found = trainer.train_step(batch_size=64) if algorithm == "ppo" else trainer.train_step()
    assert {"policy_loss", "current_entropy_coef", "reward_normalizer_mean", "rollback_count"} <= set(found)
    statistics = trainer.get_full_statistics()
    assert statistics["training_step"] == 1
    assert statistics["episode_count"] > 0
    assert statistics["entropy.progress"] == statistics["entropy"]["progress"]
    assert {"checkpoint.best_reward", "reward_normalizer.mean", "checkpoint.rollback_count"} <= set(statistics)


def test_returns_are_those_of_whole_episodes() -> None:
    trainer = AdvancedPPOTrainer(2, 2)
    env = SyncVectorEnv([lambda: CountingTask(3), lambda: CountingTask(4)])
    for _ in range(2):  # rollouts cut episodes
        trainer.collect_rollout(env, n_steps=10)
    assert set(trainer.progress.learning.returns) == {3.0, 4.0}


def test_the_entropy_coefficient_follows_its_schedule_and_rewards_their_settings() -> None:
    schedule = EntropyScheduleConfig(initial_entropy=0.02, final_entropy=0.01, decay_steps=80)
    windowed = RewardNormalizerConfig(window_size=500, shift=False, form="windowed")
    trainer = AdvancedPPOTrainer(3, 2, 1e-3, schedule, windowed)
    trainer.collect_rollout(follow(), n_steps=256)
    found = trainer.train_step(n_epochs=10, batch_size=64)
    assert found["current_entropy_coef"] == pytest.approx(0.015)
    assert found["reward_normalizer_mean"] < 0.0
    assert trainer.get_full_statistics()["reward_normalizer.count"] == 256


def trained(kind: str) -> tuple[list[float], float]:
    """Returns of the last 60 episodes, and the rollbacks.

    Iterations 6 and 11 are spoiled: by learning rates times a thousand, or rewards that are no numbers.
    """
    env, rows = follow(), list[dict[str, Any]]()

    def watch(trainer: AdvancedPPOTrainer, row: dict[str, Any]) -> None:
        rows.append(row)
        now = row["iteration"] in (6, 11)
        for group in trainer.optimizer.param_groups if now and kind == "rates" else ():
            group["lr"] *= 1000.0
        for one in env.envs if kind == "rewards" else ():
            one.poisoned = now

    trainer = train_advanced_ppo(env, 48, 256, lr=8e-3, seed=0, watch=watch)
    return trainer.progress.learning.returns[-60:], rows[-1]["rollback_count"]


@pytest.fixture(scope="module")
def undisturbed() -> list[float]:
    return trained("none")[0]


@pytest.mark.learning
@pytest.mark.parametrize("kind", ["rates", "rewards"])
def test_a_poisoned_loop_ends_where_an_undisturbed_one_does(kind: str, undisturbed: list[float]) -> None:
    poisoned, rollbacks = trained(kind)
    assert rollbacks >= 2
    assert np.mean(poisoned) >= np.mean(undisturbed) - np.std(undisturbed, ddof=1)


def test_poison_that_does_not_end_stops_the_training() -> None:
    env = FollowTask()
    env.poisoned = True
    with pytest.raises(TrainingError, match="rollbacks have not helped"):
        train_advanced_ppo(env, 20, 64)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize("algorithm", ["ppo", "ppo-kl", "trpo"])
def test_a_training_killed_at_any_moment_resumes_bitwise(algorithm: str, tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"

    def swing_up(folder: Path, iterations: int) -> None:
        settings, pendulum = OnPolicySettings.of(algorithm, epochs=2), gym.make("Pendulum-v1")
        train_advanced_ppo(pendulum, iterations, 128, settings=settings, folder=folder, save_every=2, resume=True)

    process = multiprocessing.get_context("fork").Process(target=swing_up, args=(killed, 10_000))
    process.start()
    latest = killed / "checkpoint_latest.safetensors"
    deadline = time.monotonic() + 60
    while not latest.is_file() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    process.join()
    done = [json.loads(line)["iteration"] for line in (killed / "metrics.jsonl").read_text().splitlines()]
    goal = done[-1] + 4
    for folder in (killed, whole):
        swing_up(folder, goal)
    for name in ("metrics.jsonl", "checkpoint_latest.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda: AdvancedPPOTrainer(5, 2).collect_rollout(carts()), "state_dim is 5, and the environment has 4"),
        (lambda: AdvancedPPOTrainer(4, 3).collect_rollout(carts()), "action_dim is 3, and the environment has 2"),
        (lambda: AdvancedPPOTrainer(4, 2).train_step(), "no rollout to learn from"),
        (
            lambda: train_advanced_ppo(carts(), 2, 32, folder=Path("run")),
            "a rollout of 32 decisions is shorter than a minibatch of 64",
        ),
        (lambda: train_advanced_ppo(carts(), 0, folder=Path("run")), "n_iterations"),
        (
            lambda: train_advanced_ppo(carts(), 2, 64, folder="run", checkpoint_config=CheckpointConfig("./run")),
            "folder and checkpoint_dir are both run",
        ),
        (lambda: begun().act(np.zeros((7, 4), np.float32)), "observations have the shape"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(
    use: Callable[[], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        use()
    assert list(tmp_path.iterdir()) == []


def begun() -> AdvancedPPOTrainer:
    """A trainer that has begun, and decides by its policy's modes."""
    trainer = AdvancedPPOTrainer(3, 2)
    trainer.begin(follow())
    assert trainer.act(np.zeros((7, 3), np.float32)).shape == (7, 2)
    return trainer


@pytest.mark.parametrize("program", re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
def test_the_programs_on_the_page_run(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are written, but for fewer rollouts."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    program = program.replace("n_iterations=50", "n_iterations=2").replace("range(10)", "range(1)")
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of the networks of the page's own loop
        exec(compile(program, "policy-optimisation.md", "exec"), names)
    if "manager" in names:
        assert names["manager"].get_statistics()["num_checkpoints"] >= 3
    else:
        assert names["trainer"].get_full_statistics()["training_step"] >= 1
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path: Path) -> None:
    train_advanced_ppo(carts(), 1, 64, folder=tmp_path)
    with pytest.raises(CheckpointError, match="of another trainer"):
        train_advanced_ppo(carts(), 2, 64, seed=9, folder=tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="of another trainer"):
        train_advanced_ppo(follow(), 2, 64, folder=tmp_path, resume=True)
