"""The evidence on policy optimisation measures small trainings, and its tables show them."""

from __future__ import annotations

import math
from pathlib import Path

from scripts.evidence.on_policy_markets import (
    ESTIMATORS,
    compare_gradients,
    gradient_table,
    gradient_variants,
    learn_and_judge,
    market_trainings_table,
    market_trainings_variants,
)
from tests.short_trainings import SHORT, config_in, write_prices

DATES = {"market.train_end": "2011-06-30", "market.validation_end": "2011-10-31", "market.source": "csv"}
TINY = {"online.rollout": 32, "online.portfolios": 8, "online.minibatch": 16, "online.epochs": 1}


def test_a_small_training_is_judged_and_shown(tmp_path: Path) -> None:
    prices = {"market.path": str(write_prices(tmp_path / "prices.csv")), "online.reference": "pretrained"}
    results = []
    for algorithm in ("ppo", "sac"):
        config = config_in(tmp_path, {**SHORT, **DATES, **TINY, **prices, "online.algorithm": algorithm})
        found = learn_and_judge(config)
        assert math.isfinite(found["end"])
        assert found["kl"] >= 0.0
        results.append({"variant": f"on-policy-embedded-{algorithm}-reference", **found})
    table = market_trainings_table(results)
    assert "| embedded | ppo | reference | 1 |" in table
    assert "| embedded | sac | reference | 1 |" in table


def test_the_variants_are_three_algorithms_from_three_starts() -> None:
    assert len(market_trainings_variants((0,), ("regime",))) == 9
    assert len({variant.name for variant in market_trainings_variants()}) == 27


def test_gradients_of_both_advantages_are_compared(tmp_path: Path) -> None:
    prices = {"market.path": str(write_prices(tmp_path / "prices.csv"))}
    found = compare_gradients(config_in(tmp_path, {**SHORT, **DATES, **TINY, **prices, "online.algorithm": "ppo"}), 6)
    assert list(found["variance"]) == list(found["cosine"]) == list(ESTIMATORS)
    assert all(variance > 0.0 for variance in found["variance"].values())
    variant = gradient_variants(("regime",))[0]
    assert "| regime | equal-weight |" in gradient_table([{"variant": variant.name, **found}])
