"""Draws reach every kind of portfolio, and their density is exact: CQL's importance weights depend on it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln
from scipy.stats import dirichlet

from finflow.env.coverage import (
    CONCENTRATIONS,
    SHARES,
    SMOOTHING,
    coverage_portfolios,
    draw_coverage,
    draw_log_gammas,
    mixture_log_density,
    smooth,
)


@pytest.mark.parametrize("n_weights", [2, 5, 21])
def test_the_density_is_that_of_scipys_dirichlets(n_weights: int) -> None:
    weights = np.random.default_rng(0).dirichlet(np.full(n_weights, 2.0), size=50)
    parts = [
        np.log(share) + dirichlet(np.full(n_weights, a)).logpdf(weights.T)
        for share, a in zip(SHARES, CONCENTRATIONS, strict=True)
    ]
    expected = np.logaddexp.reduce(parts, axis=0) - (n_weights - 1) * np.log(1.0 - SMOOTHING)
    np.testing.assert_allclose(mixture_log_density(np.log(weights)), expected, rtol=0, atol=1e-9)


def test_the_density_returned_is_that_of_the_portfolio_returned() -> None:
    """Undo the smoothing and evaluate again, where no weight is too small for that."""
    weights, log_density = draw_coverage(np.random.default_rng(0), 4000, 4)
    unsmoothed = (weights - SMOOTHING / 4) / (1.0 - SMOOTHING)
    kept = unsmoothed.min(axis=1) > 1e-6
    assert kept.sum() > 1000
    # 1e-16 of rounding in a weight of 1e-6 is 1e-10 of its logarithm
    np.testing.assert_allclose(mixture_log_density(np.log(unsmoothed[kept])), log_density[kept], rtol=0, atol=1e-8)


@pytest.mark.parametrize("n_weights", [3, 21, 500])
def test_draws_are_portfolios_in_the_interior(n_weights: int) -> None:
    weights, log_density = draw_coverage(np.random.default_rng(0), 2000, n_weights)
    assert weights.shape == (2000, n_weights)
    assert (weights >= SMOOTHING / n_weights).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert np.isfinite(log_density).all()


@pytest.mark.parametrize(("n_weights", "concentration"), [(4, 2.0), (8, 1.5), (21, 1.2)])
def test_a_mean_over_draws_weighted_by_the_density_is_one_over_the_simplex(
    n_weights: int, concentration: float
) -> None:
    """E[p / q] = 1 for any density p, here a Dirichlet's; within four standard errors, themselves under 2 %."""
    weights, log_density = draw_coverage(np.random.default_rng(2), 40_000, n_weights)
    unsmoothed = np.maximum((weights - SMOOTHING / n_weights) / (1.0 - SMOOTHING), 0.0)
    with np.errstate(divide="ignore"):
        log_target = (concentration - 1.0) * np.log(unsmoothed).sum(axis=1)
    log_target += gammaln(n_weights * concentration) - n_weights * gammaln(concentration)
    ratio = np.exp(log_target - (n_weights - 1) * np.log(1.0 - SMOOTHING) - log_density)
    error = ratio.std() / np.sqrt(len(ratio))
    assert abs(ratio.mean() - 1.0) < 4.0 * error
    assert error < 0.02


def test_concentrated_portfolios_are_among_the_draws() -> None:
    """Of 21 weights a uniform draw exceeds one half once in 50 000; here it must be common."""
    weights, _ = draw_coverage(np.random.default_rng(0), 4000, 21)
    largest = weights.max(axis=1)
    assert (largest > 0.5).mean() > 0.05
    assert (largest > 0.9).any()
    assert (weights[:, -1] > 0.5).any()  # cash too


def test_smoothing_keeps_a_portfolio_and_what_it_prefers() -> None:
    corner = np.array([[1.0, 0.0, 0.0, 0.0]])
    np.testing.assert_allclose(smooth(corner), [[0.9925, 0.0025, 0.0025, 0.0025]], rtol=1e-12)


def test_where_assets_are_not_listed_the_draws_are_those_of_the_others_alone() -> None:
    """The same Gamma variables with and without two more assets, of which none is listed."""
    log_gamma = draw_log_gammas(np.random.default_rng(4), 500, 5)
    wide = np.insert(log_gamma, [1, 1], 3.0, axis=1)
    listed = np.tile([True, False, False, True, True, True], (500, 1))
    expected, expected_density = coverage_portfolios(log_gamma)
    weights, log_density = coverage_portfolios(wide, listed)
    assert (weights[:, 1:3] == 0.0).all()
    np.testing.assert_allclose(np.delete(weights, [1, 2], axis=1), expected, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(log_density, expected_density, rtol=0, atol=1e-9)


def test_each_draw_is_of_what_is_listed_in_its_own_row() -> None:
    listed = np.array([[True, False, True]] * 200 + [[True, True, True]] * 200 + [[False] * 3] * 10)
    weights, log_density = draw_coverage(np.random.default_rng(5), 410, 4, listed)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-12)
    assert (weights[:200, 1] == 0.0).all()
    assert (weights[:200, [0, 2]] >= SMOOTHING / 3 * (1.0 - 1e-12)).all()
    assert (weights[200:400] >= SMOOTHING / 4 * (1.0 - 1e-12)).all()
    assert (weights[400:] == [0.0, 0.0, 0.0, 1.0]).all()
    assert np.isfinite(log_density).all()
    everything, density = draw_coverage(np.random.default_rng(5), 410, 4)
    np.testing.assert_array_equal(weights[200:400], everything[200:400])
    np.testing.assert_array_equal(log_density[200:400], density[200:400])
