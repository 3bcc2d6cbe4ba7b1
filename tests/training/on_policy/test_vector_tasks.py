"""Ends of episodes under every way of beginning the next, flat observations, and spaces that cannot be."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.agent.on_policy.task_policies import TaskActorCritic
from finflow.errors import ConfigError
from finflow.training.on_policy.task_rollouts import Trajectories, collect_steps, ended_returns, rollout_of
from finflow.training.on_policy.vector_tasks import VectorTask, flat_observations
from tests.training.on_policy.on_policy_tasks import CountingTask, FollowTask

MODES = list(AutoresetMode)


def task_of(mode: AutoresetMode, **options: Any) -> VectorTask:
    """Two counting tasks, the second with longer episodes."""
    makers = [lambda: CountingTask(3, **options), lambda: CountingTask(4, **options)]
    task = VectorTask(SyncVectorEnv(makers, autoreset_mode=mode))
    task.reset(seed=5)
    return task


def agent_of(task: VectorTask) -> TaskActorCritic:
    return TaskActorCritic(
        task.spaces.observations, task.spaces.actions, task.spaces.kind, torch.Generator().manual_seed(1)
    )


def collected_by(mode: AutoresetMode, steps: int, **options: Any) -> tuple[Trajectories, TaskActorCritic]:
    task = task_of(mode, **options)
    agent = agent_of(task)
    return collect_steps(task, agent, steps, torch.Generator().manual_seed(0)), agent


@pytest.mark.parametrize("mode", MODES)
def test_a_step_gives_what_followed_and_the_next_decision_is_in_the_next_episode(mode: AutoresetMode) -> None:
    task = task_of(mode)
    for _ in range(3):
        assert task.observations[0, 0] < 3
        result = task.step(np.zeros(2, np.int64))
    assert result.ended.tolist() == [True, False]
    assert result.following.tolist() == [[3.0, 1.0], [3.0, 1.0]]
    if mode == AutoresetMode.NEXT_STEP:
        result = task.step(np.zeros(2, np.int64))
        assert result.counted.tolist() == [False, True]
    assert task.observations[0].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("terminates", [True, False])
def test_all_modes_give_the_same_advantages(terminates: bool) -> None:
    # the decisions of the first episode of each environment, which are the same under all modes
    settings = OnPolicySettings(gamma=0.9)
    found = []
    for mode in MODES:
        trajectories, agent = collected_by(mode, 12, terminates=terminates)
        rollout = rollout_of(trajectories, agent, settings, lambda rewards: rewards)
        first = rollout.observations[0][:, 1] == 1.0
        order = torch.argsort(rollout.observations[0][first][:, 0], stable=True)
        found.append(rollout.advantages[first][order])
        ends = ended_returns(trajectories, np.zeros(2))
        assert set(ends) == {3.0, 4.0}
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_truncated_episodes_are_bootstrapped_by_their_own_last_observation() -> None:
    settings = OnPolicySettings(gamma=0.9, gae_lambda=0.0)
    for terminates in (True, False):
        trajectories, agent = collected_by(AutoresetMode.SAME_STEP, 3, terminates=terminates)
        rollout = rollout_of(trajectories, agent, settings, lambda rewards: rewards)
        last = agent.value((torch.tensor([[3.0, 1.0]]),)).item()
        before = agent.value((torch.tensor([[2.0, 1.0]]),)).item()
        expected = 1.0 - before + (0.0 if terminates else 0.9 * last)
        assert rollout.advantages[4].item() == pytest.approx(expected, abs=1e-5)


def test_observations_of_several_parts_are_flat_as_gymnasium_has_them() -> None:
    env = SyncVectorEnv([FollowTask, FollowTask])
    shown, _ = env.reset(seed=3)
    space = env.single_observation_space
    rows = [gym.spaces.flatten(space, {name: part[i] for name, part in shown.items()}) for i in range(2)]
    np.testing.assert_array_equal(flat_observations(space, shown, 2), np.stack(rows))
    discrete = gym.spaces.Discrete(4)
    assert flat_observations(discrete, np.array([1, 3]), 2).tolist() == [[0, 1, 0, 0], [0, 0, 0, 1]]


def test_actions_of_a_box_are_held_to_its_bounds_and_discrete_ones_begin_where_the_space_does() -> None:
    task = VectorTask(FollowTask())
    assert task.spaces.bounded(np.array([[-3.0, 0.5]])).tolist() == [[-1.0, 0.5]]
    shifted = CountingTask()
    shifted.action_space = gym.spaces.Discrete(3, start=7)
    assert VectorTask(shifted).spaces.bounded(np.array([0, 2])).tolist() == [7, 9]


def test_finflows_own_environment_is_a_task() -> None:
    from finflow.config import load_config
    from finflow.training.make_env import make_env

    task = VectorTask(make_env(load_config("configs/demo.yaml", {}, environ={}), num_envs=3))
    task.reset(seed=0)
    trajectories = collect_steps(task, agent_of(task), 6, torch.Generator().manual_seed(0))
    assert trajectories.finite
    assert task.spaces.kind == "box"


@pytest.mark.parametrize("space", [gym.spaces.MultiBinary(3), gym.spaces.Box(-1.0, 1.0, (2, 2))])
def test_an_action_space_that_is_neither_is_one_line(space: gym.Space[Any]) -> None:
    env = CountingTask()
    env.action_space = space  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="has to be Discrete or a Box of one dimension"):
        VectorTask(env)


def test_what_is_no_environment_is_one_line() -> None:
    with pytest.raises(ConfigError, match="a gymnasium Env or VectorEnv, not str"):
        VectorTask("CartPole-v1")  # type: ignore[arg-type]
