"""The evidence of the test of foreknowledge: honest strategies are scored, leaks are flagged, and the tables say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.evaluation.audit.foreknowledge_scores import Foreknowledge
from scripts.evidence import foresight
from scripts.evidence.foresight import OTHERWISE, foresight_page, measure_honest
from tests.short_trainings import SHORT, config_in

KEYS = {
    "market.source": "synthetic",
    "market.synthetic.kind": "mean-reverting",
    "market.synthetic.bars": 1200,
    "market.train_end": "2020-12-31",
    "market.validation_end": "2021-12-31",
}


def leaks_of(share: float, draw: int) -> bool:
    moves = 0.01 * np.random.default_rng(3).standard_normal((900, 12))
    test = Foreknowledge(100.0 * np.exp(np.cumsum(moves, axis=0)))
    return foresight._is_flagged(test, np.arange(300, 890), share, OTHERWISE[1], 1, draw)


def test_a_large_leak_is_flagged_and_none_is_not() -> None:
    assert all(leaks_of(0.6, draw) for draw in range(3))
    assert not any(leaks_of(0.0, draw) for draw in range(3))


def _result(found: dict[str, Any]) -> dict[str, Any]:
    return {"variant": "foresight-mean-reverting", "code": "c", **found}


def test_an_honest_market_is_measured_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foresight, "NAMED", ("momentum",))
    found = measure_honest(config_in(tmp_path, {**SHORT, **KEYS}))
    assert next(iter(found["rows"])) == "optimal"
    assert {"finflow", "momentum"} <= set(found["rows"])
    parts = [row[part] for row in found["rows"].values() for part in ("whole", "block") if part in row]
    assert all(part["share"] < 1.0 for part in parts)
    assert set(found["features"]) == {"clean"}
    assert found["honest"]["1"]["assets"] > 0.15  # a reversion can be foretold
    leaks = {
        f"{other}|{count}|{share}": 3 for other in OTHERWISE for count in (250, 1000) for share in foresight.SHARES
    }
    page = foresight_page([_result(found), {"code": "c", "flagged": leaks}])
    assert "| mean-reverting | optimal | " in page
    assert page.count("| no |") == len(found["rows"]) + 1
    assert "| equal weight | 250 | 3 |" in page
