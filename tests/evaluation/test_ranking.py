"""Rankings by hand, by scikit-learn and scipy, and by chance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import ndcg_score

from finflow.evaluation.analysis import ranking
from tests.evaluation.made_up import process_of

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
