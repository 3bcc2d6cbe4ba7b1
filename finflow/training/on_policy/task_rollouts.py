"""Rollouts of a policy in a task: trajectories, the advantages estimated from them, and returns of episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.on_policy.on_policy_losses import generalised_advantages
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings, Rollout
from finflow.agent.on_policy.task_policies import TaskActorCritic
from finflow.errors import ConfigError
from finflow.training.on_policy.training_progress import RETURNS_KEPT, TrainingProgress, task_seed
from finflow.training.on_policy.vector_tasks import VectorTask

Environment = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]
RewardUnit = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Trajectories(NamedTuple):
    """Steps of all environments."""

    observations: Tensor  # (steps + 1, n, observations): to decide at; the last ones have no decision yet
    actions: Tensor  # (steps, n, d): without the d in a Discrete space
    rewards: NDArray[np.float64]  # (steps, n): as the task gave them
    terminated: NDArray[np.bool_]  # (steps, n)
    ended: NDArray[np.bool_]  # (steps, n)
    counted: NDArray[np.bool_]  # (steps, n)
    last: Tensor  # (ends, observations): last observations of ended episodes, in the order of ``ended``'s entries

    @property
    def mean_reward(self) -> float:
        return float(self.rewards[self.counted].mean())

    @property
    def finite(self) -> bool:
        """True where all rewards and observations are numbers."""
        return bool(np.isfinite(self.rewards).all() and self.observations.isfinite().all())


@torch.inference_mode()
def collect_steps(task: VectorTask, agent: TaskActorCritic, steps: int, generator: Generator) -> Trajectories:
    """Take so many steps in all environments by actions drawn from a policy.

    A step computes the action alone: densities and values are computed in whole batches afterwards.
    """
    observations = torch.empty(steps + 1, task.size, task.spaces.observations)
    discrete = task.spaces.kind == "discrete"
    shape = (steps, task.size) if discrete else (steps, task.size, task.spaces.actions)
    actions = torch.empty(shape, dtype=torch.int64 if discrete else torch.float32)
    rewards = np.empty((steps, task.size))
    terminated, ended, counted = np.empty((3, steps, task.size), np.bool_)
    last = []
    for step in range(steps):
        now = observations[step]
        now.copy_(torch.from_numpy(task.observations))
        drawn = agent.distribution((now,)).sample(generator)
        actions[step] = drawn
        result = task.step(drawn.numpy())
        rewards[step], terminated[step] = result.rewards, result.terminated
        ended[step], counted[step] = result.ended, result.counted
        if result.ended.any():
            last.append(torch.from_numpy(result.following[result.ended]))
    observations[steps].copy_(torch.from_numpy(task.observations))
    finals = torch.cat(last) if last else observations[0, :0]
    return Trajectories(observations, actions, rewards, terminated, ended, counted, finals)


@torch.no_grad()
def rollout_of(
    trajectories: Trajectories, agent: TaskActorCritic, settings: OnPolicySettings, unit: RewardUnit
) -> Rollout:
    """Estimate advantages and returns of trajectories, with rewards in the learner's unit.

    ``settings``: with a value coefficient of 0 there is no value function: values are 0, also where an episode was cut.
    ``unit``: maps the rewards of all decisions, (decisions,), to those that are learned from.
    """
    steps, environments = trajectories.rewards.shape
    observations = trajectories.observations.clone()  # out of inference mode
    rewards = np.zeros((steps, environments))
    rewards[trajectories.counted] = unit(trajectories.rewards[trajectories.counted])
    ended, terminated = torch.from_numpy(trajectories.ended), torch.from_numpy(trajectories.terminated)
    values = torch.zeros(steps + 1, environments)
    following = values[1:]
    if settings.value_coefficient > 0.0:
        values = agent.value((observations,))
        following = values[1:].clone()
        if len(trajectories.last):
            following[ended] = agent.value((trajectories.last.clone(),))
    advantages = generalised_advantages(
        torch.from_numpy(rewards).float(),
        values[:-1],
        following,
        terminated.float(),
        ended.float(),
        settings.gamma,
        settings.gae_lambda,
    )
    chosen = torch.from_numpy(trajectories.counted)
    seen, actions = (observations[:-1][chosen],), trajectories.actions.clone()[chosen]
    log_prob = agent.distribution(seen).log_prob(actions)
    advantages, values = advantages[chosen], values[:-1][chosen]
    return Rollout(seen, actions, log_prob, values, advantages, advantages + values)


def most_probable(agent: TaskActorCritic, observations: NDArray[Any]) -> NDArray[Any]:
    """The policy's modes for observations, (n, observations).

    Raises ConfigError if the observations are of another size.
    """
    size = agent.observations
    if np.ndim(observations) != 2 or np.shape(observations)[1] != size:
        raise ConfigError(f"observations have the shape {np.shape(observations)}, not (n, {size})")
    with torch.no_grad():
        modes: NDArray[Any] = agent.distribution((torch.as_tensor(observations, dtype=torch.float32),)).mode().numpy()
    return modes


def ended_returns(trajectories: Trajectories, running: NDArray[np.float64]) -> list[float]:
    """Undiscounted returns of the episodes that ended.

    ``running`` (n,): returns so far of the running episodes; changed in place.
    """
    returns: list[float] = []
    for rewards, ended in zip(trajectories.rewards, trajectories.ended, strict=True):
        running += rewards
        if ended.any():
            returns += running[ended].tolist()
            running[ended] = 0.0
    return returns


class TaskCollector:
    """Collects trajectories in an environment, rollout after rollout.

    ``resets``: whether all episodes begin anew at the next rollout, by a seed of the training and its step.
    """

    def __init__(self, env: Environment, seed: int) -> None:
        self.env = env
        self.task = VectorTask(env)
        self.seed = seed
        self.resets = True
        self._running = np.zeros(self.task.size)

    def collect(self, progress: TrainingProgress, decisions: int) -> Trajectories:
        """Take so many decisions, and count them and the episodes that ended.

        Raises ConfigError if there are fewer than environments.
        """
        size, learning = self.task.size, progress.learning
        if decisions < size:
            raise ConfigError(f"a rollout of {decisions} steps is shorter than one step of all {size} environments")
        if self.resets:
            self.task.reset(task_seed(self.seed, progress.training_step))
            self._running[:] = 0.0
            self.resets = False
        trajectories = collect_steps(self.task, learning.agent, decisions // size, learning.learner.generator)
        ended = ended_returns(trajectories, self._running)
        progress.episode_count += len(ended)
        progress.decisions += int(trajectories.counted.sum())
        if trajectories.finite:
            learning.returns = [*learning.returns, *ended][-RETURNS_KEPT:]
        return trajectories
