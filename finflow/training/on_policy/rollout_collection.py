"""Rollouts of a policy in a task: decisions, rewards and ends, and the advantages estimated from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.on_policy.advantages import generalised_advantages
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.agent.on_policy.policy_interface import Rollout
from finflow.agent.on_policy.task_policies import TaskActorCritic
from finflow.errors import ConfigError
from finflow.training.on_policy.vector_tasks import VectorTask

RewardUnit = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class Played(NamedTuple):
    """Steps of all environments, as they were played.

    Attributes
    ----------
    observations : Tensor, (steps + 1, n, observations)
        To decide at; the last ones have no decision yet.
    actions : Tensor, (steps, n) or (steps, n, d)
    rewards : array, (steps, n)
        As the task gave them.
    terminated, ended, counted : array of bool, (steps, n)
    last : Tensor, (ends, observations)
        Last observations of the episodes that ended, in the order of ``ended``'s entries.
    """

    observations: Tensor
    actions: Tensor
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    last: Tensor

    @property
    def mean_reward(self) -> float:
        """Mean reward of a decision."""
        return float(self.rewards[self.counted].mean())

    @property
    def finite(self) -> bool:
        """True where all rewards and observations are numbers."""
        return bool(np.isfinite(self.rewards).all() and self.observations.isfinite().all())


@torch.inference_mode()
def play(task: VectorTask, agent: TaskActorCritic, steps: int, generator: Generator) -> Played:
    """Play a policy for so many steps of all environments.

    Nothing but the decision is computed in a step: densities and values are those of whole batches, afterwards.
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
    return Played(observations, actions, rewards, terminated, ended, counted, finals)


@torch.no_grad()
def rollout_of(played: Played, agent: TaskActorCritic, settings: OnPolicySettings, unit: RewardUnit) -> Rollout:
    """Estimate advantages and returns of what was played, rewards in the learner's unit.

    Parameters
    ----------
    played : Played
    agent : TaskActorCritic
        The one that played.
    settings : OnPolicySettings
        With a value coefficient of 0 there is no value function: values are 0, also where an episode was cut.
    unit : callable
        Maps the rewards of all decisions, (decisions,), to those that are learned from.
    """
    steps, environments = played.rewards.shape
    observations = played.observations.clone()  # out of inference mode
    rewards = np.zeros((steps, environments))
    rewards[played.counted] = unit(played.rewards[played.counted])
    ended, terminated = torch.from_numpy(played.ended), torch.from_numpy(played.terminated)
    values = torch.zeros(steps + 1, environments)
    following = values[1:]
    if settings.value_coefficient > 0.0:
        values = agent.value((observations,))
        following = values[1:].clone()
        if len(played.last):
            following[ended] = agent.value((played.last.clone(),))
    advantages = generalised_advantages(
        torch.from_numpy(rewards).float(),
        values[:-1],
        following,
        terminated.float(),
        ended.float(),
        settings.gamma,
        settings.gae_lambda,
    )
    chosen = torch.from_numpy(played.counted)
    seen, actions = (observations[:-1][chosen],), played.actions.clone()[chosen]
    log_prob = agent.distribution(seen).log_prob(actions)
    advantages, values = advantages[chosen], values[:-1][chosen]
    return Rollout(seen, actions, log_prob, values, advantages, advantages + values)


def most_probable(agent: TaskActorCritic, observations: NDArray[Any]) -> NDArray[Any]:
    """The policy's modes for observations, (n, observations).

    Raises
    ------
    ConfigError
        If the observations are of another size.
    """
    size = agent.observations
    if np.ndim(observations) != 2 or np.shape(observations)[1] != size:
        raise ConfigError(f"observations have the shape {np.shape(observations)}, not (n, {size})")
    with torch.no_grad():
        modes: NDArray[Any] = agent.distribution((torch.as_tensor(observations, dtype=torch.float32),)).mode().numpy()
    return modes


class EpisodeReturns:
    """Returns of episodes, over the borders of rollouts.

    Parameters
    ----------
    size : int
        Environments.
    """

    def __init__(self, size: int) -> None:
        self._running = np.zeros(size)

    def begin(self) -> None:
        """Forget episodes that were not played to their end."""
        self._running[:] = 0.0

    def add(self, played: Played) -> list[float]:
        """Returns of the episodes that ended in what was played, the undiscounted sums of their rewards."""
        found: list[float] = []
        for rewards, ended in zip(played.rewards, played.ended, strict=True):
            self._running += rewards
            if ended.any():
                found += self._running[ended].tolist()
                self._running[ended] = 0.0
        return found
