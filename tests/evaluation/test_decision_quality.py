"""Scores against a known optimum, which what can be estimated reaches; rankings by hand, by libraries and by chance."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import ndcg_score

from finflow.agent.networks.policy import ExpertPolicy
from finflow.arrays import FloatArray
from finflow.config import Config, load_config
from finflow.errors import MarketError
from finflow.evaluation.analysis import decision_quality as ranking
from finflow.evaluation.analysis.decision_quality import (
    OptimalityScore,
    OptimumWindow,
    growth_of_runs,
    optimality,
    score_runs,
)
from finflow.evaluation.backtest import run_backtests
from finflow.ledger.costs import BASIS_POINT
from finflow.market.sources.synthetic_market import IndependentReturns
from finflow.strategies.classical import BuyAndHold, EqualWeight, Optimised
from finflow.strategies.optimal_policy import Optimum, optimum, optimum_of
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.judging.agent_strategy import AgentStrategy
from tests.evaluation.made_up import process_of

#: Samples of each market; two where one leaves the score in doubt.
SEEDS = {"lognormal": (0, 1), "constant-drift": (0,), "mean-reverting": (0,), "exchangeable": (0,)}


def settings(kind: str, seed: int) -> Config:
    quick = {"features.filters": "none", "features.regimes": False}
    keys = {"market.source": "synthetic", "market.synthetic.kind": kind, "market.synthetic.seed": seed}
    return load_config(None, keys | quick, {})


@lru_cache
def training_data(kind: str, seed: int) -> TrainingData:
    return prepare(settings(kind, seed))


@lru_cache
def best_of(kind: str) -> Optimum:
    config = settings(kind, 0)
    return optimum_of(config.market, config.env)


@lru_cache
def scores(kind: str) -> dict[str, tuple[OptimalityScore, OptimumWindow]]:
    """A plug-in estimate and an untrained agent on the validation windows, 1 043 bars of each sample, at usual costs.

    The estimate takes returns for independent; it is made on each sample's training window. Each agent has other random
    weights.
    """
    samples: dict[str, list[list[FloatArray]]] = {"plug-in": [], "agent": []}
    best = best_of(kind)
    for seed in SEEDS[kind]:
        made = training_data(kind, seed)
        rate = (made.config.env.commission_bps + made.config.env.slippage_bps) * BASIS_POINT
        known = np.diff(np.log(made.panel.close[: made.split.train_end]), axis=0)
        estimate = optimum(IndependentReturns(known.mean(axis=0), np.cov(known.T)), rate)
        estimate.policy.name = "plug-in"
        policy = ExpertPolicy(made.shape._replace(hidden=32), torch.Generator().manual_seed(seed))
        agent = AgentStrategy(policy, torch.device("cpu"))
        window = made.split.validation
        runs = run_backtests(made.process, window, [estimate.policy, agent, best.policy, EqualWeight(), BuyAndHold()])
        growth = growth_of_runs(made.process, window, runs, best)
        for own, run in zip(samples.values(), runs, strict=False):
            own.append([growth[name] for name in (run.name, "optimal", "equal-weight", "buy-and-hold")])
    return {name: optimality(*map(np.concatenate, zip(*own, strict=True))) for name, own in samples.items()}


@pytest.mark.parametrize("kind", ["lognormal", "constant-drift"])
def test_a_plug_in_estimate_reaches_the_optimum(kind: str) -> None:
    result, window = scores(kind)["plug-in"]
    assert result.standard_error < 0.01
    assert result.score >= 0.99
    assert window.optimum == pytest.approx(best_of(kind).utility, rel=0.1)


@pytest.mark.parametrize("kind", ["lognormal", "constant-drift", "mean-reverting"])
def test_an_untrained_agent_does_not(kind: str) -> None:
    result, _ = scores(kind)["agent"]
    assert result.score + 2.0 * result.standard_error <= 0.3


def test_a_market_without_an_edge_has_nothing_to_score() -> None:
    """Equal assets: the optimum is equal weight, rarely restored. Nobody gains on it, and so nobody has a score.

    An estimate takes luck for differences and loses a little by it, an untrained agent more.
    """
    found, utility = scores("exchangeable"), best_of("exchangeable").utility
    for result, window in found.values():
        assert math.isnan(result.score)
        assert window.optimum == pytest.approx(window.baseline, abs=1e-6)
        assert window.optimum == pytest.approx(utility, abs=5e-6)
        assert result.utility < window.optimum
    assert found["plug-in"][0].utility > 0.95 * utility
    assert found["agent"][0].utility < 0.8 * utility


def test_runs_side_by_side_are_scored_as_each_alone() -> None:
    made, best = training_data("mean-reverting", 0), best_of("mean-reverting")
    window = range(made.split.validation.start, made.split.validation.start + 300)
    rules = [Optimised("inverse-volatility", 21, 60), best.policy, BuyAndHold(), EqualWeight()]
    known = score_runs(made.process, window, run_backtests(made.process, window, rules), best)
    alone = run_backtests(made.process, window, rules[:1])
    own = growth_of_runs(made.process, window, alone, best)["inverse-volatility"]
    others = growth_of_runs(made.process, window, run_backtests(made.process, window, rules[1:]), best)
    references = (others[name] for name in ("optimal", "equal-weight", "buy-and-hold"))
    exact, _ = optimality(own, *references)
    assert known.scores["inverse-volatility"] == exact
    assert (known.scores["optimal"].score, known.scores["equal-weight"].score) == (1.0, 0.0)
    assert known.parameters == {"drift": 0.0008, "volatility": 0.015, "correlation": 0.3, "persistence": 0.9}
    assert known.utility == best.utility
    assert "100% A" in known.policy.values()


def test_the_score_is_worked_by_hand() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(0.0, 1e-4, 6_000)
    noise = rng.normal(0.0, 1e-4, 6_000)
    result, window = optimality(common + 6e-4 + noise, common + 1e-3, common + 2e-4, common + 1e-4)
    assert result.score == pytest.approx(0.5 + noise.mean() / 8e-4)
    assert result.standard_error == pytest.approx(1e-4 / np.sqrt(6_000) / 8e-4, rel=0.25)
    assert window.baseline_name == "equal-weight"


def test_a_market_that_is_not_synthetic_is_refused() -> None:
    made = prepare(load_config(None, {"features.filters": "none", "features.regimes": False}, {}))
    with pytest.raises(MarketError, match=r"market\.source=synthetic"):
        score_runs(made.process, made.split.validation, [], best_of("lognormal"))


FILLS, ASSETS = 60, 8


@pytest.fixture(scope="module")
def forward() -> np.ndarray:
    return np.random.default_rng(0).normal(0.0, 0.01, (FILLS, ASSETS))


@pytest.mark.parametrize("tied", [False, True])
def test_ndcg_and_rank_ic_are_those_of_the_libraries(forward: np.ndarray, tied: bool) -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(ASSETS), FILLS)
    if tied:
        weights = np.round(weights, 1)
    found = ranking.rank(weights, forward, 3)
    assert found is not None
    gains = forward.argsort(axis=1).argsort(axis=1) / (ASSETS - 1)
    assert found.ndcg == pytest.approx(ndcg_score(gains, weights, k=3), abs=1e-12)
    correlations = [spearmanr(one, other).statistic for one, other in zip(weights, forward, strict=True)]
    assert found.rank_ic == pytest.approx(np.mean(correlations), abs=1e-12)


def test_equal_weights_are_chance_itself(forward: np.ndarray) -> None:
    found = ranking.rank(np.full((FILLS, ASSETS), 1 / ASSETS), forward, 3)
    assert found is not None
    assert (found.ndcg, found.hit, found.mrr) == pytest.approx((found.ndcg_chance, found.hit_chance, found.mrr_chance))
    assert found.hit_chance == pytest.approx(3 / 8)
    assert found.mrr_chance == pytest.approx((1 + 1 / 2 + 1 / 3) / 8)
    assert np.isnan(found.rank_ic)


def test_hit_and_mrr_by_hand() -> None:
    # the best asset is C; by weight the order is A, C, D, B in every fill
    weights = np.tile([0.5, 0.05, 0.3, 0.15], (20, 1))
    forward = np.tile([0.01, 0.0, 0.02, -0.01], (20, 1))
    for top, hit, mrr in ((1, 0.0, 0.0), (2, 1.0, 0.5), (9, 1.0, 0.5)):
        found = ranking.rank(weights, forward, top)
        assert found is not None
        assert (found.hit, found.mrr) == (hit, mrr)


def test_assets_that_cannot_be_followed_are_left_out(forward: np.ndarray) -> None:
    weights = np.random.default_rng(1).dirichlet(np.ones(ASSETS), FILLS)
    holed = np.column_stack([forward, np.full(FILLS, np.nan)])
    assert ranking.rank(np.column_stack([weights, np.ones(FILLS)]), holed, 3) == ranking.rank(weights, forward, 3)
    assert ranking.rank(weights[:19], forward[:19], 3) is None
    assert ranking.rank(weights[:, :2], forward[:, :2], 3) is None


def test_forward_returns_begin_at_the_fill_and_end_at_the_horizon() -> None:
    process = process_of()
    close, bars = process.panel.close, range(100, 110)
    found = ranking.forward_returns(process.growth, process.listed, bars, 5)
    np.testing.assert_allclose(found[0], close[105] / close[100] - 1.0, rtol=1e-12)
    np.testing.assert_allclose(found[5], close[110] / close[105] - 1.0, rtol=1e-12)
    assert np.isnan(found[6:]).all()
    listed = process.listed.copy()
    listed[103, 0] = listed[108, 1] = False
    found = ranking.forward_returns(process.growth, listed, bars, 5)
    assert np.isnan([found[3, 0], found[3, 1]]).all()
    assert np.isfinite(found[3, 2])


@pytest.mark.parametrize("horizon", [5, 21])
def test_the_error_of_a_mean_allows_for_values_that_overlap(horizon: int) -> None:
    """Sums over ``horizon`` days of independent noise: each noise is in as many sums, so the mean's error is known."""
    noise = np.random.default_rng(0).normal(0.0, 1.0, 20_000 + horizon - 1)
    sums = np.convolve(noise, np.ones(horizon), "valid")
    _, error = ranking._mean_and_error(sums, horizon - 1)
    exact = horizon / np.sqrt(len(sums))
    assert 0.88 < error / exact < 1.05  # Bartlett's weights cost a tenth; with as many lags as overlap it was 0.82
