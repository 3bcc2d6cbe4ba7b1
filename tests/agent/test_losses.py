"""Each loss against its formula, written out independently, and against finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from finflow.agent.losses import losses, regularisers
from tests.agent.helpers import actor_loss


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_expectile_loss_is_minimised_by_the_expectile() -> None:
    sample = normal(4000)
    value = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([value], lr=1.0, max_iter=200, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = losses.expectile_loss(sample, value.expand_as(sample), 0.7)
        loss.backward()
        return loss

    optimiser.step(closure)
    # the expectile balances weighted deviations: tau * E[(x - v)+] = (1 - tau) * E[(v - x)+]
    above = (sample - value).clamp(min=0).mean()
    below = (value - sample).clamp(min=0).mean()
    assert 0.7 * above.item() == pytest.approx(0.3 * below.item(), rel=1e-6)


def test_expectile_loss_at_a_half_is_half_the_squared_loss() -> None:
    target, value = normal(50), normal(50, seed=1)
    assert losses.expectile_loss(target, value, 0.5).item() == pytest.approx(
        0.5 * ((target - value) ** 2).mean().item(), rel=1e-12
    )


@pytest.mark.parametrize("expectile", [0.1, 0.5, 0.9])
def test_expectile_loss_and_its_slope_are_the_closed_form(expectile: float) -> None:
    target, value = normal(40), normal(40, seed=1).requires_grad_()
    loss = losses.expectile_loss(target, value, expectile)
    (slope,) = torch.autograd.grad(loss, value)
    expected_loss, expected_slope = 0.0, []
    for aim, guess in zip(target.tolist(), value.tolist(), strict=True):
        weight = expectile if aim > guess else 1.0 - expectile
        expected_loss += weight * (aim - guess) ** 2 / 40
        expected_slope.append(-2.0 * weight * (aim - guess) / 40)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-12)
    np.testing.assert_allclose(slope.numpy(), expected_slope, rtol=1e-12)


DRAWN = torch.tensor([False, True, True])
LOSSES: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]] = {
    "expectile": (lambda target, value: losses.expectile_loss(target, value, 0.7), [(9,), (9,)]),
    # clipped and not: the slope is zero beyond the limit
    "weights": (lambda advantage: losses.advantage_weights(3.0 * advantage, 3.0), [(9,)]),
    "likelihood": (lambda density, weights: losses.weighted_likelihood_loss(density, weights, 4), [(9,), (9,)]),
    "bellman": (
        lambda rewards, value: losses.bellman_target(rewards, torch.tensor([0.0, 1.0] * 3), value, 0.9),
        [(6,), (6,)],
    ),
    "mean": (losses.mean_loss, [(2, 9), (9,)]),
    "truncated": (lambda spread: losses.truncated_spread(spread, 2), [(2, 4, 6)]),
    "pessimistic": (lambda mean, spread: losses.pessimistic_value(mean, spread, 2, 0.4), [(2, 4), (2, 4, 6)]),
    "conservative": (
        lambda proposals, data: regularisers.conservative_loss(
            proposals, normal(4, 3, seed=8), data, DRAWN, normal(4, seed=9), 3
        ),
        [(2, 4, 3), (2, 4)],
    ),
    "actor": (lambda density, value, alpha: actor_loss(density, value, alpha, 4), [(9,), (9,), ()]),
    "temperature": (lambda log_alpha: losses.temperature_loss(log_alpha, normal(9), -5.0, 4), [()]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    loss, shapes = LOSSES[name]
    inputs = tuple(normal(*shape, seed=place).requires_grad_() for place, shape in enumerate(shapes))
    assert torch.autograd.gradcheck(loss, inputs)


def test_advantage_weights_are_clipped_at_a_hundred() -> None:
    weights = losses.advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 50.0]), 3.0)
    np.testing.assert_allclose(weights.numpy(), [math.exp(-3), 1.0, math.exp(3), 100.0], rtol=1e-6)


def test_bellman_target_bootstraps_at_truncation_but_not_at_termination() -> None:
    rewards, values = torch.tensor([1.0, 1.0]), torch.tensor([10.0, 10.0])
    target = losses.bellman_target(rewards, torch.tensor([0.0, 1.0]), values, 0.9)
    assert target.tolist() == pytest.approx([10.0, 1.0])


def test_truncation_is_switched_on_gradually_and_only_lowers_values() -> None:
    mean, spread = normal(2, 6), normal(2, 6, 8, seed=1)
    spread = spread - spread.mean(dim=-1, keepdim=True)
    off, half, on = (losses.pessimistic_value(mean, spread, 2, share) for share in (0.0, 0.5, 1.0))
    assert torch.equal(off, mean.min(dim=0).values)
    assert (on < half).all()
    assert (half < off).all()
    kept = np.sort(spread.numpy(), axis=-1)[..., :6].mean(axis=-1)
    np.testing.assert_allclose(on.numpy(), (mean.numpy() + kept).min(axis=0), rtol=1e-12)


def test_several_choices_of_a_state_are_valued_by_one_critic() -> None:
    """By that which values them least on average: what the critics disagree about is charged to no single choice."""
    mean = torch.tensor([[1.0, 5.0, 2.0, 2.0], [3.0, 1.0, 4.0, 1.0]])  # two critics; two states of two choices
    spread = torch.zeros(2, 4, 6)
    assert losses.pessimistic_value(mean, spread, 0, 0.0, choices=2).tolist() == [3.0, 1.0, 2.0, 2.0]
    assert losses.pessimistic_value(mean, spread, 0, 0.0).tolist() == [1.0, 1.0, 2.0, 1.0]
    wide = torch.stack([torch.zeros(4, 6), torch.linspace(-9.0, 9.0, 6).expand(4, 6)])
    cut = losses.truncated_spread(wide, 2)  # a critic without spread, and one whose cut makes it the least of both
    assert torch.equal(losses.pessimistic_value(mean, wide, 2, 1.0, choices=2), mean[1] + cut[1])


@pytest.mark.parametrize("dimensions", [1, 4])
def test_conservative_loss_equals_its_formula(dimensions: int) -> None:
    proposals, log_density, data = normal(2, 5, 6), normal(5, 6, seed=1), normal(2, 5, seed=2)
    drawn = torch.tensor([False, False, True, True, True, True])
    calibration = normal(5, seed=3)
    found = regularisers.conservative_loss(proposals, log_density, data, drawn, calibration, dimensions).item()
    expected = 0.0
    for critic in range(2):
        for state in range(5):
            terms = []
            for p in range(6):
                value = proposals[critic, state, p].item()
                if drawn[p]:
                    value = max(value, calibration[state].item())
                terms.append(math.exp(dimensions * value - log_density[state, p].item()))
            expected += (math.log(sum(terms) / 6) / dimensions - data[critic, state].item()) / 5
    assert found == pytest.approx(expected, rel=1e-12)


def test_without_a_lower_bound_calibration_is_plain_cql() -> None:
    proposals, log_density, data = normal(2, 5, 6), normal(5, 6, seed=1), normal(2, 5, seed=2)
    nothing = torch.full((5,), -math.inf, dtype=torch.float64)
    every, none = torch.ones(6, dtype=torch.bool), torch.zeros(6, dtype=torch.bool)
    calibrated = regularisers.conservative_loss(proposals, log_density, data, every, nothing)
    plain = regularisers.conservative_loss(proposals, log_density, data, none, nothing)
    assert calibrated.item() == plain.item()


def test_conservative_loss_estimates_the_soft_maximum_over_the_simplex() -> None:
    # m(w) = c * w_1 on the 1-simplex: log of the integral of exp(c w) over [0, 1] is log((e^c - 1) / c)
    slope, count = 1.7, 200_000
    draws = torch.rand(1, count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = regularisers.conservative_loss(
        (slope * draws)[None],
        torch.zeros(1, count, dtype=torch.float64),
        torch.zeros(1, 1, dtype=torch.float64),
        torch.zeros(count, dtype=torch.bool),
        torch.zeros(1, dtype=torch.float64),
    )
    # standard error of the log mean is about 0.0011 with this many uniform draws
    assert found.item() == pytest.approx(math.log((math.exp(slope) - 1) / slope), abs=0.005)


def test_temperature_falls_where_the_policy_has_more_entropy_than_its_target() -> None:
    log_alpha = torch.zeros((), requires_grad=True)
    losses.temperature_loss(log_alpha, log_density=torch.full((8,), 3.0), target=-5.0, n_dimensions=4).backward()
    assert log_alpha.grad is not None
    assert log_alpha.grad.item() == pytest.approx(0.5)  # entropy -3 over the target -5: descent lowers alpha
