"""Gradient ascent on a critic: the gradient is the critic's, which learns nothing, and the data hold the policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import linearised
from finflow.agent.losses.offline_losses import ddpg_bc_loss
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape
from finflow.agent.networks.policy import LEAST_PULL, ExpertPolicy
from tests.agent.helpers import generator

MakeBatch = Callable[..., Batch]


def test_of_several_inputs_each_has_the_gradient_of_autograd(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """The critics' least value of what is held and of what is bought: the slope of both, and none for the critics."""
    critic, states = CriticEnsemble(shape, 4, generator()), make_batch().states
    with torch.no_grad():
        encoding = critic.encode(states)

    def value_of(portfolio: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        there = states._replace(portfolio=portfolio)
        return critic.value(encoding, there, action.unsqueeze(1), 0).mean[..., 0].min(dim=0).values

    free = torch.randn(16, 8, generator=generator(1)), torch.randn(16, 5, generator=generator(2))
    weights, slopes = torch.rand(16, generator=generator(3)), []
    for value_by in (value_of, lambda *inputs: linearised(value_of, *inputs)):
        held, bought = (part.clone().requires_grad_(True) for part in free)
        critic.zero_grad()
        value = value_by(0.1 * held.tanh(), torch.softmax(bought, dim=-1))
        (weights * value).sum().backward()
        slopes.append((value.detach(), held.grad, bought.grad))
        reached = [parameter.grad is not None for parameter in critic.parameters()]
        assert any(reached) == (value_by is value_of)
    for direct, linear in zip(*slopes, strict=True):
        torch.testing.assert_close(linear, direct, rtol=1e-4, atol=1e-7)  # float32, sums in another order
    assert min(slope.abs().max() for _, *of_inputs in slopes for slope in of_inputs) > 0.0


def test_an_input_without_gradient_is_a_number() -> None:
    held = torch.tensor([[1.0, 2.0]])
    bought = torch.tensor([[3.0, 4.0]], requires_grad=True)
    value = linearised(lambda first, second: (first * second).sum(-1), held, bought)
    assert value.item() == pytest.approx(11.0)
    (slope,) = torch.autograd.grad(value.sum(), bought)
    assert slope.tolist() == [[1.0, 2.0]]


def test_an_input_that_the_value_does_not_depend_on_has_no_part_in_it() -> None:
    """Critics of plain tasks hold no portfolio."""
    held, bought = torch.ones(1, 3, requires_grad=True), torch.tensor([[3.0, 4.0]], requires_grad=True)
    value = linearised(lambda _, second: second.square().sum(-1), held, bought)
    slopes = torch.autograd.grad(value.sum(), (held, bought), allow_unused=True)
    assert value.item() == pytest.approx(25.0)
    assert slopes[0] is None or not slopes[0].any()
    assert slopes[1].tolist() == [[6.0, 8.0]]


def test_a_pull_changes_gradients_and_no_decision(shape: NetworkShape, make_batch: MakeBatch) -> None:
    policy, states = ExpertPolicy(shape, generator()), make_batch().states
    with torch.no_grad():
        policy.trade.bias[0] = -6.0  # a rate of a quarter of a percent
    plain, pulled = policy(states), policy(states, least_pull=LEAST_PULL)
    assert torch.equal(plain.centre, pulled.centre)
    slopes = []
    for decision in (plain, pulled):
        (slope,) = torch.autograd.grad(decision.centre[:, 0].sum(), policy.score.weight)
        slopes.append(slope)
    ratio = (slopes[1].norm() / slopes[0].norm()).item()
    rates = plain.trade_rate
    assert LEAST_PULL / rates.max().item() * 0.3 < ratio < LEAST_PULL / rates.min().item()  # part comes by the rate


def test_gradient_ascent_finds_the_better_portfolio(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """A critic that values cash: the policy learns to hold it, and less with more cloning."""
    held = []
    for cloning in (0.0, 30.0):
        policy, batch = ExpertPolicy(shape, generator()), make_batch(64)
        optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
        for _ in range(80):
            action, likelihood, others, _ = policy.pathwise_gradient(batch, torch.ones(64))
            value = linearised(lambda chosen: chosen[..., -1], action)
            loss = ddpg_bc_loss(value, torch.ones(64), likelihood, cloning) + others
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        held.append(policy.deterministic(batch.states)[:, -1].mean().item())
    before = batch.states.weights[:, -1].mean().item()
    assert held[0] > 0.8
    assert held[1] < 0.5 * (held[0] + before)
