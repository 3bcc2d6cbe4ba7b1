"""Controls of the evidence on online learning: trainings without one of its parts, on one planted market.

What is compared is the policy that was learned: evidence out of fold would take most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from finflow.arrays import FloatArray, IntArray
from finflow.config import Config
from finflow.env.decision_process import DecisionProcess
from finflow.training.data import mirrored_growth
from scripts.evidence.expert_heads import one_head
from scripts.evidence.results import Variant, by_seed
from scripts.evidence.rollouts import ALONE, RANDOM, learn_planted, planted_variant
from scripts.evidence.tables import markdown_table, mean_interval

CONTROLLED = "mean-reverting-.97"
DEFAULT = "default"


def without_switching() -> AbstractContextManager[object]:
    """Bars are mirrored around what the features predict alone, without the Markov-switching model."""

    def nothing(process: DecisionProcess, bars: IntArray) -> FloatArray:
        return np.zeros(process.listed.shape)

    return patch.object(mirrored_growth, "regime_returns", nothing)


class Control(NamedTuple):
    """Keys that are added to those of the planted market, and what is changed in the code where no key does it."""

    keys: Mapping[str, object]
    changed: Callable[[], AbstractContextManager[object]] = nullcontext
    samples: int | None = None  # of those of the other controls


CONTROLS: dict[str, Control] = {
    DEFAULT: Control({}),
    "no expansion": Control({"bcell.expansion": 0, "train.online_episodes": 63}),  # as many updates
    "no counterfactuals": Control({"bcell.counterfactual": False}),
    "no CQL": Control({"bcell.cql_alpha": 0.0}),
    "no entropy": Control({"bcell.alpha_mode": "fixed", "bcell.alpha_init": 1e-6}),
    "no IQL": Control(RANDOM),
    "one head": Control({}, one_head),
    "no switching model": Control({}, without_switching, 1),
}


def control_variants(samples: int) -> list[Variant]:
    """A training for each control and sample."""
    planted = planted_variant(CONTROLLED, samples)
    return [
        replace(
            planted,
            name=_name(control),
            seeds=planted.seeds[: CONTROLS[control].samples],
            overrides={**planted.overrides, **ALONE, **CONTROLS[control].keys},
            measure=partial(learn_controlled, control),
        )
        for control in CONTROLS
    ]


def learn_controlled(control: str, config: Config) -> dict[str, Any]:
    """Train in the planted market as a control does."""
    with CONTROLS[control].changed():
        return learn_planted(CONTROLLED, config)


def _name(control: str) -> str:
    return f"control-{control.replace(' ', '-').lower()}"


def control_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: scores of the policies that were learned, and the default's less each in the same samples."""
    default = by_seed(results, variant=_name(DEFAULT))
    rows = []
    for control in CONTROLS:
        own = by_seed(results, variant=_name(control))
        gaps = [default[seed]["own"] - own[seed]["own"] for seed in sorted(default.keys() & own.keys())]
        stopped = sum(one.get("stopped", False) for one in own.values())
        rows.append(
            [
                control,
                ", ".join(f"{one['own']:.3f}" for one in own.values()) or "none",
                "-" if control == DEFAULT else mean_interval(gaps, 3),
                f"{np.mean([one['seconds']['online'] for one in own.values()]):.0f}" if own else "-",
                f"{stopped} of {len(own)}",
            ]
        )
    return markdown_table((CONTROLLED, "own policy, each sample", "default less it", "seconds online", "stopped"), rows)
