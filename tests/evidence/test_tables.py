"""Tables of the evidence: each shows what the trainings measured, and compares in pairs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from finflow.config import load_config
from finflow.training.off_policy.learners import online_updates
from scripts.evidence import later_years, rollout_controls, rollouts
from scripts.evidence.preferences import MeanVarianceReward, preference_table
from scripts.evidence.rollouts import PLANTED


def test_a_control_without_exact_decisions_has_as_many_updates() -> None:
    without = rollout_controls.CONTROLS["no expansion"].keys
    updates = [online_updates(load_config(None, keys, environ={})) for keys in ({}, without)]
    assert max(updates) <= 1.03 * min(updates)


def test_the_true_reward_of_preferences_sums_to_the_judges_utility_but_for_the_mean_squared() -> None:
    returns = np.random.default_rng(0).normal(0.001, 0.02, 500)
    paid = MeanVarianceReward()(cast(Any, SimpleNamespace(simple_return=returns)))
    assert paid.mean() == pytest.approx(returns.mean() - 2.5 * returns.var() - 2.5 * returns.mean() ** 2)
    figures = {"accuracy": 0.9, "attainable": 0.9, "share": 1.0, "ece": 0.01}
    utility = {"untrained": 0.001, "true": 0.002, "model": 0.0019}
    lines = preference_table([{"seed": 3, **figures, "utility": utility}]).splitlines()
    assert lines[2] == "| 3 | 0.900 | 1.00 | 0.010 | 10.00 | 20.00 | 19.00 | 0.95 |"


def rollout(kind: str, end: float, confidence: float) -> dict[str, Any]:
    slopes = {"training_advantage_slope": 1.1, "validation_advantage_slope": 0.6}
    slopes |= {f"{name}_error": 0.3 for name in slopes}
    facts = {"start": 0.1, "turnover": 3.0, "out_of_fold_t": 4.0, **slopes}
    return {"kind": kind, "end": end, "confidence": confidence, "seconds": {"online": 1.0}, "code": "x", **facts}


def test_the_table_shows_each_sample_and_the_share_of_false_finds_with_its_interval() -> None:
    results = [rollout(kind, end, 0.9) for kind in PLANTED for end in (0.8, 0.9, 1.0)]
    results += [rollout("monthly", 1.0, 0.5) | {"reference": 1.0, "equal_weight": 0.77}]
    results += [rollout("nyse", 1.0, 0.5) | {"reference": 0.0, "equal_weight": 1.02, "code": "0123"}]
    results += [rollout(kind, 1.0, confidence) for kind in rollouts.NULLS for confidence in (0.0, 0.0, 0.0, 0.6)]
    page = rollouts.rollout_table(results)
    assert page.count("0.800, 0.900, 1.000") == len(PLANTED)
    assert "1.10 ± 0.17 / 0.60 ± 0.17" in page  # three samples: 0.3 over the root of 3
    assert page.count("25% (1% to 81%)") == len(rollouts.NULLS)  # one of four, exact binomial
    assert "| monthly | 1 | 0.77 |" in page
    assert page.endswith("| equal-weight | 0123 |\n")  # its prices are not here to make it anew


def test_later_years_are_compared_with_the_rules_and_with_the_hand_over() -> None:
    """Gaps to equal weight of .1 and .3 in the two folds: mean .2; the error is that of the folds' means, .1."""
    results: list[dict[str, Any]] = []
    for fold in (1, 2):
        sharpes = {"equal-weight": 0.5, "inverse-volatility": 0.6, "hand-over": 0.8, "own": 0.3, "confidence": 0.5}
        sharpes |= {"delivered": 0.4 + 0.2 * fold}
        results += [{"fold": fold, "seed": seed, "window": ["2001", "2004"], **sharpes} for seed in (0, 1)]
    lines = later_years.later_years_table(results).splitlines()
    assert lines[2].startswith("| 1 | 2001 to 2004 | 2 | 0.50 ± 0.00 | 0.60 ± 0.00 | 0.80 ± 0.00 | 0.30 ± 0.00 | 0.60 ")
    assert lines[-2].startswith("| default less each | | 4 | 0.200, standard error 0.100 | 0.100, standard error ")
    assert lines[-1].startswith("| own policy less each | | 4 | -0.200, standard error 0.000 ")


def test_a_control_is_compared_with_the_default_of_the_same_sample() -> None:
    def control(name: str, scores: dict[int, float]) -> list[dict[str, Any]]:
        facts = {"variant": f"control-{name}", "seconds": {"online": 2.0}}
        return [{**facts, "seed": seed, "own": own} for seed, own in scores.items()]

    table = rollout_controls.control_table([*control("default", {1: 0.8, 2: 0.9}), *control("no-cql", {2: 0.7})])
    assert "| default | 0.800, 0.900 | - | 2 | 0 of 2 |" in table
    assert "| no CQL | 0.700 | 0.200 | 2 | 0 of 1 |" in table
