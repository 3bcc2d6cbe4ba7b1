"""The policy's density: proper on the simplex, with a feasible entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import dblquad, quad

from finflow.agent.simplex import (
    LogisticNormal,
    entropy_share,
    log_portfolio,
    log_ratios,
    maximum_entropy,
    target_entropy,
)


def distribution(location: list[float], scale: float) -> LogisticNormal:
    centre = torch.tensor([location], dtype=torch.float64)
    return LogisticNormal(centre, torch.full_like(centre, math.log(scale)))


def density(law: LogisticNormal, *risky: float) -> float:
    weights = torch.tensor([[*risky, 1.0 - sum(risky)]], dtype=torch.float64)
    return math.exp(law.log_density(weights).item()) if weights.min() > 0 else 0.0


def test_density_integrates_to_one_over_two_weights() -> None:
    total, _ = quad(lambda w: density(distribution([0.4], 0.7), w), 0.0, 1.0)
    assert total == pytest.approx(1.0, abs=1e-3)


def test_density_integrates_to_one_over_three_weights() -> None:
    law = distribution([0.3, -0.5], 0.6)
    total, _ = dblquad(lambda y, x: density(law, x, y), 0.0, 1.0, 0.0, lambda x: 1.0 - x, epsabs=1e-4)
    assert total == pytest.approx(1.0, abs=1e-3)


def test_density_integrates_to_one_over_eight_weights_by_sampling() -> None:
    law = distribution([0.2, -0.3, 0.1, 0.0, 0.4, -0.2, 0.3], 0.4)
    rng = np.random.default_rng(0)
    # importance sampling from a Dirichlet centred like the law
    centre = law.centre().numpy().ravel()
    alpha = 30.0 * centre
    draws = rng.dirichlet(alpha, size=40_000)
    log_proposal = math.lgamma(alpha.sum()) - sum(map(math.lgamma, alpha)) + (np.log(draws) * (alpha - 1)).sum(axis=1)
    many = LogisticNormal(law.location.expand(len(draws), -1), law.log_scale.expand(len(draws), -1))
    ratio = np.exp(many.log_density(torch.from_numpy(draws)).numpy() - log_proposal)
    assert abs(ratio.mean() - 1.0) < 4.0 * ratio.std() / math.sqrt(len(ratio))


def test_samples_carry_their_own_density() -> None:
    law = distribution([0.2, -0.3, 0.1], 0.5)
    noise = torch.randn(1, 64, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    portfolios, log_density = law.sample(noise)
    many = LogisticNormal(law.location.expand(64, -1), law.log_scale.expand(64, -1))
    torch.testing.assert_close(many.log_density(portfolios[0]), log_density[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(portfolios.sum(-1), torch.ones(1, 64, dtype=torch.float64))


def test_gradients_reach_location_and_scale() -> None:
    noise = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    location = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    log_scale = torch.full((3, 4), -0.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: LogisticNormal(a, b).sample(noise), (location, log_scale))


def test_the_centre_is_the_softmax_of_the_location() -> None:
    weights = torch.tensor([[0.5, 0.2, 0.2, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(log_portfolio(log_ratios(weights)).exp(), weights)


def test_no_policy_has_more_entropy_than_the_uniform_one() -> None:
    noise = torch.randn(1, 20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for scale in (0.3, 1.0, 1.5, 3.0):
        _, log_density = distribution([0.0, 0.0, 0.0], scale).sample(noise)
        assert -log_density.mean().item() < maximum_entropy(4)
    assert maximum_entropy(4) == pytest.approx(-math.log(6.0))


def test_entropy_target_is_a_share_of_the_maximum() -> None:
    assert entropy_share(target_entropy(0.1, 21), 21) == pytest.approx(0.1)
    assert entropy_share(maximum_entropy(21), 21) == 1.0
