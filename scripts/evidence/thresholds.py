"""Evidence about the thresholds of a rollback: reasons that each mode and preset finds in trainings without a fault.

The looks of an undisturbed training are recorded, and every mode and preset then judges the same looks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from finflow.config import Config, RollbackConfig
from finflow.guard.rollback import RollbackManager
from finflow.guard.rollback_triggers import RollbackTriggers
from finflow.guard.signals import Event
from finflow.training.phases.run_guard import RunGuard
from scripts.evidence.guard_faults import SMALL, synthetic_keys
from scripts.evidence.results import grouped, train_both
from scripts.evidence.tables import markdown_table
from scripts.evidence.variants import Variant

PREFIX = "thresholds-"
MODES = ("strict", "robust")
PRESETS = ("conservative", "standard", "aggressive")
SIGNALS = ("kl", "critic", "actor", "reward")
MARKETS: Mapping[str, Mapping[str, object]] = {"embedded": {}, "regime": synthetic_keys("regime")}

Look = dict[str, float | None]


def threshold_variants(n_seeds: int) -> list[Variant]:
    """Small trainings without a fault, on each market."""
    return [
        Variant(f"{PREFIX}{market}", tuple(range(n_seeds)), {**SMALL, **keys}, measure=count_reasons)
        for market, keys in MARKETS.items()
    ]


@contextmanager
def recorded_looks() -> Iterator[list[list[Look]]]:
    """Record the looks of trainings in this block while alarms are not held back; yields them by phase."""
    phases: list[list[Look]] = []
    ask, begin, look = RollbackManager.should_rollback, RollbackManager.begin_phase, RunGuard._check
    asked: list[Look] = []

    def should_rollback(self: RollbackManager, **figures: float | None) -> tuple[bool, str]:
        asked.append(dict(figures))
        return ask(self, **figures)

    def begin_phase(self: RollbackManager, update: int) -> None:
        phases.append([])
        begin(self, update)

    def record(self: RunGuard) -> list[Event]:
        asked.clear()
        events = look(self)
        if asked and not self.memory.monitor.quiet:
            phases[-1].append(asked[-1])
        return events

    RollbackManager.should_rollback = should_rollback  # type: ignore[method-assign,assignment]
    RollbackManager.begin_phase, RunGuard._check = begin_phase, record  # type: ignore[method-assign]
    try:
        yield phases
    finally:
        RollbackManager.should_rollback = ask  # type: ignore[method-assign]
        RollbackManager.begin_phase, RunGuard._check = begin, look  # type: ignore[method-assign]


def reasons_in(phases: Sequence[Sequence[Look]], mode: str, preset: str) -> dict[str, int]:
    """Looks at which a mode and preset finds a reason to roll back, by signal; ``any`` counts a look once."""
    counts = dict.fromkeys((*SIGNALS, "any"), 0)
    for looks in phases:
        triggers = RollbackTriggers(RollbackConfig.model_validate({"mode": mode, "preset": preset}))
        for one in looks:
            figures = {"critic": one.get("loss"), "actor": one.get("actor_loss")}
            should, _ = triggers.check({**figures, "reward": one.get("reward"), "kl": one.get("kl")})
            counts["any"] += should
            for name in triggers.confirmed:
                counts[name] += 1
    return counts


def count_reasons(config: Config) -> dict[str, Any]:
    """Train once, and count what each mode and preset would have taken for a fault."""
    began = time.monotonic()
    with recorded_looks() as phases:
        trainer = train_both(config)
    return {
        "seconds": {"all": round(time.monotonic() - began, 1)},
        "looks": sum(map(len, phases)),
        "rollbacks": trainer._begin().state.watch.manager.rollback_count,
        "reasons": {mode: {preset: reasons_in(phases, mode, preset) for preset in PRESETS} for mode in MODES},
    }


def threshold_table(results: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: reasons per hundred looks, by mode, preset and signal."""
    rows: list[list[object]] = []
    for variant, trainings in grouped(results, "variant").items():
        looks = sum(result["looks"] for result in trainings)
        for mode in MODES:
            for preset in PRESETS:
                reasons = [result["reasons"][mode][preset] for result in trainings]
                counts = [sum(one[name] for one in reasons) for name in (*SIGNALS, "any")]
                shares = [f"{100.0 * count / max(looks, 1):.1f}" for count in counts]
                rows.append([variant.removeprefix(PREFIX), looks, mode, preset, *shares])
    heads = ("market", "looks", "mode", "preset", "KL", "critic's loss", "actor's loss", "reward", "any of them")
    return markdown_table(heads, rows)
