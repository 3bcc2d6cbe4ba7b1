"""The table about the guard says what the trainings said, also where they ended in an error."""

from __future__ import annotations

from typing import Any

from scripts.evidence.guard_faults import guard_table, guard_variants


def result(variant: str, seed: int, **changes: Any) -> dict[str, Any]:
    healthy = {"value": 4e-4 + 1e-5 * seed, "detected": None, "signal": None, "alarms": 0, "lowered": 0, "rollbacks": 0}
    return {"variant": variant, "seed": seed, **healthy, **changes}


def test_the_table_counts_seeds_that_end_near_the_undisturbed() -> None:
    results = [result(variant.name, seed) for variant in guard_variants(2) for seed in variant.seeds]
    for row in results:
        if row["variant"] == "guard-off-gate-dies" and row["seed"] == 1:
            row["value"] = -1e-3
        if row["variant"] == "guard-off-poisoned-batches-nan":
            row["value"] = None
        if row["variant"] == "guard-on-critic-explodes":
            row |= {"detected": 1 + row["seed"], "signal": "q", "rollbacks": 1}
    lines = guard_table(results).splitlines()
    assert lines[0] == "Undisturbed: 4.050, standard deviation over 2 seeds 0.071."
    assert "| critic explodes | on | 2 | q | 0.0 | 1.0 | 4.050 | 2 of 2 |" in lines
    assert "| gate dies | off | no | | 0.0 | 0.0 | -3.000 | 1 of 2 |" in lines
    assert "| poisoned batches, NaN | off | no | | 0.0 | 0.0 | none (2 ended in an error) | 0 of 2 |" in lines
    assert "| regime | 2 | 0 | 0 |" in lines
