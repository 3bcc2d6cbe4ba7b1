"""The table of offline updates compares lengths fold by fold and seed by seed with the longest."""

from __future__ import annotations

from typing import Any

from finflow.config import load_config
from scripts.evidence.offline_updates import LENGTHS, LONGEST, offline_updates_table, offline_updates_variants


def _result(length: str, fold: int, sharpe: float) -> dict[str, Any]:
    return {
        "configuration_name": length.replace(" ", "-").replace(",", ""),
        "fold": fold,
        "seed": 0,
        "updates": 100 * fold,
        "seconds": {"processor": 8.0},
        "judged": {"sharpe": sharpe},
        "equal_weight": {"sharpe": 0.5},
    }


def test_lengths_are_compared_with_the_longest_on_the_same_folds() -> None:
    """Gaps of .1 and -.3 in two folds: mean -.1, standard error .2; the third fold has no training of the longest."""
    results = [_result(LONGEST, 1, 0.8), _result(LONGEST, 2, 0.6)]
    results += [_result("2 epochs", fold, sharpe) for fold, sharpe in ((1, 0.9), (2, 0.3), (3, 0.9))]
    rows = {line.split("|")[1].strip(): line for line in offline_updates_table(results).splitlines()[2:]}
    assert list(rows) == ["2 epochs", LONGEST]
    assert "over the longest" in offline_updates_table(results).splitlines()[0]
    assert rows["2 epochs"] == "| 2 epochs | 3 | 200 | 8 | 0.700 | +0.200 | -0.100 | 0.200 |"
    assert rows[LONGEST] == f"| {LONGEST} | 2 | 150 | 8 | 0.700 | +0.200 | | |"


def test_lengths_differ_in_nothing_but_their_updates() -> None:
    variants = offline_updates_variants(2)
    assert len({(one.name, *one.seeds) for one in variants}) == 3 * len(LENGTHS)
    keys = {"train.offline_training_epochs", "offline.patience"}
    others = {tuple((key, one.overrides[key]) for key in sorted(one.overrides) if key not in keys) for one in variants}
    assert len(others) == 1
    assert all(keys <= set(one.overrides) for one in variants)
    load_config(None, dict(variants[0].overrides), environ={})
