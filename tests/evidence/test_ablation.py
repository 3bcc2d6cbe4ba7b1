"""The table of the agent's parts says what was measured of each, and what a part is worth seed by seed."""

from __future__ import annotations

from pathlib import Path

from scripts.evidence.ablation import PARTS, PREFIX, ROWS, ablation_table, ablation_variants
from scripts.evidence.variants import run_missing
from tests.short_trainings import SHORT, write_prices

SMALL = SHORT | {"market.source": "csv", "market.train_end": "2011-06-30", "market.validation_end": "2011-10-31"}


def metrics(sharpe: float) -> dict[str, float]:
    return {"sharpe": sharpe, "max_drawdown": -0.1, "cvar": -0.02, "annual_turnover": 2.0}


def test_a_part_is_compared_seed_by_seed() -> None:
    results = [
        {
            "variant": f"{PREFIX}{part}",
            "seed": seed,
            "updates": {"offline": 10, "online": 30},
            "validation": {"hand-over": metrics(0.5 + seed), "end": metrics((2.0 if part == "whole" else 1.0) + seed)},
        }
        for seed in (1, 0)
        for part in PARTS
    ]
    lines = ablation_table(results, {"equal-weight": metrics(0.7)}).splitlines()
    assert lines[2] == "| equal-weight | | | 0.70 | -10.00 | -2.00 | 2.00 | |"
    rows = {line.split("|")[1].strip(): line for line in lines[3:]}
    assert rows["finflow, B-Cell"].startswith("| finflow, B-Cell | 2 | 30 | 2.50 ± ")
    assert rows["finflow, B-Cell"].endswith("| |")
    assert rows["finflow, without CQL"].endswith("| -1.00 ± 0.00 |")
    assert rows["finflow, IQL alone"].endswith("| -1.50 ± 0.00 |")


def test_every_part_trains_and_is_shown(tmp_path: Path) -> None:
    variants = ablation_variants(1, {**SMALL, "market.path": str(write_prices(tmp_path / "prices.csv"))})
    results = run_missing(variants, tmp_path / "evidence", tmp_path / "runs")
    assert [one["variant"].removeprefix(PREFIX) for one in results] == list(PARTS)
    assert "offline" not in results[-1]["updates"]  # from scratch
    ends = [one["validation"]["end"]["sharpe"] for one in results]
    assert len(set(ends)) == len(PARTS)  # each part changes what is learned
    assert results[0]["validation"]["hand-over"]["cvar"] < 0.0
    table = ablation_table(results, {})
    assert all(f"finflow, {row}" in table for row in ROWS)
