"""The evidence about the search, in small: searches and retrainings are scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.evidence import tuning_evidence
from scripts.evidence.tuning_evidence import WAYS, tuning_table, tuning_variants
from scripts.evidence.variants import run_missing
from tests.short_trainings import SHORT

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
SMALL = {
    **SHORT,
    "market.synthetic.bars": 1500,
    "market.train_end": "2020-12-31",
    "market.validation_end": "2021-06-30",
    "market.test_end": "2021-12-31",
    "evaluation.protocol.purge": 5,
    "tune.space": {"bcell.gamma": {"low": 0.9, "high": 0.99}},
}


def test_a_search_and_its_retraining_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning_evidence, "FRESH", 1)
    variants = [one for one in tuning_variants(DEMO, 1, 2, SMALL) if one.name == "tune-pruned-2"]
    (searched,) = run_missing(variants, tmp_path / "page.json", tmp_path / "runs")
    assert searched["finished"] == 2
    assert searched["updates"] > 0
    assert set(searched["best"]) == {"bcell.gamma"}
    assert len(searched["scores"]) == 1
    assert set(searched["seconds"]) == {"search", "retraining"}
    assert "best of TPE with pruning | 1 |" in tuning_table([searched])


def test_every_pair_has_a_market_of_its_own_and_the_same_for_every_way(tmp_path: Path) -> None:
    variants = tuning_variants(DEMO, pairs=2)
    assert len(variants) == 2 * len(WAYS)
    configs = [variant.config(variant.seeds[0], tmp_path) for variant in variants]
    for pair in (0, 1):
        own = [config for config in configs if config.train.seed == pair]
        assert {config.market.synthetic.seed for config in own} == {pair}
        assert len({config.market.model_dump_json() for config in own}) == 1
        assert [config.tune.sampler for config in own[:2]] == ["tpe", "random"]
        assert [config.tune.pruner for config in own[:3]] == ["none", "none", "median"]
