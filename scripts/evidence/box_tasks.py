"""The online update on solved tasks: Pendulum-v1, and an environment whose best action is its observation.

References
----------
Raffin et al. (2021), Stable-Baselines3: whose tests solve an identity environment with SAC in 400 steps.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from finflow.config import BCellConfig, Config
from scripts.evidence.box_training import BoxPlayer, BoxTask, learn, returns
from scripts.evidence.tables import markdown_table
from scripts.evidence.variants import Variant

PENDULUM_STEPS, PENDULUM_GOAL, PENDULUM_EPISODES = 20_000, -200.0, 20
PENDULUM_RANDOM_STEPS = 500
WATCHED_EVERY = 1000
HELD_OUT_SEED = 10_000
#: Of `bcell`, for tasks of a few numbers. The target entropy is SAC's usual one, minus the dimensions of the action.
SMALL: Mapping[str, object] = {
    "hidden_dim": 64,
    "n_quantiles": 16,
    "dropped_quantiles": 1,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "alpha_lr": 3e-3,
    "alpha_init": 0.2,
    "target_entropy": 0.184,
    "tau": 0.02,
    "gamma": 0.97,
    "cql_alpha": 0.0,
}


class IdentityTask(gym.Env[NDArray[Any], NDArray[Any]]):
    """Pays 1 for an action that equals the observation, within a tolerance, and 0 for any other.

    Observations are uniform in -1..1 and have nothing to do with what was done; an episode is of 100 steps.
    """

    LENGTH = 100

    def __init__(self, tolerance: float = 0.2) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.tolerance = tolerance
        self._played = 0
        self._shown = np.zeros(1, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        self._played = 0
        return self._show(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Pay for an action; truncated at the end of the episode, never terminated."""
        reward = float(np.abs(action - self._shown).max() <= self.tolerance)
        self._played += 1
        return self._show(), reward, False, self._played == self.LENGTH, {}

    def _show(self) -> NDArray[np.float32]:
        """The next observation."""
        self._shown = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        return self._shown.copy()


def small_config(**changes: object) -> BCellConfig:
    """Settings for tasks of a few numbers."""
    return BCellConfig.model_validate({**SMALL, **changes})


def pendulum() -> BoxTask:
    """Pendulum-v1: swing up and hold; an episode is of 200 steps, and a good one returns about -150."""
    task: BoxTask = gym.make("Pendulum-v1")
    return task


def pendulum_variants(seeds: int) -> tuple[Variant, ...]:
    """The full check, by `make evidence`."""
    overrides = {f"bcell.{name}": value for name, value in SMALL.items()}
    return (Variant("pendulum", tuple(range(seeds)), overrides, measure=measure_pendulum),)


def measure_pendulum(config: Config, steps: int = PENDULUM_STEPS) -> dict[str, Any]:
    """Mean and least return of held-out episodes as learning goes on.

    Returns
    -------
    dict
        ``curve``, rows of steps, mean return and least return; ``seconds`` of processor time of learning alone.
    """
    curve: list[list[float]] = []
    judged = 0.0

    def watch(step: int, player: BoxPlayer) -> None:
        nonlocal judged
        if step % WATCHED_EVERY == 0:
            began = time.process_time()
            found = returns(pendulum(), player, PENDULUM_EPISODES, HELD_OUT_SEED)
            curve.append([step, round(float(found.mean()), 1), round(float(found.min()), 1)])
            judged += time.process_time() - began

    began = time.process_time()
    learn(pendulum(), config.bcell, steps, config.train.seed, random_steps=PENDULUM_RANDOM_STEPS, watch=watch)
    return {"curve": curve, "seconds": {"learning": round(time.process_time() - began - judged, 1)}}


def pendulum_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table, a row a seed."""
    heads = (
        "seed",
        f"first at {PENDULUM_GOAL:.0f} or better",
        "best",
        "at the end",
        "least episode at the end",
        "seconds",
    )
    rows = []
    for result in results:
        curve = result["curve"]
        reached = next((step for step, mean, _ in curve if mean >= PENDULUM_GOAL), None)
        first = "never" if reached is None else f"{reached:,} steps"
        best, (_, last, least) = max(mean for _, mean, _ in curve), curve[-1]
        figures = (best, last, least, result["seconds"]["learning"])
        rows.append([result["seed"], first, *(f"{figure:.0f}" for figure in figures)])
    return markdown_table(heads, rows)
