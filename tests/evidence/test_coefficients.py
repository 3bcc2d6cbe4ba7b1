"""Pairs of trainings with the coefficients of the presets: what differs is the coefficient, and seeds are paired."""

from __future__ import annotations

from pathlib import Path

import yaml

from finflow.config import flatten
from scripts.evidence.coefficients import CHANGES, DEFAULT, SHOWN, coefficient_table

ROOT = Path(__file__).parents[2]


def test_the_presets_coefficients_are_among_the_changes() -> None:
    changes = {key: value for keys in CHANGES.values() for key, value in keys.items()}
    assert len(changes) == 2
    for preset in ("volatile", "calm"):
        keys = flatten(yaml.safe_load((ROOT / "configs" / f"{preset}.yaml").read_text("utf-8")))
        for key in changes.keys() & keys.keys():
            assert {key: keys[key]} in CHANGES.values()


def test_a_change_is_compared_with_the_default_of_the_same_seed() -> None:
    """Differences of .1, .2 and .3, whatever the seeds' own level: mean .2, t of .2 over .1 / root of 3."""
    results = []
    for seed, level in enumerate((10.0, 20.0, 30.0)):
        for change, value in ((DEFAULT, level), ("cql_alpha 10", level + 0.1 * (seed + 1))):
            name = f"coefficients-embedded-{change.replace(' ', '-').replace('_', '-')}"
            results.append({"variant": name, "seed": seed, **dict.fromkeys(SHOWN, value)})
    lines = coefficient_table(results[::-1]).splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| embedded | default | 3 | 20.000 | |")
    assert lines[3].startswith("| embedded | cql_alpha 10 | 3 | +0.200 ± 0.248 | 3.5 |")
