"""Evidence beside that on online learning: what differs is what it says."""

from __future__ import annotations

from typing import Any

import pytest

from finflow.config import load_config
from finflow.training.off_policy.learners import online_updates
from scripts.evidence.generalisation import CLASSICAL
from scripts.evidence.rollout_controls import (
    CONTROLS,
    DEFAULT,
    OFFLINE,
    REFERENCES,
    control_table,
    later_years_table,
    seeding_table,
)
from scripts.evidence.rollouts import PLANTED, PREFIX


def test_without_exact_decisions_there_are_as_many_updates() -> None:
    default, alone = (load_config(None, keys, environ={}) for keys in ({}, CONTROLS["H 0"]))
    assert online_updates(alone) == pytest.approx(online_updates(default), rel=0.01)


def test_controls_stand_beside_the_default_on_the_same_samples() -> None:
    default = [{"variant": PREFIX + kind, "own": 0.9} for kind in PLANTED]
    controls = [{"variant": f"{PREFIX}{kind}-h-0", "own": 0.2, "seconds": {"online": 60.0}} for kind in PLANTED]
    lines = control_table(controls, default).splitlines()
    assert "| regime | 0.900 | none | - | 0.200 | 60 | none | - | none | - | none | - |" in lines


def test_what_seeding_gives_is_the_difference_on_the_same_sample() -> None:
    def one(start: str, seed: int, own: float) -> dict[str, Any]:
        return {"variant": f"{PREFIX}regime-{start}", "seed": seed, "start": 0.6, "own": own, "seconds": {"online": 60}}

    results = [one("without-blocks", 101, 0.9), one("without-blocks", 102, 0.8), one("random-weights", 102, 0.85)]
    lines = seeding_table(results).splitlines()
    assert "| regime | 0.600, 0.600 | 0.900, 0.800 | 0.850 | -0.050 | 60 | 60 | - |" in lines
    assert "| lognormal | none | none | none | - | - | - | - |" in lines


def _judged(name: str, fold: int, seed: int, sharpe: float) -> dict[str, Any]:
    sharpes = {"judged": {"sharpe": sharpe}, "own": {"sharpe": sharpe - 0.1}}
    return {"configuration_name": name, "fold": fold, "seed": seed, **sharpes}


def test_later_years_are_compared_with_the_best_of_what_needs_no_learning_online() -> None:
    """Gaps of -.1 and .2 in the two folds: mean .05; the error is that of the folds' means, .15."""
    strategies = {name: {"sharpe": 0.5 + 0.1 * place} for place, name in enumerate(REFERENCES)}
    results: list[dict[str, Any]] = []
    for fold in (1, 2):
        results.append({"configuration_name": CLASSICAL, "fold": fold, "strategies": strategies})
        for seed in (0, 1):
            results.append(_judged(DEFAULT, fold, seed, 0.7 + 0.3 * (fold - 1)))
            results.append(_judged(OFFLINE, fold, seed, 0.8))
    lines = later_years_table(results).splitlines()
    assert lines[2].startswith("| 1 | 2 | 0.50 | 0.60 | 0.80 | 0.70 ")
    assert lines[-1].startswith(
        "| default less each | 4 | 0.350, standard error 0.150 | 0.250, standard error 0.150 | "
    )
    assert lines[-1].endswith("| 0.050, standard error 0.150 | | -0.050, standard error 0.150 |")
