"""Rollouts of a policy: its decisions in environments that step together, what followed them, and advantages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.on_policy.on_policy_losses import generalised_advantages
from finflow.agent.on_policy.on_policy_settings import ActorCritic, Observations, OnPolicySettings, Rollout
from finflow.arrays import BoolArray, FloatArray
from finflow.errors import ConfigError

Flags = BoolArray
Rewards = FloatArray


class Outcome(NamedTuple):
    """Outcome of one step of n environments."""

    rewards: Rewards  # (n,): as the environment gave them
    following: Observations  # of what followed the actions; where an episode ended, its own last observation
    terminated: Flags  # (n,): ended for good
    ended: Flags  # (n,): ended at all
    counted: Flags  # (n,): false where the environment only began an episode, and took no action


class Environments(Protocol):
    """Environments that step together."""

    @property
    def observed(self) -> Observations:
        """Observations to decide at, each (n, ...)."""

    def step(self, actions: Tensor) -> Outcome: ...


class Trajectories(NamedTuple):
    """Decisions of n environments, each tensor (steps, n, ...)."""

    observations: Observations
    following: Observations
    actions: Tensor
    log_prob: Tensor
    terminated: Tensor
    ended: Tensor
    rewards: Rewards  # as the environments gave them
    counted: Flags

    @property
    def finite(self) -> bool:
        """True where all rewards and observations are numbers."""
        parts = (*self.observations, *self.following)
        return bool(np.isfinite(self.rewards).all() and all(part.isfinite().all() for part in parts))

    def ended_returns(self, running: Rewards) -> list[float]:
        """Undiscounted returns of the episodes that ended; ``running`` ones (n,) are changed in place."""
        returns: list[float] = []
        for rewards, over in zip(self.rewards, self.ended.bool().numpy(), strict=True):
            running += rewards
            returns += running[over].tolist()
            running[over] = 0.0
        return returns

    def discounted_returns(self, running: Rewards, gamma: float) -> Rewards:
        """Rewards of the running episodes so far, each discounted by its age; ``running`` (n,) is changed in place."""
        returns = np.zeros_like(self.rewards)
        for step, over in enumerate(self.ended.bool().numpy()):
            running *= gamma
            running += self.rewards[step]
            returns[step] = running
            running[over] = 0.0
        return returns


@torch.no_grad()
def take_steps(environments: Environments, agent: ActorCritic, steps: int, generator: Generator) -> Trajectories:
    """Take so many steps by actions drawn from a policy."""
    taken, outcomes = [], []
    for _ in range(steps):
        observed = environments.observed
        distribution = agent.distribution(observed)
        actions = distribution.draw_action(generator)
        taken.append((observed, actions, distribution.log_prob(actions)))
        outcomes.append(environments.step(actions))
    every_action = torch.stack([actions for _, actions, _ in taken])
    terminated, ended = (
        torch.as_tensor(np.stack(flags), device=every_action.device).float()
        for flags in ([one.terminated for one in outcomes], [one.ended for one in outcomes])
    )
    return Trajectories(
        _stacked([observed for observed, _, _ in taken]),
        _stacked([one.following for one in outcomes]),
        every_action,
        torch.stack([log_prob for _, _, log_prob in taken]),
        terminated,
        ended,
        np.stack([one.rewards for one in outcomes]),
        np.stack([one.counted for one in outcomes]),
    )


def _stacked(observations: Sequence[Observations]) -> Observations:
    return tuple(torch.stack(parts) for parts in zip(*observations, strict=True))


def rollout_of(
    taken: Trajectories, rewards: Tensor, kept: Tensor, values: Tensor, following: Tensor, settings: OnPolicySettings
) -> Rollout:
    """Estimate advantages and returns of decisions, with targets ``advantages + values``.

    Rewards in the learner's units, decisions to learn from, values, and values of what followed are (steps, n). With a
    value coefficient of 0 there is no value function: values are 0, also where an episode was cut.
    """
    if settings.value_coefficient == 0.0:
        values, following = torch.zeros_like(values), torch.zeros_like(following)
    advantages = generalised_advantages(
        rewards, values, following, taken.terminated, taken.ended, settings.gamma, settings.gae_lambda
    )
    parts = (taken.actions, taken.log_prob, values, advantages, advantages + values)
    return Rollout(tuple(part[kept] for part in taken.observations), *(part[kept] for part in parts))


Environment = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]
Floats = NDArray[np.float32]


class VectorTask:
    """Any gymnasium task as a vector environment with flat observations.

    Vector environments begin the next episode of a finished one in the same step, in the next step, or on request. Here
    all three have one interface: a step gives the observation that followed the action, even where the episode ended
    with it, and the observation to decide at next.

    ``state_dim``: numbers in one observation, all its parts one after the other. ``action_dim``: actions of a Discrete
    space, or dimensions of a Box. Raises ConfigError for another action space, or observations that are no numbers.
    """

    def __init__(self, env: Environment) -> None:
        self.given = env
        if isinstance(env, gym.Env):
            self.env: VectorEnv[Any, Any, Any] = SyncVectorEnv([lambda: env], autoreset_mode=AutoresetMode.SAME_STEP)
        elif isinstance(env, VectorEnv):
            self.env = env
        else:
            raise ConfigError(f"an environment is a gymnasium Env or VectorEnv, not {type(env).__name__}")
        try:
            self.state_dim = gym.spaces.flatdim(self.env.single_observation_space)
        except (NotImplementedError, ValueError):
            kind = type(self.env.single_observation_space).__name__
            raise ConfigError(f"observations of the kind {kind} cannot be made a vector of numbers") from None
        actions = self.env.single_action_space
        if isinstance(actions, gym.spaces.Discrete):
            self.action_dim, self._first = int(actions.n), int(actions.start)
        elif isinstance(actions, gym.spaces.Box) and len(actions.shape) == 1:
            self.action_dim, self._first = actions.shape[0], 0
        else:
            raise ConfigError(f"the action space is {actions}, and has to be Discrete or a Box of one dimension")
        self.kind: Literal["discrete", "box"] = "box" if isinstance(actions, gym.spaces.Box) else "discrete"
        self.size = self.env.num_envs
        self.mode = AutoresetMode(self.env.metadata.get("autoreset_mode") or AutoresetMode.NEXT_STEP)
        self.observations = np.zeros((self.size, self.state_dim), np.float32)
        self._beginning = np.zeros(self.size, np.bool_)

    def bounded(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions of a policy, (n,) or (n, d), as the environment takes them."""
        space = self.env.single_action_space
        if isinstance(space, gym.spaces.Box):
            clipped: NDArray[Any] = np.clip(actions, space.low, space.high)
            return clipped
        return actions + self._first

    def reset(self, seed: int) -> None:
        observation, _ = self.env.reset(seed=seed)
        self.observations = self._flat(observation)
        self._beginning = np.zeros(self.size, np.bool_)

    @property
    def observed(self) -> Observations:
        return (torch.tensor(self.observations),)

    def step(self, actions: Tensor) -> Outcome:
        """Take actions, (n,) or (n, d); those of a Box are clipped to its bounds."""
        observation, rewards, terminated, truncated, info = self.env.step(self.bounded(actions.numpy()))
        observations = self._flat(observation)
        ended = terminated | truncated
        following, counted = observations, np.ones(self.size, np.bool_)
        if self.mode == AutoresetMode.NEXT_STEP:
            counted = ~self._beginning
            self._beginning = ended
        elif ended.any():
            if self.mode == AutoresetMode.SAME_STEP:
                following = observations.copy()
                space = self.env.single_observation_space
                last = [gym.spaces.flatten(space, one) for one in info["final_obs"][ended]]
                following[ended] = np.stack([np.asarray(one, np.float32) for one in last])
            else:
                observation, _ = self.env.reset(options={"reset_mask": ended})
                observations = self._flat(observation)
        self.observations = observations
        return Outcome(np.asarray(rewards, np.float64), (torch.tensor(following),), terminated, ended, counted)

    def _flat(self, observation: Any) -> Floats:
        """Observations of all environments as rows of numbers, in the order of ``gymnasium.spaces.flatten``."""
        space, size = self.env.single_observation_space, self.size
        if isinstance(space, gym.spaces.Box):
            return np.asarray(observation, np.float32).reshape(size, -1)
        if isinstance(space, gym.spaces.Dict) and all(isinstance(one, gym.spaces.Box) for one in space.values()):
            parts = [np.asarray(observation[name], np.float32).reshape(size, -1) for name in space]
            return np.concatenate(parts, axis=1)
        rows = gym.vector.utils.iterate(gym.vector.utils.batch_space(space, size), observation)
        return np.stack([np.asarray(gym.spaces.flatten(space, row), np.float32) for row in rows])


@torch.no_grad()
def task_rollout(
    taken: Trajectories, observed: Tensor, rewards: Rewards, agent: ActorCritic, settings: OnPolicySettings
) -> Rollout:
    """Rollout of decisions in a task, in which only the ends of episodes are observed twice.

    ``observed``, (n, observations), is what comes after the last step. Values and densities are computed in whole
    batches, as by the update: products of few rows round otherwise.
    """
    (observations,), (following,), ended = taken.observations, taken.following, taken.ended.bool()
    values = agent.value((torch.cat([observations, observed.unsqueeze(0)]),))
    ahead = values[1:].clone()
    if ended.any():
        ahead[ended] = agent.value((following[ended],))
    kept = torch.from_numpy(taken.counted)
    rollout = rollout_of(taken, torch.from_numpy(rewards).float(), kept, values[:-1], ahead, settings)
    return rollout._replace(log_prob=agent.distribution(rollout.observations).log_prob(rollout.actions))
