"""SPA and StepM: arch's numbers, the right direction, and right about as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from arch.bootstrap import SPA, StepM

from finflow.errors import EvidenceError
from finflow.evaluation.statistics.bootstrap import Resampling
from finflow.evaluation.statistics.significance_tests import superior_ability, superior_strategies

SETTINGS = Resampling(samples=400, block_length=5, seed=3)


def made(days: int = 300, count: int = 4, edge: float = 0.0, seed: int = 0) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """A benchmark, and strategies around it; the first earns `edge` more a day."""
    rng = np.random.default_rng(seed)
    benchmark = rng.normal(4e-4, 0.01, days)
    others = {f"s{i}": benchmark + rng.normal(0.0, 0.003, days) for i in range(count)}
    others["s0"] = others["s0"] + edge
    return benchmark, others


def test_the_p_values_are_archs() -> None:
    benchmark, others = made(edge=3e-4)
    theirs = SPA(
        -benchmark, -np.column_stack(list(others.values())), block_size=5, reps=400, seed=np.random.default_rng(3)
    )
    theirs.compute()
    ours = superior_ability(benchmark, others, SETTINGS)
    assert [ours.p_lower, ours.p_consistent, ours.p_upper] == list(theirs.pvalues)
    assert ours.strategies == 4
    assert 0.0 < ours.p_consistent < 1.0


def test_the_strategies_named_are_archs_and_only_those_with_an_edge() -> None:
    benchmark, others = made(edge=2e-3)
    theirs = StepM(
        -benchmark,
        -np.column_stack(list(others.values())),
        size=0.05,
        block_size=5,
        reps=400,
        seed=np.random.default_rng(3),
    )
    theirs.compute()
    ours = superior_strategies(benchmark, others, SETTINGS)
    assert ours == tuple(f"s{i}" for i in theirs.superior_models) == ("s0",)
    assert superior_ability(benchmark, others, SETTINGS).p_consistent < 0.01
    assert superior_strategies(benchmark, {"worse": benchmark - 0.001}, SETTINGS) == ()


def test_where_every_strategy_is_superior_step_by_step_all_are_named() -> None:
    """A volatile one is found first; that it is out of the way lets the others be seen."""
    rng = np.random.default_rng(1)
    benchmark = rng.normal(3e-4, 0.01, 1000)
    strategies = {
        "steady": benchmark + 3e-4 + rng.normal(0.0, 0.003, 1000),
        "volatile": benchmark + 3e-3 + rng.normal(0.0, 0.02, 1000),
    }
    assert superior_strategies(benchmark, strategies, Resampling(400, 10, 0)) == ("steady", "volatile")


def test_without_an_edge_five_in_a_hundred_are_found() -> None:
    quick = Resampling(samples=200, block_length=5, seed=0)
    found = [superior_ability(*made(days=150, seed=seed), quick).p_consistent < 0.05 for seed in range(100)]
    assert np.mean(found) <= 0.10


def test_gaps_and_short_windows_are_refused_in_words() -> None:
    benchmark, others = made()
    with pytest.raises(EvidenceError, match="s1 has 24 returns, and the test needs 25"):
        superior_ability(benchmark, {"s1": others["s1"][:24]}, SETTINGS)
    others["s2"][9] = np.nan
    with pytest.raises(EvidenceError, match="returns of s2 have a gap"):
        superior_strategies(benchmark, others, SETTINGS)
