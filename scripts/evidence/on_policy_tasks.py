"""On-policy learning on solved tasks: CartPole-v1 and Pendulum-v1, and Stable-Baselines3 on the same settings.

References
----------
Raffin and others (2021), Stable-Baselines3: Reliable Reinforcement Learning Implementations; and its RL Zoo, whose
settings for these tasks are the model of those below.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from finflow.agent.on_policy.on_policy_settings import PPO_PRESETS, OnPolicySettings
from finflow.config import Config
from finflow.training.on_policy.advanced_trainer import AdvancedPPOTrainer, train_advanced_ppo
from finflow.training.on_policy.on_policy_rollouts import VectorTask
from scripts.evidence.results import Variant, ask_peer, kept_results, write_result
from scripts.evidence.tables import markdown_table

EPISODES = 20  # of each evaluation of a policy, and five times as many at the end
HELD_OUT_SEED = 10_000
LOOKS = 20
PEER = Path(__file__).resolve().parents[1] / "peers" / "sb3_on_policy.py"


@dataclass(frozen=True)
class OnPolicyTask:
    """A task, an algorithm, and its settings.

    Attributes
    ----------
    environments, rollout, decisions : int
        Environments that play together, decisions of one rollout and of the whole training.
    """

    name: str
    algorithm: str
    environments: int
    rollout: int
    decisions: int
    goal: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Short name, such as ``cartpole-ppo``."""
        return f"{self.name.partition('-')[0].lower()}-{self.algorithm}"

    def on_policy(self) -> OnPolicySettings:
        """Settings of the update; those of PPO begin with the task's preset, where it has one."""
        if self.algorithm == "ppo" and self.name in PPO_PRESETS:
            return replace(PPO_PRESETS[self.name].settings, **self.settings)
        return OnPolicySettings.of(self.algorithm, **self.settings)

    def describe(self) -> str:
        """Settings in one line."""
        settings = "".join(f", {name} {value:g}" for name, value in sorted(self.settings.items()))
        return f"{self.environments} environments, rollouts of {self.rollout}{settings}"


CARTPOLE = {"gamma": 0.98, "gae_lambda": 0.8, "entropy_coefficient": 0.0, "learning_rate": 1e-3}
PENDULUM = {"gamma": 0.9, "gae_lambda": 0.95, "entropy_coefficient": 0.0, "learning_rate": 1e-3}
TASKS = (
    OnPolicyTask("CartPole-v1", "ppo", 4, PPO_PRESETS["CartPole-v1"].n_steps, 100_000, 475.0, CARTPOLE),
    OnPolicyTask("CartPole-v1", "trpo", 2, 1024, 100_000, 475.0, {"gae_lambda": 0.98, "epochs": 20}),
    OnPolicyTask("CartPole-v1", "a2c", 8, 64, 200_000, 400.0, {"gamma": 0.99, "learning_rate": 1e-3}),
    OnPolicyTask("Pendulum-v1", "ppo", 4, 4096, 100_000, -200.0, PENDULUM),
    OnPolicyTask("Pendulum-v1", "trpo", 2, 2048, 100_000, -200.0, {"gamma": 0.9, "epochs": 15, "learning_rate": 1e-3}),
)
PEERS = "sb3-"
PEER_TASKS = tuple(task for task in TASKS if task.name.startswith("Pendulum"))


def make_task(name: str, size: int) -> SyncVectorEnv:
    """So many environments of a task, that play together."""
    return SyncVectorEnv([partial(gym.make, name)] * size, autoreset_mode=AutoresetMode.SAME_STEP)


def held_out_returns(trainer: AdvancedPPOTrainer, name: str, episodes: int, seed: int) -> NDArray[np.float64]:
    """Returns of the policy's modes in one episode of each of so many environments, (episodes,)."""
    task = VectorTask(make_task(name, episodes))
    task.reset(seed)
    returns, playing = np.zeros(episodes), np.ones(episodes, np.bool_)
    while playing.any():
        result = task.step(torch.from_numpy(trainer.act(task.observations)))
        returns += np.where(playing, result.rewards, 0.0)
        playing &= ~result.ended
    return returns


