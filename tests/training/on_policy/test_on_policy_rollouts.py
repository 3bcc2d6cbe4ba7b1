"""Ends of episodes under every way of beginning the next, flat observations, and spaces that cannot be."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from finflow.agent.on_policy.on_policy_settings import OnPolicySettings, TaskActorCritic
from finflow.config import load_config
from finflow.errors import ConfigError
from finflow.training.data.training_data import make_env
from finflow.training.on_policy.on_policy_rollouts import VectorTask, take_steps, task_rollout
from tests.training.on_policy.on_policy_tasks import CountingTask, FollowTask


def with_actions(space: gym.Space[Any]) -> CountingTask:
    task = CountingTask()
    task.action_space = space  # type: ignore[assignment]
    return task


def task_of(mode: AutoresetMode, **options: Any) -> VectorTask:
    """Two counting tasks, the second with longer episodes."""
    makers = [lambda: CountingTask(3, **options), lambda: CountingTask(4, **options)]
    task = VectorTask(SyncVectorEnv(makers, autoreset_mode=mode))
    task.reset(seed=5)
    return task


def agent_of(task: VectorTask) -> TaskActorCritic:
    return TaskActorCritic(task.state_dim, task.action_dim, task.kind, torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_step_gives_what_followed_and_the_next_decision_is_in_the_next_episode(mode: AutoresetMode) -> None:
    task = task_of(mode)
    for _ in range(3):
        assert task.observations[0, 0] < 3
        result = task.step(torch.zeros(2, dtype=torch.int64))
    assert result.ended.tolist() == [True, False]
    assert result.following[0].tolist() == [[3.0, 1.0], [3.0, 1.0]]
    if mode == AutoresetMode.NEXT_STEP:
        result = task.step(torch.zeros(2, dtype=torch.int64))
        assert result.counted.tolist() == [False, True]
    assert task.observations[0].tolist() == [0.0, 2.0]


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_truncated_episodes_are_bootstrapped_by_their_own_last_observation(
    mode: AutoresetMode, terminates: bool
) -> None:
    """One-step advantages of the first episode of each environment, which are the same in all modes."""
    task = task_of(mode, terminates=terminates)
    agent = agent_of(task)
    taken = take_steps(task, agent, 12, torch.Generator().manual_seed(0))
    settings = OnPolicySettings(gamma=0.9, gae_lambda=0.0)
    rollout = task_rollout(taken, task.observed[0], taken.rewards, agent, settings)
    observations, places = rollout.observations[0], []
    first = observations[:, 1] == 1.0
    for length in (3, 4):
        values = [agent.value((torch.tensor([[float(taken), 1.0]]),)).item() for taken in range(length + 1)]
        values[-1] *= not terminates
        places.append([1.0 + 0.9 * values[taken + 1] - values[taken] for taken in range(length)])
    for taken in range(4):
        found = rollout.advantages[first & (observations[:, 0] == taken)].tolist()
        assert sorted(found) == pytest.approx(sorted(one[taken] for one in places if taken < len(one)), abs=1e-5)


def test_observations_of_several_parts_are_flat_as_gymnasium_has_them() -> None:
    env = SyncVectorEnv([FollowTask, FollowTask])
    shown, _ = env.reset(seed=3)
    space = env.single_observation_space
    rows = [gym.spaces.flatten(space, {name: part[i] for name, part in shown.items()}) for i in range(2)]
    task = VectorTask(env)
    task.reset(seed=3)
    np.testing.assert_array_equal(task.observations, np.stack(rows))
    lake = VectorTask(gym.make("FrozenLake-v1"))
    lake.reset(seed=0)
    assert lake.observations.tolist() == [[1.0] + 15 * [0.0]]


def test_actions_of_a_box_are_held_to_its_bounds_and_discrete_ones_begin_where_the_space_does() -> None:
    task = VectorTask(FollowTask())
    assert task.bounded(np.array([[-3.0, 0.5]])).tolist() == [[-1.0, 0.5]]
    assert VectorTask(with_actions(gym.spaces.Discrete(3, start=7))).bounded(np.array([0, 2])).tolist() == [7, 9]


def test_finflows_own_environment_is_a_task() -> None:
    task = VectorTask(make_env(load_config("configs/demo.yaml", {}, environ={}), num_envs=3))
    task.reset(seed=0)
    assert take_steps(task, agent_of(task), 6, torch.Generator().manual_seed(0)).finite
    assert task.kind == "box"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (with_actions(gym.spaces.MultiBinary(3)), "has to be Discrete or a Box of one dimension"),
        (with_actions(gym.spaces.Box(-1.0, 1.0, (2, 2))), "has to be Discrete or a Box of one dimension"),
        ("CartPole-v1", "a gymnasium Env or VectorEnv, not str"),
    ],
)
def test_what_cannot_be_a_task_is_one_line(env: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VectorTask(env)
