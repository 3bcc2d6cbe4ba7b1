"""The policy's density: proper on the simplex, with a feasible entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln, polygamma

from finflow.agent.networks.logistic_normal import (
    LogisticNormal,
    log_portfolio,
    log_ratio_entropy,
    log_ratios,
)


@pytest.mark.parametrize("n_weights", [5, 21])
def test_density_integrates_to_one_over_many_weights_by_importance_sampling(n_weights: int) -> None:
    # drawn from a Dirichlet, whose log ratios have mean digamma(a_i) - digamma(a_K) and variance about trigamma(a_i)
    # where a_K is large; the law is made to be near it, and a little narrower, so that no draw weighs much
    rng = np.random.default_rng(0)
    alpha = np.append(rng.uniform(20.0, 60.0, n_weights - 1), 600.0)
    location = torch.from_numpy(digamma(alpha[:-1]) - digamma(alpha[-1]) + 0.02)
    log_scale = torch.from_numpy(0.5 * np.log(polygamma(1, alpha[:-1])) + np.log(0.97))
    draws = rng.dirichlet(alpha, size=40_000)
    log_proposal = gammaln(alpha.sum()) - gammaln(alpha).sum() + (np.log(draws) * (alpha - 1)).sum(axis=1)
    many = LogisticNormal(location.expand(len(draws), -1), log_scale.expand(len(draws), -1))
    ratio = np.exp(many.log_density(torch.from_numpy(draws)).numpy() - log_proposal)
    standard_error = ratio.std() / math.sqrt(len(ratio))
    assert standard_error < 0.01  # seen: 0.0014 and 0.0035
    assert abs(ratio.mean() - 1.0) < 4.0 * standard_error


def test_samples_carry_their_own_density() -> None:
    location = torch.tensor([[0.2, -0.3, 0.1]], dtype=torch.float64)
    law = LogisticNormal(location, torch.full_like(location, math.log(0.5)))
    noise = torch.randn(1, 64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    portfolios, log_density = law.sample(noise)
    many = LogisticNormal(law.location.expand(64, -1), law.log_scale.expand(64, -1))
    torch.testing.assert_close(many.log_density(portfolios[0]), log_density[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(portfolios.sum(-1), torch.ones(1, 64, dtype=torch.float64))


def test_the_centre_is_the_softmax_of_the_location() -> None:
    weights = torch.tensor([[0.5, 0.2, 0.2, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(log_portfolio(log_ratios(weights)).exp(), weights)


def test_the_entropy_target_is_that_of_normal_log_ratios_of_the_scale() -> None:
    normal = torch.distributions.Normal(torch.zeros(20, dtype=torch.float64), 0.2)
    assert log_ratio_entropy(0.2, 20) == pytest.approx(normal.entropy().sum().item(), rel=1e-12)


def test_entropy_is_of_the_density_in_log_ratios() -> None:
    """That of z itself: the density of weights times the Jacobian of the map to them, which is their product."""
    noise = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    location, log_scale = (torch.randn(5, 3, generator=torch.Generator().manual_seed(n)).double() for n in (1, 2))
    law = LogisticNormal(location, log_scale)
    portfolios, log_density = law.sample(noise.unsqueeze(1))
    of_ratios = torch.distributions.Normal(location, log_scale.exp())
    expected = of_ratios.log_prob(location + log_scale.exp() * noise).sum(dim=1)
    torch.testing.assert_close(law.entropy_density(noise), expected)
    torch.testing.assert_close(law.entropy_density(noise), log_density[:, 0] + portfolios[:, 0].log().sum(dim=1))
