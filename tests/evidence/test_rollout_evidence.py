"""Evidence about online learning: one configuration for every market, named by its signal."""

from __future__ import annotations

from pathlib import Path

from finflow.config import load_config
from finflow.training.data.training_data import prepare
from scripts.evidence.belief_ceiling import ceiling_of
from scripts.evidence.rollouts import LOG_RETURN, OWN, PLANTED, planted_market, planted_variants, rollout_variants


def test_every_market_learns_with_the_same_values_and_is_named_by_its_signal(tmp_path: Path) -> None:
    """Keys of the agent and of its training are alike on all planted markets; only the market's own differ."""
    variants = [one for one in rollout_variants(2) if one.name.removeprefix("rollouts-") in PLANTED]
    assert len(variants) == 2 * len(PLANTED)
    learning = [
        {key: value for key, value in one.overrides.items() if key.startswith(("bcell.", "train.", "features."))}
        for one in variants
    ]
    assert all(keys == learning[0] for keys in learning)
    assert len({one.overrides["market.synthetic.seed"] for one in variants}) == 2
    for variant in planted_variants(1):
        assert f"rollouts-{planted_market(variant.config(variant.seeds[0], tmp_path))}" == variant.name


def test_the_belief_can_be_read_off_the_features(tmp_path: Path) -> None:
    """The optimal rule by a belief that the encoder guesses is far from equal weight; more updates come nearer to 1."""
    market = {"market.source": "synthetic", "market.synthetic.kind": "mean-reverting", "market.synthetic.bars": 6000}
    keys = {**LOG_RETURN, **OWN["mean-reverting"], **market, "market.cache_dir": str(tmp_path)}
    keys |= {"market.train_end": "2014-12-31", "market.validation_end": "2018-12-31"}
    score = ceiling_of(prepare(load_config(None, keys, environ={})), seed=0, updates=200)
    assert 0.6 < score < 1.1
