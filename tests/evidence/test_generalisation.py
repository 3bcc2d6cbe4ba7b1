"""Choice by walk-forward: ranked by what is left after the error, and everything tried is counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.errors import EvidenceError
from scripts.evidence import generalisation
from scripts.evidence.generalisation import (
    CLASSICAL,
    WITHDRAWN,
    account,
    ranked,
    ranking_table,
    standard_error,
    walk_forward_variants,
)
from scripts.evidence.results import run_missing
from tests.short_trainings import SHORT, write_prices

SMALL: dict[str, object] = {
    **SHORT,
    "market.source": "csv",
    "market.train_end": "2014-06-30",
    "market.validation_end": "2015-06-30",
    "evaluation.protocol.folds": 2,
    "evaluation.protocol.purge": 30,
}


def made(name: str, over: list[list[float]]) -> list[dict[str, Any]]:
    """Results of a configuration: ``over[fold][seed]`` is its Sharpe ratio over equal weight's."""
    return [
        {
            "configuration_name": name,
            "fold": fold,
            "seed": number,
            "window": [f"200{fold}-01-01", f"200{fold}-12-31"],
            "training": {"train_sharpe": 1.5, "kl": 0.2},
            "judged": {"sharpe": 0.8 + value, "max_drawdown": -0.2, "annual_turnover": 3.0},
            "equal_weight": {"sharpe": 0.8},
            "days": 250,
        }
        for fold, row in enumerate(over, start=1)
        for number, value in enumerate(row)
    ]


def test_a_steady_configuration_ranks_before_a_lucky_one() -> None:
    steady = made("steady", [[0.10, 0.12], [0.11, 0.09], [0.10, 0.10]])
    lucky = made("lucky", [[0.9, 0.9], [-0.2, -0.2], [-0.1, -0.1]])
    table = ranked([*lucky, *steady])
    assert [one.name for one in table] == ["steady", "lucky"]
    assert table[1].mean > table[0].mean
    assert table[0].score == pytest.approx(table[0].mean - table[0].error)
    assert [one.name for one in ranked([*lucky, *steady], multiple=0.0)] == ["lucky", "steady"]


def test_seeds_of_one_fold_are_no_evidence_about_others() -> None:
    values, folds = np.repeat([0.5, -0.5, 0.0], 50), np.repeat([1, 2, 3], 50)
    assert standard_error(values, folds) == pytest.approx(0.5 / math.sqrt(3.0))  # of three, not of 150
    assert math.isnan(standard_error(np.ones(1), np.ones(1, dtype=np.int64)))


def test_configurations_with_other_seeds_are_not_ranked() -> None:
    with pytest.raises(EvidenceError, match="part cannot be ranked"):
        ranked([*made("whole", [[0.1, 0.2], [0.1, 0.2]]), *made("part", [[0.5], [0.5]])])


def test_a_fold_is_trained_judged_on_its_own_window_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = {**SMALL, "market.path": str(write_prices(tmp_path / "prices.csv", 1800))}
    devices = {"bcell.averaging.kind": "ema"}
    variants = [one for one in walk_forward_variants(1, {"devices": devices}, size) if one.name.endswith("2")]
    results = run_missing(variants, tmp_path / "page.json", tmp_path / "runs")
    assert [one["configuration_name"] for one in results] == [CLASSICAL, "devices"]
    rules, found = results
    assert found["window"][1] <= "2015-06-30"
    assert found["equal_weight"]["sharpe"] == pytest.approx(rules["strategies"]["equal-weight"]["sharpe"])
    assert found["training"]["kl"] >= 0.0
    assert np.isfinite(found["training"]["train_value"])
    assert found["days"] > 100
    monkeypatch.setattr(generalisation, "train_all", lambda *given: pytest.fail("trained again"))
    assert run_missing(variants, tmp_path / "page.json", tmp_path / "runs") == results
    assert "| devices | 1 |" in ranking_table(results)
    assert f"Configurations tried: {1 + WITHDRAWN}, {WITHDRAWN} of them " in account(results)
