"""Box tasks of gymnasium: learners solve what others have solved, and IQL beats the data that it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.learners.offline_learner import IQL, BehaviourCloning, Networks, OfflineLearner
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.config import BCellConfig, load_config
from finflow.errors import EvidenceError
from scripts.evidence import on_policy_tasks
from scripts.evidence.on_policy_tasks import TASKS, measure_task, on_policy_table, on_policy_variants, train_peers
from tests.agent.box_task import (
    BoxCritic,
    BoxPolicy,
    BoxValue,
    SquashedNormal,
    box_agent,
    box_batch,
    box_states,
    uniform_proposals,
)
from tests.agent.box_tasks import (
    HELD_OUT_SEED,
    PENDULUM_GOAL,
    PENDULUM_RANDOM_STEPS,
    BoxReplay,
    IdentityTask,
    box_of,
    learn,
    pendulum,
    rescaled,
    returns,
    small_config,
)

STEPS = 3000  # after 1,800 what is learned depends on the order of sums: -163 and -666 were seen


@pytest.mark.parametrize(("location", "scale"), [(0.0, 0.5), (-0.7, 1.2)])
def test_the_density_of_the_squashed_normal_integrates_to_one(location: float, scale: float) -> None:
    # noise on a fine grid: where it lands, and the density there
    noise = torch.linspace(-9.0, 9.0, 40_001, dtype=torch.float64).view(1, -1, 1)
    parameters = (torch.full((1, 1), value, dtype=torch.float64) for value in (location, math.log(scale)))
    actions, log_density = SquashedNormal(*parameters).sample(noise)
    assert torch.trapezoid(log_density[0].exp(), actions[0, :, 0]).item() == pytest.approx(1.0, abs=1e-6)


def test_densities_of_actions_at_the_bound_are_finite() -> None:
    actions, log_density = SquashedNormal(torch.full((1, 2), 40.0), torch.zeros(1, 2)).sample(torch.zeros(1, 1, 2))
    assert actions.tolist() == [[[1.0, 1.0]]]
    assert torch.isfinite(log_density).all()


def test_target_entropy_of_a_share_of_one_is_that_of_the_uniform_law() -> None:
    generator = torch.Generator().manual_seed(0)
    agent = box_agent(3, 2, BCellConfig(hidden_dim=16), generator, torch.device("cpu"))
    assert agent.policy.target_entropy(1.0, 2) == pytest.approx(2 * math.log(2.0))
    assert agent.policy.target_entropy(math.exp(-1.0) / 2.0, 2) == pytest.approx(-2.0)  # the usual one
    assert uniform_proposals(5, 3, 2, generator).log_density.unique().item() == pytest.approx(-2 * math.log(2.0))


def test_the_identity_task_is_solved_in_four_hundred_steps() -> None:
    # within 0.2 of the observation, where the test of Stable-Baselines3 asks for 0.5 and ninety of a hundred
    player = learn(IdentityTask(), small_config(gamma=0.95, tau=0.01), 400, seed=0)
    assert returns(IdentityTask(), player, 20, HELD_OUT_SEED).mean() > 90.0
    assert returns(IdentityTask(), learn(IdentityTask(), small_config(), 100, seed=0), 20, HELD_OUT_SEED).mean() < 60.0


@pytest.mark.learning
@pytest.mark.timeout(240)
def test_the_pendulum_is_swung_up_and_held() -> None:
    player = learn(pendulum(), small_config(), STEPS, seed=1, random_steps=PENDULUM_RANDOM_STEPS)
    # the usual goal of SAC, after 20,000 steps, is -200; a pendulum that hangs is at -1,200; seen: -169 (seed 0: -133)
    assert returns(pendulum(), player, 20, HELD_OUT_SEED).mean() >= 2.0 * PENDULUM_GOAL


def test_the_identity_task_pays_for_equal_actions_only() -> None:
    task = IdentityTask(tolerance=0.2)
    shown, _ = task.reset(seed=3)
    shown, right, terminated, truncated, _ = task.step(shown + 0.19)
    _, wrong, _, _, _ = task.step(shown - 0.21)
    assert (right, wrong, terminated, truncated) == (1.0, 0.0, False, False)
    assert [task.step(shown)[3] for _ in range(98)].count(True) == 1


class EndsAtOnce(gym.Env[Any, Any]):
    """Every other episode ends by termination, the others by truncation."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Box(np.array([1.0], np.float32), np.array([3.0], np.float32))
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        ends = self.episodes % 2 == 0
        return np.ones(1, np.float32), 1.0, ends, not ends, {}


def test_truncation_is_no_termination_and_actions_are_those_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[bool, float]] = []
    add = BoxReplay.add
    monkeypatch.setattr(
        BoxReplay,
        "add",
        lambda self, *row: (kept.append((row[3], float(row[4][0]))), add(self, *row)),  # type: ignore[func-returns-value]
    )
    learn(EndsAtOnce(), small_config(), 6, seed=0, random_steps=5, batch_size=4)
    assert kept == [(False, 1.0), (True, 1.0)] * 3  # the observation that ended it, not the next episode's first
    assert rescaled(torch.tensor([-1.0]), box_of(EndsAtOnce())).tolist() == [1.0]


# --- offline: Pendulum-v1, from data of a mixed lot of controllers

