"""Bounds that learning comes back from: of the trade rate, and of the scale of decisions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.layers import inward_clamp, open_rate
from finflow.agent.networks.policy import LOG_SCALE_RANGE, ExpertPolicy
from tests.agent.helpers import coverage, generator, make_agent

MakeBatch = Callable[..., Batch]
LOGITS = torch.tensor([-1000.0, -20.0, -8.0, -5.0, -2.0, 0.0, 2.0, 5.0, 1000.0], dtype=torch.float64)


def slope_at(logits: torch.Tensor, gradient: float, keeps_slope: bool = False) -> torch.Tensor:
    """Gradient of the logits for a gradient of the rate."""
    asked = logits.clone().requires_grad_(True)
    (found,) = torch.autograd.grad((gradient * open_rate(asked, keeps_slope)).sum(), asked)
    return found


def test_the_rate_is_a_sigmoid_of_at_least_a_thousandth_whose_slope_is_never_under_a_fiftieth() -> None:
    rate = torch.sigmoid(LOGITS)
    assert torch.equal(open_rate(LOGITS), rate.clamp(min=1e-3))
    raising = -slope_at(LOGITS, -1.0)  # of a loss that falls as the rate rises
    torch.testing.assert_close(raising, (rate * (1.0 - rate)).clamp(min=0.02))
    steep = rate * (1.0 - rate) > 0.02
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


# a scale as imitation of scattered actions leaves it, with a slope of one: 60 steps of a tenth are 6 of the log scale;
# a rate of a thousandth, where a sigmoid's slope is 1e-5: of .02, 60 steps of .2 are 12 of the logit
@pytest.mark.parametrize(
    ("part", "place", "begin", "direction"),
    [("log_scale", 1, LOG_SCALE_RANGE[1] + 2.0, 1.0), ("trade_rate", 0, -12.0, -100.0)],
)
def test_what_has_passed_its_bound_comes_back(
    part: str, place: int, begin: float, direction: float, shape: NetworkShape, make_batch: MakeBatch
) -> None:
    policy, states = ExpertPolicy(shape, generator()), make_batch().states
    with torch.no_grad():
        policy.trade.bias[place] = begin
    optimiser = torch.optim.SGD([policy.trade.bias], lr=0.1)
    for _ in range(60):
        optimiser.zero_grad()
        (direction * getattr(policy(states), part).mean()).backward()
        optimiser.step()
    found = getattr(policy(states), part).mean().item()
    assert found < LOG_SCALE_RANGE[0] + 0.2 if part == "log_scale" else found > 0.1


def test_a_closed_rate_leaves_no_gradient_without_a_number(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """At a logit of -1000 the sigmoid is zero."""
    agent, batch = make_agent(shape), make_batch()
    with torch.no_grad():
        agent.policy.trade.bias[0] = -1000.0
    metrics = agent.update_sac(batch, coverage(), generator(3))
    assert all(torch.isfinite(value) for value in metrics.values())
    assert all(torch.isfinite(tensor).all() for tensor in agent.policy.parameters())
    assert metrics["trade_rate"].item() == pytest.approx(1e-3)
    assert agent.policy.score.weight.grad.abs().sum() > 0.0  # the aim learns through a rate of a thousandth
