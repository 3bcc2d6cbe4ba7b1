"""Plays a policy in one environment over many rollouts, with seeds for episodes that begin anew."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from finflow.errors import ConfigError
from finflow.training.on_policy.rollout_collection import EpisodeReturns, Played, play
from finflow.training.on_policy.training_progress import RETURNS_KEPT, Progress, task_seed
from finflow.training.on_policy.vector_tasks import VectorTask

Environment = gym.Env[Any, Any] | VectorEnv[Any, Any, Any]


class TaskPlayer:
    """An environment, the episodes that run in it, and their returns.

    Parameters
    ----------
    env : Env or VectorEnv
    seed : int
        Of the training.

    Attributes
    ----------
    begins : bool
        Whether all episodes begin anew at the next rollout, by a seed of the training and its step.
    """

    def __init__(self, env: Environment, seed: int) -> None:
        self.env = env
        self.task = VectorTask(env)
        self.seed = seed
        self.begins = True
        self._episodes = EpisodeReturns(self.task.size)

    def play(self, progress: Progress, decisions: int) -> Played:
        """Play so many decisions, and count them and the episodes that ended.

        Raises
        ------
        ConfigError
            If there are fewer than environments.
        """
        size, learning = self.task.size, progress.learning
        if decisions < size:
            raise ConfigError(f"a rollout of {decisions} steps is shorter than one step of all {size} environments")
        if self.begins:
            self.task.reset(task_seed(self.seed, progress.training_step))
            self._episodes.begin()
            self.begins = False
        played = play(self.task, learning.agent, decisions // size, learning.learner.generator)
        ended = self._episodes.add(played)
        progress.episode_count += len(ended)
        progress.decisions += int(played.counted.sum())
        if played.finite:
            learning.returns = [*learning.returns, *ended][-RETURNS_KEPT:]
        return played
