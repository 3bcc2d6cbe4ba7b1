"""Scores against a known optimum: what can be estimated from the sample reaches it, what has not learned does not."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
import torch

from finflow.agent.policy import ExpertPolicy
from finflow.config import Config, load_config
from finflow.errors import MarketError
from finflow.evaluation.optimality import Growth, measure_growth, optimality, score
from finflow.ledger.costs import BASIS_POINT
from finflow.strategies.classical import BuyAndHold, EqualWeight
from finflow.strategies.optimal import Optimum, optimum_of, plug_in
from finflow.training.agent_strategy import AgentStrategy
from finflow.training.materials import Materials, prepare

SEEDS = (0, 1)


def settings(kind: str, seed: int) -> Config:
    keys = {"market.source": "synthetic", "market.synthetic.kind": kind, "market.synthetic.seed": seed}
    return load_config(None, keys, {})


@lru_cache
def materials(kind: str, seed: int) -> Materials:
    return prepare(settings(kind, seed))


@lru_cache
def best_of(kind: str) -> Optimum:
    config = settings(kind, 0)
    return optimum_of(config.market, config.env)


@pytest.mark.parametrize("kind", ["lognormal", "constant-drift", "mean-reverting", "regime"])
def test_a_plug_in_estimate_reaches_the_optimum(kind: str) -> None:
    """Estimated on the training window, judged on the next: two samples (regime: one), 1 043 bars each, with costs."""
    samples = []
    for seed in SEEDS[: 1 if kind == "regime" else 2]:
        made = materials(kind, seed)
        rate = (made.config.env.commission_bps + made.config.env.slippage_bps) * BASIS_POINT
        estimate = plug_in(kind, made.panel.close[: made.split.train_end], rate)
        samples.append(measure_growth(made.process, made.split.validation, estimate.policy, best_of(kind)))
    result = optimality(samples)
    assert result.standard_error < 0.01
    assert result.score >= 0.99
    assert result.optimum == pytest.approx(best_of(kind).utility, rel=0.1)


@pytest.mark.parametrize("kind", ["lognormal", "constant-drift", "mean-reverting", "regime"])
def test_an_untrained_agent_does_not(kind: str) -> None:
    """Random weights, other ones in each of two samples, on the validation window: 2 086 bars, default costs."""
    samples = []
    for seed in SEEDS:
        made = materials(kind, seed)
        policy = ExpertPolicy(made.shape._replace(hidden=32), torch.Generator().manual_seed(seed))
        agent = AgentStrategy(policy, torch.device("cpu"))
        samples.append(measure_growth(made.process, made.split.validation, agent, best_of(kind)))
    result = optimality(samples)
    assert result.score + 2.0 * result.standard_error <= 0.3


def test_a_market_without_an_edge_has_nothing_to_score() -> None:
    made = materials("exchangeable", 0)
    growth = measure_growth(made.process, made.split.validation, EqualWeight(), best_of("exchangeable"))
    assert math.isnan(optimality([growth]).score)


def test_the_ends_of_the_scale() -> None:
    made, best = materials("mean-reverting", 0), best_of("mean-reverting")
    played = [measure_growth(made.process, made.split.validation, rule, best) for rule in (EqualWeight(), best.policy)]
    assert [optimality([each]).score for each in played] == pytest.approx([0.0, 1.0])
    assert optimality(played[:1]).baseline_name == "equal-weight"
    held = measure_growth(made.process, made.split.validation, BuyAndHold(), best)
    np.testing.assert_array_equal(held.strategy, held.holding)


def test_the_score_is_worked_by_hand() -> None:
    assert score(0.75, 0.5, 1.0) == 0.5
    assert math.isnan(score(0.5, 1.0, 1.0))
    rng = np.random.default_rng(0)
    common = rng.normal(0.0, 1e-4, 6_000)
    noise = rng.normal(0.0, 1e-4, 6_000)
    sample = Growth(common + 6e-4 + noise, common + 1e-3, common + 2e-4, common + 1e-4)
    result = optimality([sample])
    assert result.score == pytest.approx(0.5 + noise.mean() / 8e-4)
    assert result.standard_error == pytest.approx(1e-4 / np.sqrt(6_000) / 8e-4, rel=0.25)
    assert (result.baseline_name, result.bars) == ("equal-weight", 6_000)


def test_a_market_that_is_not_synthetic_is_refused() -> None:
    made = prepare(load_config(None, {}, {}))
    with pytest.raises(MarketError, match=r"market\.source=synthetic"):
        measure_growth(made.process, made.split.validation, EqualWeight(), best_of("lognormal"))