HIDDEN, BATCH, UPDATES = 64, 128, 1200
SCALE = torch.tensor([1.0, 1.0, 8.0])  # of the observations: the angle's cosine and sine, and the speed
TORQUE = 2.0
# Rewards are in deviations, so advantages are of several units and the temperature is under one.
CONFIG = BCellConfig(
    hidden_dim=HIDDEN,
    n_quantiles=1,
    actor_lr=3e-3,
    critic_lr=3e-3,
    tau=0.04,
    gamma=0.95,
    iql_temperature=0.3,
    iql_extraction="awr",
)
Decide = Callable[[NDArray[Any]], NDArray[Any]]


def play(decide: Decide, episodes: int, seed: int) -> tuple[NDArray[np.float64], tuple[Tensor, ...]]:
    """Returns of whole episodes, and their transitions; actions in -1..1."""
    env = gym.make_vec("Pendulum-v1", num_envs=episodes, vectorization_mode="sync")
    observation, _ = env.reset(seed=seed)
    total, rows = np.zeros(episodes), []
    for _ in range(200):
        action = decide(observation)
        following, reward, terminated, _, _ = env.step(TORQUE * action)
        rows.append((observation, action, reward, terminated, following))
        total += reward
        observation = following
    columns = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return total, tuple(torch.as_tensor(column, dtype=torch.float32) for column in columns)


def mixed_lot(seed: int, episodes: int) -> Decide:
    """Swing up by energy and hold by position and speed; a tenth to nine tenths of the torques are random."""
    rng = np.random.default_rng(seed)
    share = np.repeat([0.1, 0.5, 0.9], [episodes // 4, episodes // 2, episodes // 4])

    def decide(observation: NDArray[Any]) -> NDArray[Any]:
        cosine, sine, speed = observation.T
        energy = speed**2 / 6.0 + 5.0 * (cosine - 1.0)
        swing, hold = -np.sign(speed) * energy, -(10.0 * np.arctan2(sine, cosine) + 2.0 * speed)
        torque = np.where(cosine > 0.9, hold, swing) / TORQUE + 0.2 * rng.standard_normal(episodes)
        torque = np.where(rng.random(episodes) < share, rng.uniform(-1.0, 1.0, episodes), torque)
        return np.clip(torque, -1.0, 1.0)[:, None].astype(np.float32)

    return decide


def trained(method: type[OfflineLearner], data: tuple[Tensor, ...], seed: int = 0, updates: int = UPDATES) -> Decide:
    """What a learner does after so many updates."""
    observations, actions, rewards, terminated, following = data
    rewards = (rewards - rewards.mean()) / rewards.std()
    generator = torch.Generator().manual_seed(seed)
    policy, value = BoxPolicy(3, 1, HIDDEN, generator), BoxValue(3, HIDDEN, generator)
    parts = Networks(policy, BoxCritic(3, 1, HIDDEN, 1, generator), value)
    learner = method(parts, CONFIG, torch.device("cpu"))
    for update in range(updates):
        rows = torch.randint(len(rewards), (BATCH,), generator=generator)
        batch = box_batch(
            observations[rows] / SCALE, actions[rows], rewards[rows], terminated[rows], following[rows] / SCALE
        )
        learner.update(batch, update / updates, generator)

    @torch.no_grad()
    def decide(observation: NDArray[Any]) -> NDArray[Any]:
        states = box_states(torch.as_tensor(observation, dtype=torch.float32) / SCALE)
        chosen: NDArray[Any] = learner.policy.deterministic(states).clamp(-1.0, 1.0).numpy()
        return chosen

    return decide


@pytest.mark.learning
@pytest.mark.timeout(240)
def test_iql_beats_its_data_and_their_imitation() -> None:
    total, data = play(mixed_lot(0, 40), 40, seed=0)
    learned, imitated = (play(trained(one, data), 40, 100)[0].mean() for one in (IQL, BehaviourCloning))
    assert learned > total.mean()  # of three seeds the mean is -453, and the behaviour's return -586
    assert learned > imitated  # seen: -631


def test_a_training_is_measured_twice_and_its_table_names_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_policy_tasks, "EPISODES", 2)
    monkeypatch.setattr(on_policy_tasks, "LOOKS", 2)
    task = TASKS[0]
    measured = measure_task(replace(task, decisions=2 * task.rollout), load_config(None, {}, environ={}))
    result = measured | {"variant": f"on-policy-{task.key}", "seed": 0}
    assert [decisions for decisions, _, _ in result["curve"]] == [task.rollout, 2 * task.rollout]
    assert result["kl"] > 0.0
    peer = {"variant": "pendulum-ppo", "final": -200.0, "seconds": {"learning": 3.0}, "version": "2.9.2"}
    table = on_policy_table([result], [peer, peer | {"final": -100.0}])
    assert "cartpole-ppo" in table
    assert "-150.0 ± 50.0" in table
    assert "rollouts of 128" in table


def test_every_setting_is_one_that_there_is() -> None:
    assert all(isinstance(task.on_policy(), OnPolicySettings) for task in TASKS)
    assert len({variant.name for variant in on_policy_variants(2)}) == len(TASKS)


def test_a_peer_without_a_result_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"sb3_on_policy\.py ended without a result"):
        train_peers(Path("/bin/false"), 1, tmp_path / "page.json")
    assert not list(tmp_path.iterdir())
