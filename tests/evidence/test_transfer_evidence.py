"""Evidence about transfer: disjoint names, and every agent judged on the same market."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scripts.evidence.transfer import _parts, transfer_variants
from scripts.evidence.variants import run_missing


def test_an_agent_never_learns_from_the_others() -> None:
    order = np.random.default_rng(0).permutation(30)
    parts = _parts(order, 20)
    assert {name: len(part) for name, part in parts.items()} == {"known": 20, "others": 10, "all": 30}
    assert not set(parts["known"]) & set(parts["others"])
    assert set(_parts(order[:20], 10)) == {"known", "others"}  # half of the names: all of them are not another market


def test_a_small_training_moves_to_other_stocks(tmp_path: Path) -> None:
    more = {
        **{"train.online_episodes": 4, "env.episode_length": 40, "market.start": "2004-01-01", "bcell.hidden_dim": 8},
        **{"market.train_end": "2008-12-31", "market.validation_end": "2009-12-31"},
    }
    variant = transfer_variants(1, more)[1]
    (found,) = run_missing([variant], tmp_path / "page.json", tmp_path / "runs")
    others = found["targets"]["others"]
    assert others["names"] == 10
    assert others["visitor"] != pytest.approx(others["resident"], abs=1e-9)
    assert np.isfinite([others["visitor"], others["equal-weight"]]).all()
