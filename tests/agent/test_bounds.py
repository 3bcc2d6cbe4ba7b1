"""Bounds that learning comes back from: of the trade rate, and of the scale of decisions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.networks.bounds import LEAST_RATE, LEAST_SLOPE, inward_clamp, open_rate
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.policy import LOG_SCALE_RANGE, ExpertPolicy
from tests.agent.helpers import coverage, generator, make_agent

MakeBatch = Callable[..., Batch]
LOGITS = torch.tensor([-1000.0, -20.0, -8.0, -5.0, -2.0, 0.0, 2.0, 5.0, 1000.0], dtype=torch.float64)


def slope_at(logits: torch.Tensor, gradient: float, keeps_slope: bool = False) -> torch.Tensor:
    """Gradient of the logits for a gradient of the rate."""
    asked = logits.clone().requires_grad_(True)
    (found,) = torch.autograd.grad((gradient * open_rate(asked, keeps_slope)).sum(), asked)
    return found


def test_the_rate_is_a_sigmoid_of_at_least_a_thousandth() -> None:
    rate = open_rate(LOGITS)
    assert (LEAST_RATE, LEAST_SLOPE) == (1e-3, 0.02)
    assert torch.equal(rate, torch.sigmoid(LOGITS).clamp(min=1e-3))
    assert rate.min().item() == 1e-3
    assert rate.max().item() == 1.0


def test_the_slope_is_the_sigmoids_where_that_is_large_and_never_under_a_fiftieth() -> None:
    rate = torch.sigmoid(LOGITS)
    raising = -slope_at(LOGITS, -1.0)  # of a loss that falls as the rate rises
    torch.testing.assert_close(raising, (rate * (1.0 - rate)).clamp(min=0.02))
    steep = rate * (1.0 - rate) > 0.02
    assert steep.any()
    torch.testing.assert_close(slope_at(LOGITS, 1.0)[steep], (rate * (1.0 - rate))[steep])


def test_under_the_smallest_rate_only_gradients_that_raise_the_logit_pass() -> None:
    """Descent subtracts the gradient: a positive one would lower a logit that can only lose by it."""
    closed = torch.sigmoid(LOGITS) < 1e-3
    assert closed.tolist() == [True, True, True, *[False] * 6]
    lowering, raising = slope_at(LOGITS, 3.0), slope_at(LOGITS, -3.0)
    assert not lowering[closed].any()
    assert (lowering[~closed] > 0.0).all()
    torch.testing.assert_close(raising[closed], torch.full((3,), -3.0 * 0.02, dtype=torch.float64))


def test_an_explanation_reads_the_rate_with_its_own_slope() -> None:
    assert torch.equal(open_rate(LOGITS, keeps_slope=True), open_rate(LOGITS))
    asked = torch.linspace(-6.0, 6.0, 25, dtype=torch.float64)  # rates over a thousandth, whose slope is smooth
    step = 1e-6
    differences = (open_rate(asked + step) - open_rate(asked - step)) / (2.0 * step)
    # a difference of numbers near one, over two millionths, has an error of 1e-10; that of the step is 1e-13
    torch.testing.assert_close(slope_at(asked, 1.0, keeps_slope=True), differences, rtol=0.0, atol=1e-9)
    assert not slope_at(LOGITS[:3], -1.0, keeps_slope=True).any()


def test_within_its_bounds_a_scale_has_its_gradient_and_beyond_them_only_one_that_leads_back() -> None:
    asked = torch.tensor([-3.0, -1.0, 2.0], requires_grad=True)
    clamped = inward_clamp(asked, -2.0, 1.0)
    assert clamped.tolist() == [-2.0, -1.0, 1.0]
    for gradient, kept in ((5.0, [0.0, 5.0, 5.0]), (-5.0, [-5.0, -5.0, 0.0])):  # descent subtracts it
        (found,) = torch.autograd.grad(gradient * clamped.sum(), asked, retain_graph=True)
        assert found.tolist() == kept


def test_a_scale_far_beyond_its_bound_comes_back(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """As imitation of scattered actions leaves it; where the gradient ends at the bound it would stay there."""
    policy, states = ExpertPolicy(shape, generator()), make_batch().states
    with torch.no_grad():
        policy.trade.bias[1] = LOG_SCALE_RANGE[1] + 2.0
    optimiser = torch.optim.SGD([policy.trade.bias], lr=0.1)
    for _ in range(60):  # a slope of one: 60 steps of a tenth are 6 of the log scale
        optimiser.zero_grad()
        policy(states).log_scale.mean().backward()
        optimiser.step()
    assert policy(states).log_scale.mean().item() < LOG_SCALE_RANGE[0] + 0.2


def test_a_rate_that_has_closed_comes_back(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """From a thousandth, where a sigmoid's slope is 1e-5: descent on a bias as on a logit of that slope would not."""
    policy, states = ExpertPolicy(shape, generator()), make_batch().states
    with torch.no_grad():
        policy.trade.bias[0] = -12.0
    optimiser = torch.optim.SGD([policy.trade.bias], lr=10.0)
    for _ in range(60):
        optimiser.zero_grad()
        (-policy(states).trade_rate.mean()).backward()
        optimiser.step()
    # a slope of .02 at a rate of 10 is .2 a step: 60 steps are 12 of the logit
    assert policy(states).trade_rate.mean().item() > 0.1


def test_a_closed_rate_leaves_no_gradient_without_a_number(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """At a logit of -1000 the sigmoid is zero."""
    agent, batch = make_agent(shape), make_batch()
    with torch.no_grad():
        agent.policy.trade.bias[0] = -1000.0
    assert torch.sigmoid(torch.tensor(-1000.0)) == 0.0
    metrics = agent.update_sac(batch, coverage(), generator(3))
    assert all(torch.isfinite(value) for value in metrics.values())
    assert all(torch.isfinite(tensor).all() for tensor in agent.policy.parameters())
    assert metrics["trade_rate"].item() == pytest.approx(1e-3)
    assert agent.policy.score.weight.grad.abs().sum() > 0.0  # the aim learns through a rate of a thousandth
