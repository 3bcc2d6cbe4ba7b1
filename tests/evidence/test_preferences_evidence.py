"""Evidence about preferences: the true reward of the judge, and tables of what was measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from scripts.evidence.preferences import (
    MeanVarianceReward,
    preference_table,
)


def test_the_true_reward_sums_to_the_judges_utility_but_for_the_mean_squared() -> None:
    returns = np.random.default_rng(0).normal(0.001, 0.02, 500)
    paid = MeanVarianceReward()(cast(Any, SimpleNamespace(simple_return=returns)))
    assert paid.mean() == pytest.approx(returns.mean() - 2.5 * returns.var() - 2.5 * returns.mean() ** 2)


def test_the_table_compares_by_seed() -> None:
    figures = {"accuracy": 0.9, "attainable": 0.9, "share": 1.0, "ece": 0.01}
    utility = {"untrained": 0.001, "true": 0.002, "model": 0.0019}
    lines = preference_table([{"seed": 3, **figures, "utility": utility}]).splitlines()
    assert lines[2:4] == [
        "| 3 | 0.900 | 1.00 | 0.010 | 10.00 | 20.00 | 19.00 | 0.95 |",
        "| mean | 0.900 | 1.00 | 0.010 | 10.00 | 20.00 | 19.00 | 0.95 |",
    ]
