"""Calibration of the joined verdict in small: no rule knows its window, an edge is found, and the books are kept."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from finflow.config import Config, load_config
from finflow.experiments.jobs.folds import folds_of, history_of
from finflow.market.panel import MarketPanel
from finflow.strategies.strategy import Information
from scripts.evidence import walk_forward_nulls
from scripts.evidence.null_markets import NullStudy, permuted_panel
from scripts.evidence.walk_forward_nulls import (
    RANDOM,
    WINNERS,
    HeldWeights,
    judge_joined_market,
    untrained,
)

BARS = 1100


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(None, {"evaluation.protocol.folds": 2, "evaluation.rebalance_every": 63}, environ={})


@pytest.fixture(scope="module")
def panel() -> MarketPanel:
    steps = np.random.default_rng(0).normal(3e-4, 0.01, (BARS, 6))
    dates = np.busday_offset("2015-01-01", np.arange(BARS), roll="forward")
    return MarketPanel(dates, tuple("ABCDEF"), 100.0 * np.exp(np.cumsum(steps, axis=0)))


def weights_of(rules: list, name: str) -> np.ndarray:
    (rule,) = (one for one in rules if one.name == name)
    assert isinstance(rule, HeldWeights)
    return rule.weights


def test_no_rule_knows_what_its_training_would_not(panel: MarketPanel, config: Config) -> None:
    folds = folds_of("walk-forward", panel.n_bars, config.evaluation.protocol, history_of(panel))
    close = panel.close.copy()
    close[folds[0].pieces[0].stop :] = close[folds[0].pieces[0].stop :, ::-1]
    other = MarketPanel(panel.dates, panel.assets, close)
    for name in (RANDOM, WINNERS):
        first, changed = (weights_of(untrained(folds[0], one, 3, config), name) for one in (panel, other))
        np.testing.assert_array_equal(first, changed)
        assert first.sum() == pytest.approx(1.0)
    drawn = [weights_of(untrained(fold, panel, 3, config), RANDOM) for fold in folds]
    assert not np.allclose(*drawn)
    best = weights_of(untrained(folds[0], panel, 3, config), WINNERS)
    learned = folds[0].pieces[0]
    past = panel.close[learned.stop - 1] / panel.close[0]
    assert past[best > 0.0].min() > past[best == 0.0].max()
    information = Information(step=0, prices=np.ones((2, 6)), listed=np.ones(6, bool), portfolio=np.full(7, 1.0 / 7.0))
    np.testing.assert_allclose(HeldWeights(WINNERS, best).decide(information), [*best, 0.0])


def test_the_joined_verdict_finds_a_large_edge_and_nothing_where_nothing_is(panel: MarketPanel, config: Config) -> None:
    nothing = judge_joined_market(permuted_panel(panel, range(BARS), 1), config, 1, 0.0, 100)
    assert set(nothing) == {"first half", RANDOM, WINNERS, "inverse-volatility"}
    assert sum(one["answer"] == "yes" for one in nothing.values()) <= 1
    folds = folds_of("walk-forward", BARS, config.evaluation.protocol, history_of(panel))
    assert nothing[RANDOM]["days"] == sum(len(fold.tests[0]) - 1 for fold in folds)
    assert nothing[RANDOM]["least"] > 0.0
    rich = judge_joined_market(permuted_panel(panel, range(BARS), 1, 8.0), config, 1, 8.0, 100)
    assert rich["first half"]["answer"] == "yes"
    assert set(rich) == {"first half"}


def test_a_study_goes_on_where_it_stopped(
    tmp_path: Path, panel: MarketPanel, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[tuple[int, float]] = []

    def once(market: MarketPanel, config: Config, seed: int, edge: float, samples: int) -> dict[str, object]:
        judged.append((seed, edge))
        return {"first half": {"answer": "yes", "daily": True, "low": 0.1, "least": 0.25, "days": 700}}

    monkeypatch.setattr(walk_forward_nulls, "judge_joined_market", once)
    monkeypatch.setattr(walk_forward_nulls, "load_before_test", lambda config: (panel, 500))
    study = NullStudy(markets=2, planted=1, sizes=(0.5,), samples=100)
    page = walk_forward_nulls.walk_forward_page(tmp_path / "kept.json", tmp_path / "notes.jsonl", study)
    assert judged == [(0, 0.0), (1, 0.0), (0, 0.5)]
    assert walk_forward_nulls.walk_forward_page(tmp_path / "kept.json", tmp_path / "notes.jsonl", study) == page
    assert len(judged) == 3
    assert "| first half | 2 | 2 | 100.0% (34.2% to 100.0%) | 0 | 0 | 2 | 0.25 |" in page
    assert "| 0.5 | 1 | 1 | 100.0% (20.7% to 100.0%) | 0 | 0 | 1 | 0.25 |" in page
    assert json.loads((tmp_path / "kept.json").read_text())["walk-forward"]["rows"][0]["yes"] == 2
