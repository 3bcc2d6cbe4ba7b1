"""The table of the agent's parts says what was measured of each, and what a part is worth seed by seed."""

from __future__ import annotations

from typing import Any

from finflow.config import Config, flatten, load_config
from finflow.training.off_policy.learners import online_updates
from scripts.evidence.ablation import MARKETS, PARTS, PREFIX, SIZE, WHOLE, ablation_table, ablation_variants


def _result(market: str, part: str, seed: int) -> dict[str, Any]:
    worth = (0.9 if part == WHOLE else 0.7) + 0.01 * seed
    slopes = {f"{window}_advantage_slope": slope for window, slope in (("training", 0.9), ("validation", 0.6))}
    found = {"variant": f"{PREFIX}{market}-{part}", "seed": seed, "end": worth, "turnover": 2.0}
    return {**found, **({} if part == "switch" else {"confidence": 0.5, **slopes})}


def test_a_part_is_compared_seed_by_seed() -> None:
    results = [_result(market, part, seed) for seed in (1, 0) for market in MARKETS for part in PARTS]
    rows = {line.split("|")[1].strip(): line for line in ablation_table(results).splitlines()[2:]}
    assert list(rows) == [heading for heading, _ in PARTS.values()]
    assert rows["the default"].startswith("| the default | 0.905 ± 0.064 | | 0.50 | 2.0 |")
    assert rows["without mirrored bars"].endswith("| -0.200 ± 0.000 | 0.50 | 2.0 | 0.90 / 0.60 |")
    assert rows["without the evidence of held-out years"].endswith("| -0.200 ± 0.000 | - | 2.0 | - |")


def test_a_part_that_was_not_trained_is_left_blank() -> None:
    table = ablation_table([_result("regime", WHOLE, 0)])
    assert "| the default | 0.900 | | 0.50 | 2.0 | | | | | 0.90 / 0.60 |" in table


def test_each_part_is_left_out_by_keys_that_differ_from_the_default() -> None:
    default = flatten(Config().model_dump())
    for name, (_, keys) in PARTS.items():
        assert all(default[key] != value for key, value in keys.items()), name
    variants = ablation_variants(5)
    assert len(variants) == len(PARTS) * sum(most for _, most in MARKETS.values())
    assert len({(one.name, *one.seeds) for one in variants}) == len(variants)


def test_all_parts_have_as_many_updates() -> None:
    updates = [online_updates(load_config(None, {**SIZE, **keys}, environ={})) for _, keys in PARTS.values()]
    assert max(updates) <= 1.03 * min(updates)
