"""The table of the agent's parts says what was measured of each, and what a part is worth seed by seed."""

from __future__ import annotations

from pathlib import Path

from scripts.evidence.ablation import PARTS, ablation_table, ablation_variants
from scripts.evidence.variants import run_missing
from tests.short_trainings import SHORT, write_prices

SMALL = SHORT | {
    "online.algorithm": "rollouts",
    "features.filters": "all",
    "bcell.rollouts.portfolios": 2,
    "bcell.rollouts.horizon": 2,
    "bcell.rollouts.actions": 2,
    "bcell.rollouts.critic_updates": 1,
    "market.source": "csv",
    "market.train_end": "2011-06-30",
    "market.validation_end": "2011-10-31",
}


def test_a_part_is_compared_seed_by_seed() -> None:
    results = [
        {
            "variant": variant.name,
            "seed": variant.seeds[0],
            "start": 0.5 + variant.seeds[0],
            "end": (2.0 if variant.name.endswith("-whole") else 1.0) + variant.seeds[0],
            "turnover": 3.0,
            "seconds": {"online": 7.0},
        }
        for variant in reversed(ablation_variants(2))
    ]
    for lines in (table.splitlines() for table in ablation_table(results).split("\n\n")):
        rows = {line.split("|")[1].strip(): line for line in lines[2:]}
        assert list(rows) == list(PARTS)
        assert rows["whole"].startswith("| whole | 2 | 2.50 ± ")
        assert "| | 1.50 ± 0.00 |" in rows["whole"]  # no difference from itself; what was learned since the hand-over
        assert "| -1.00 ± 0.00 | 0.50 ± 0.00 |" in rows["sac, no CQL"]
        assert rows["sac"].endswith("| 3.00 | 7 |")


def test_a_seed_without_the_whole_is_left_out() -> None:
    facts = {"start": 0.0, "end": 1.0, "turnover": 1.0, "seconds": {"online": 1.0}}
    both = [{"variant": f"ablation-regime-{part}", "seed": 0, **facts} for part in ("whole", "sac")]
    table = ablation_table([*both, {"variant": "ablation-regime-sac", "seed": 1, **facts, "end": 9.0}])
    assert "| sac | 1 | 1.00 | 0.00 |" in table


def test_parts_train_and_are_shown(tmp_path: Path) -> None:
    """Of each kind one: a shorter rollout, no folds, no offline phase, and another algorithm."""
    size = {**SMALL, "market.path": str(write_prices(tmp_path / "prices.csv"))}
    chosen = ("whole", "one bar ahead", "no evidence from folds", "from scratch", "sac")
    names = [f"ablation-embedded-{part.replace(' ', '-')}" for part in chosen]
    own = {one.name: one for one in ablation_variants(1, size)}
    results = run_missing([own[name] for name in names], tmp_path / "evidence", tmp_path / "runs")
    evidence = [one["out_of_fold_t"] for one in results if "out_of_fold_t" in one]
    assert len(set(evidence)) == len(evidence) == 3  # neither without folds nor by another algorithm
    assert results[3]["start"] != results[0]["start"]  # random networks at the hand-over
    table = ablation_table(results)
    assert all(f"| {part} | 1 |" in table for part in chosen)
    assert set(chosen) <= set(PARTS)
