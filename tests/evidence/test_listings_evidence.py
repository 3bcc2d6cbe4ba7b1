"""Evidence about listings: the same prices with and without, cut where it says, and a table with the bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from finflow.market.panel import MarketPanel
from scripts.evidence.listings import (
    BOUND,
    DEFAULT,
    EARLIEST,
    EMBEDDED,
    LATEST,
    LONG,
    SHORT,
    cut_listings,
    listings_table,
    listings_variants,
    upper_bound,
)
from scripts.evidence.variants import run_missing


def test_assets_are_cut_within_the_training_window_half_late_and_half_early() -> None:
    close = np.exp(np.random.default_rng(0).normal(size=(400, 7)))
    dates = np.datetime64("2015-01-05") + np.arange(400)
    panel = MarketPanel(dates, tuple("ABCDEFG"), close)
    for seed in range(20):
        cut = cut_listings(panel, 300, 5, np.random.default_rng(seed))
        first, last = np.argmax(cut.listed, axis=0), 399 - np.argmax(cut.listed[::-1], axis=0)
        late, early = np.flatnonzero(first > 0), np.flatnonzero(last < 399)
        assert (len(late), len(early)) == (3, 2)
        assert not set(late) & set(early)
        assert ((first[late] >= LATEST[0] * 299) & (first[late] <= LATEST[1] * 300)).all()
        assert ((last[early] >= EARLIEST[0] * 299 - 1) & (last[early] <= EARLIEST[1] * 300)).all()
        np.testing.assert_array_equal(cut.close[cut.listed], close[cut.listed])


def test_no_sample_is_drawn_twice_and_the_settings_of_learning_are_alike() -> None:
    planted = [one for one in listings_variants({SHORT: 5, LONG: 4}, {DEFAULT: 2}) if EMBEDDED not in one.name]
    samples = [one.overrides["market.synthetic.seed"] for one in planted]
    assert len(set(samples)) == len(samples) == 9
    learning = [
        {key: value for key, value in one.overrides.items() if not key.startswith("market.synthetic.")}
        for one in planted
    ]
    assert all(keys == learning[0] for keys in learning)


def test_the_table_has_the_upper_end_of_the_interval() -> None:
    pairs = [(0.9, 0.88), (0.8, 0.81), (0.95, 0.9)]
    facts = {"kind": "constant-drift", "agent": DEFAULT, "bars": 6956, "listed_share": 0.8}
    table = listings_table(
        [{**facts, "complete": one, "listings": other, "listings_unlisted": 0.0} for one, other in pairs]
    )
    losses = [0.02, -0.01, 0.05]
    mean, half = 0.02, 4.302653 * np.std(losses, ddof=1) / np.sqrt(3)  # Student's t at 97.5 %, two degrees of freedom
    assert upper_bound(losses) == pytest.approx(mean + half, abs=1e-6)
    assert f"| {mean + half:.3f} | 0 |" in table
    assert "| 6,956 | score | 3 | 80% |" in table


def test_a_small_pair_asks_for_nothing_that_is_not_listed(tmp_path: Path) -> None:
    """One sample, few bars and episodes: no weight on what is not listed, and no collapse of the score."""
    more = {"market.synthetic.bars": 2500, "train.online_episodes": 20, "out_of_fold.blocks": 2}
    (variant,) = listings_variants({LONG: 1}, {}, more)
    (found,) = run_missing([variant], tmp_path, tmp_path / "runs")
    assert found["listings_unlisted"] == 0.0
    assert found["listed_share"] < 0.95
    assert found["complete"] - found["listings"] < 10 * BOUND
    assert np.isfinite([found["complete"], found["listings"]]).all()