def measure_task(task: OnPolicyTask, config: Config) -> dict[str, Any]:
    """Train once, and judge the policy as it learns.

    Returns
    -------
    dict
        ``curve``, rows of decisions, mean and least return of held-out episodes; ``final``, mean of more of them;
        ``kl`` and ``clip_fraction``, means over updates; ``rollbacks``; ``settings`` in one line; ``seconds`` of
        processor time of learning alone.
    """
    curve: list[list[float]] = []
    moves: list[tuple[float, float]] = []
    judged = 0.0
    iterations = task.decisions // task.rollout
    every = max(iterations // LOOKS, 1)

    def watch(trainer: AdvancedPPOTrainer, row: dict[str, Any]) -> None:
        nonlocal judged
        moves.append((row.get("kl", 0.0), row.get("clip_fraction", 0.0)))
        if row["iteration"] % every == 0:
            began = time.process_time()
            found = held_out_returns(trainer, task.name, EPISODES, HELD_OUT_SEED)
            curve.append([row["decisions"], round(float(found.mean()), 1), round(float(found.min()), 1)])
            judged += time.process_time() - began

    began = time.process_time()
    trainer = train_advanced_ppo(
        make_task(task.name, task.environments),
        iterations,
        task.rollout,
        settings=task.on_policy(),
        seed=config.train.seed,
        watch=watch,
    )
    seconds = time.process_time() - began - judged
    final = held_out_returns(trainer, task.name, 5 * EPISODES, 2 * HELD_OUT_SEED)
    return {
        "curve": curve,
        "final": round(float(final.mean()), 1),
        "kl": round(fmean(kl for kl, _ in moves), 6),
        "clip_fraction": round(fmean(share for _, share in moves), 4),
        "rollbacks": trainer.checkpoints.manager.rollback_count,
        "settings": task.describe(),
        "seconds": {"learning": round(seconds, 1)},
    }


def on_policy_variants(seeds: int) -> tuple[Variant, ...]:
    """All tasks, each with several seeds."""
    return tuple(Variant(f"on-policy-{task.key}", range(seeds), measure=partial(measure_task, task)) for task in TASKS)


def train_peers(python: Path, seeds: int, path: Path) -> None:
    """Train Stable-Baselines3 with the same settings where the page has no result of it."""
    for task in PEER_TASKS:
        for seed in range(seeds):
            name = f"{PEERS}{task.key}-{seed}"
            if name not in kept_results(path):
                found = _ask_peer(python, task, seed) | {"variant": task.key, "seed": seed, "settings": task.describe()}
                write_result(path, name, found)


def kept_peers(path: Path) -> list[dict[str, Any]]:
    """Results of Stable-Baselines3 that were made before."""
    return [result for name, result in kept_results(path).items() if name.startswith(PEERS)]


def _ask_peer(python: Path, task: OnPolicyTask, seed: int) -> dict[str, Any]:
    """Train the peer once."""
    settings = task.on_policy()
    names = ("epochs", "minibatch", "gamma", "gae_lambda", "entropy_coefficient", "learning_rate")
    asked = {name: getattr(settings, name) for name in names}
    asked |= {name: getattr(task, name) for name in ("name", "algorithm", "environments", "rollout", "decisions")}
    asked |= {"episodes": 5 * EPISODES, "held_out_seed": 2 * HELD_OUT_SEED, "seed": seed}
    return ask_peer((python, PEER, json.dumps(asked)))


def on_policy_table(results: Sequence[Mapping[str, Any]], peers: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: a row a task and algorithm, its seeds together, then the peer's."""
    heads = ("task", "seeds", "goal", "first at the goal (decisions)", "mean return at the end", "rollbacks", "seconds")
    rows: list[list[object]] = []
    for task in TASKS:
        own = [result for result in results if result["variant"] == f"on-policy-{task.key}"]
        of_peer = [result for result in peers if result["variant"] == task.key]
        if own:
            reached = [_first(result["curve"], task.goal) for result in own]
            first = ", ".join("never" if one is None else f"{one:,}" for one in reached)
            counts = sum(result["rollbacks"] for result in own)
            rows.append([task.key, len(own), f"{task.goal:g}", first, _spread(own), counts, _seconds(own)])
        if of_peer:
            name = f"{task.key}, Stable-Baselines3 {of_peer[0]['version']}"
            rows.append([name, len(of_peer), f"{task.goal:g}", "", _spread(of_peer), "", _seconds(of_peer)])
    lines = [
        f'- {task.key}: {task.describe()}; the rest as `OnPolicySettings.of("{task.algorithm}")`' for task in TASKS
    ]
    return markdown_table(heads, rows) + "\nSettings:\n\n" + "\n".join(lines) + "\n"


def _first(curve: Sequence[Sequence[float]], goal: float) -> int | None:
    """Decisions at the first look with the goal reached."""
    return next((int(decisions) for decisions, mean, _ in curve if mean >= goal), None)


def _spread(results: Sequence[Mapping[str, Any]]) -> str:
    """Mean over seeds, and its standard error."""
    finals = [result["final"] for result in results]
    error = stdev(finals) / len(finals) ** 0.5 if len(finals) > 1 else 0.0
    return f"{fmean(finals):.1f} ± {error:.1f}"


def _seconds(results: Sequence[Mapping[str, Any]]) -> str:
    return f"{fmean(result['seconds']['learning'] for result in results):.0f}"
