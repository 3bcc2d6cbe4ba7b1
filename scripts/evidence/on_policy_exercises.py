"""Exercises in policy optimisation on CartPole-v1: one setting is varied, the others are those of the task's page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from io import BytesIO
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from finflow.agent.on_policy.clipped_objective import clipped_policy_loss
from scripts.evidence.on_policy_tasks import CARTPOLE, OnPolicyTask, measure_task
from scripts.evidence.tables import markdown_table
from scripts.evidence.variants import Variant

DECISIONS = 20_000
PPO = OnPolicyTask("CartPole-v1", "ppo", 4, 128, DECISIONS, 475.0, CARTPOLE)
ADVANTAGES = (0.5, 1.0, 2.0)
CLIP = 0.2
Exercises = Mapping[str, Mapping[str, OnPolicyTask]]

EXERCISES: Exercises = {
    "lambda": {
        f"lambda {value:g}": replace(PPO, settings={**CARTPOLE, "gae_lambda": value})
        for value in (0.0, 0.5, 0.9, 0.95, 1.0)
    },
    "clip": {
        "clip 0.1": replace(PPO, settings={**CARTPOLE, "clip": 0.1}),
        "clip 0.2": PPO,
        "clip 0.4": replace(PPO, settings={**CARTPOLE, "clip": 0.4}),
        "penalty, target 0.003": replace(PPO, algorithm="ppo-kl", settings={**CARTPOLE, "kl_target": 0.003}),
        "penalty, target 0.01": replace(PPO, algorithm="ppo-kl", settings=CARTPOLE),
        "penalty, target 0.03": replace(PPO, algorithm="ppo-kl", settings={**CARTPOLE, "kl_target": 0.03}),
    },
    "environments": {
        "1 environment": replace(PPO, environments=1),
        "4 environments": PPO,
        "16 environments": replace(PPO, environments=16),
    },
    "trust-region": {
        "PPO, rollouts of 128": PPO,
        "PPO, rollouts of 1024": replace(PPO, environments=2, rollout=1024),
        "TRPO, rollouts of 1024, delta 0.01": replace(
            PPO, algorithm="trpo", environments=2, rollout=1024, settings={"gae_lambda": 0.98, "epochs": 20}
        ),
        "TRPO, rollouts of 128, delta 0.01": replace(
            PPO, algorithm="trpo", settings={"gae_lambda": 0.98, "epochs": 20}
        ),
    },
}
"""By exercise, the name of each variant and its settings."""


def exercise_variants(seeds: int) -> tuple[Variant, ...]:
    """All exercises; a setting that several of them share is trained once."""
    tasks = {_key(task): task for variants in EXERCISES.values() for task in variants.values()}
    return tuple(
        Variant(f"exercise-{key}", tuple(range(seeds)), measure=partial(measure_task, task))
        for key, task in sorted(tasks.items())
    )


def exercise_table(name: str, results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of one exercise, a row a variant: means over seeds."""
    heads = ("", "mean return of the whole training", "at the end", "KL of an update", "clip fraction", "seconds")
    rows: list[list[object]] = []
    for label, task in EXERCISES[name].items():
        own = [result for result in results if result["variant"] == f"exercise-{_key(task)}"]
        whole = [fmean(mean for _, mean, _ in result["curve"]) for result in own]
        rows.append(
            [
                label,
                f"{fmean(whole):.0f} ({min(whole):.0f} to {max(whole):.0f})",
                f"{fmean(result['final'] for result in own):.0f}",
                f"{fmean(result['kl'] for result in own):.4f}",
                f"{fmean(result['clip_fraction'] for result in own):.3f}",
                f"{fmean(result['seconds']['learning'] for result in own):.1f}",
            ]
        )
    return markdown_table(heads, rows)


def objective_drawing() -> bytes:
    """SVG of the clipped objective over the ratio, for advantages of either sign."""
    ratios = np.linspace(0.0, 2.0, 201)
    with rc_context({"svg.hashsalt": "finflow", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        for axes, sign in zip(figure.subplots(1, 2), (1.0, -1.0), strict=True):
            for advantage in ADVANTAGES:
                gains = [_objective(ratio, sign * advantage) for ratio in ratios]
                axes.plot(ratios, gains, label=f"A = {sign * advantage:+g}")
            axes.axvspan(1.0 - CLIP, 1.0 + CLIP, color="0.92", zorder=0)
            axes.axvline(1.0, color="0.6", linewidth=0.8)
            axes.set_xlabel("ratio")
            axes.set_ylabel("clipped objective")
            axes.legend(frameon=False)
        content = BytesIO()
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()


def _objective(ratio: float, advantage: float) -> float:
    """The objective of one decision."""
    return -float(clipped_policy_loss(torch.tensor([ratio]), torch.tensor([advantage]), CLIP))


def _key(task: OnPolicyTask) -> str:
    """Name of a setting, for its results."""
    changed = {name: value for name, value in task.settings.items() if value != CARTPOLE.get(name)}
    parts = [f"{name.replace('_', '-')}-{value:g}" for name, value in sorted(changed.items())]
    return "-".join([task.algorithm, f"{task.environments}x{task.rollout // task.environments}", *parts])
