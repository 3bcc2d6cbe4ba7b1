"""Evidence about online learning: one configuration for every market, and a table that counts false finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finflow.config import load_config
from finflow.training.data.training_data import prepare
from scripts.evidence.belief_ceiling import ceiling_of
from scripts.evidence.rollout_controls import control_table
from scripts.evidence.rollouts import (
    LOG_RETURN,
    NULLS,
    OWN,
    PLANTED,
    planted_market,
    planted_variants,
    rollout_table,
    rollout_variants,
)


def result(kind: str, end: float, confidence: float) -> dict[str, Any]:
    slopes = {"training_advantage_slope": 1.1, "validation_advantage_slope": 0.6}
    slopes |= {f"{name}_error": 0.3 for name in slopes}
    facts = {"start": 0.1, "turnover": 3.0, "out_of_fold_t": 4.0, **slopes}
    return {"kind": kind, "end": end, "confidence": confidence, "seconds": {"online": 1.0}, "code": "x", **facts}


def test_every_market_learns_with_the_same_values() -> None:
    """Keys of the agent and of its training are alike on all planted markets; only the market's own differ."""
    variants = [one for one in rollout_variants(2) if one.name.removeprefix("rollouts-") in PLANTED]
    assert len(variants) == 2 * len(PLANTED)
    learning = [
        {key: value for key, value in one.overrides.items() if key.startswith(("bcell.", "train.", "features."))}
        for one in variants
    ]
    assert all(keys == learning[0] for keys in learning)
    assert all(key.startswith("market.synthetic.") for own in OWN.values() for key in own)
    seeds = {one.overrides["market.synthetic.seed"] for one in variants}
    assert len(seeds) == 2


def test_a_planted_market_is_named_by_its_signal(tmp_path: Path) -> None:
    for variant in planted_variants(1):
        assert f"rollouts-{planted_market(variant.config(variant.seeds[0], tmp_path))}" == variant.name


def test_the_table_shows_each_sample_and_the_share_of_false_finds_with_its_interval() -> None:
    results = [result(kind, end, 0.9) for kind in PLANTED for end in (0.8, 0.9, 1.0)]
    results += [result("monthly", 1.0, 0.5) | {"reference": 1.0, "equal_weight": 0.77}]
    results += [result("nyse", 1.0, 0.5) | {"reference": 0.0, "equal_weight": 1.02, "code": "0123"}]
    results += [result(kind, 1.0, confidence) for kind in NULLS for confidence in (0.0, 0.0, 0.0, 0.6)]
    page = rollout_table(results)
    assert page.count("0.800, 0.900, 1.000") == len(PLANTED)
    assert "1.10 ± 0.17 / 0.60 ± 0.17" in page  # three samples: 0.3 over the root of 3
    assert page.count("25% (1% to 81%)") == len(NULLS)  # one of four, exact binomial
    assert "| monthly | 1 | 0.77 |" in page
    assert "| nyse | 1 | 1.02 |" in page
    assert page.endswith("| equal-weight | 0123 |\n")  # its prices are not here to make it anew
    assert "| inverse-volatility |" in page


def test_the_belief_can_be_read_off_the_features(tmp_path: Path) -> None:
    """The optimal rule by a belief that the encoder guesses is far from equal weight; more updates come nearer to 1."""
    market = {"market.source": "synthetic", "market.synthetic.kind": "mean-reverting", "market.synthetic.bars": 6000}
    keys = {**LOG_RETURN, **OWN["mean-reverting"], **market, "market.cache_dir": str(tmp_path)}
    keys |= {"market.train_end": "2014-12-31", "market.validation_end": "2018-12-31"}
    score = ceiling_of(prepare(load_config(None, keys, environ={})), seed=0, updates=200)
    assert 0.6 < score < 1.1


def test_a_control_that_the_guard_ended_says_so() -> None:
    own = [result("regime", end, 0.0) | {"variant": "rollouts-regime-h-0", "own": end} for end in (0.2, 0.4)]
    own[0]["stopped"] = True
    assert "0.200, 0.400 (1 of 2 stopped)" in control_table(own, [])
