"""Networks take any number of assets and do not care for their order; learning comes back from bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from finflow.agent.batch import Batch, States
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape, ValueNetwork
from finflow.agent.networks.layers import EnsembleReadout, inward_clamp, open_rate
from finflow.agent.networks.policy import ExpertPolicy
from tests.agent.conftest import coverage, generator, make_agent

MakeBatch = Callable[..., Batch]
MakeStates = Callable[[int, int, int], States]
LOGITS = torch.tensor([-1000.0, -20.0, -8.0, -5.0, -2.0, 0.0, 2.0, 5.0, 1000.0], dtype=torch.float64)


def permuted(states: States, order: torch.Tensor) -> States:
    n_assets = states.assets.shape[1]
    weights = torch.cat([states.weights[:, order], states.weights[:, n_assets:]], dim=1)
    return States(states.assets[:, order], states.market, torch.cat([weights, states.reward_state], dim=1))


def test_a_readout_equals_its_members_one_by_one() -> None:
    readout = EnsembleReadout(3, 5, generator())
    hidden = torch.randn(3, 7, 2, 5, generator=generator())
    with torch.no_grad():
        readout.bias.copy_(torch.randn(3, 1, 1, generator=generator()))
        expected = torch.stack([hidden[e] @ readout.weight[e, 0, 0] + readout.bias[e] for e in range(3)])
        torch.testing.assert_close(readout(hidden), expected)


def test_a_readout_has_its_first_and_second_derivatives() -> None:
    # its products are written by hand; a trust region differentiates them twice
    readout = EnsembleReadout(2, 4, generator()).double()
    hidden = torch.randn(2, 3, 2, 4, generator=generator(), dtype=torch.float64, requires_grad=True)

    def squared(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = torch.func.functional_call(readout, {"weight": weight}, (rows,))
        return read.square()

    weight = readout.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(squared, (hidden, weight))
    assert torch.autograd.gradgradcheck(squared, (hidden, weight))


def test_permuting_the_assets_permutes_the_policy(shape: NetworkShape, make_states: MakeStates) -> None:
    policy, states = ExpertPolicy(shape, generator()), make_states(6, 5, 0)
    order = torch.tensor([3, 0, 4, 1, 2])
    with torch.no_grad():
        decision, other = policy(states), policy(permuted(states, order))
    with_cash = torch.cat([order, torch.tensor([5])])
    # float32 sums in another order
    torch.testing.assert_close(other.centre, decision.centre[:, with_cash], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(other.experts, decision.experts[:, :, with_cash], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(other.gate, decision.gate, rtol=1e-4, atol=1e-6)


def test_permuting_the_assets_changes_no_value(shape: NetworkShape, make_states: MakeStates) -> None:
    critic, value = CriticEnsemble(shape, 8, generator()), ValueNetwork(shape, generator())
    states = make_states(6, 5, 0)
    order = torch.tensor([3, 0, 4, 1, 2])
    actions = torch.softmax(torch.randn(6, 3, 6, generator=generator()), dim=-1)
    other, moved = permuted(states, order), torch.cat([actions[..., order], actions[..., 5:]], dim=-1)
    with torch.no_grad():
        first = critic.value(critic.encode(states), states, actions)
        second = critic.value(critic.encode(other), other, moved)
        torch.testing.assert_close(first.mean, second.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(first.quantiles, second.quantiles, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(value(states), value(other), rtol=1e-4, atol=1e-5)


def test_an_expert_sees_its_own_lens_only(shape: NetworkShape, make_states: MakeStates) -> None:
    policy, states = ExpertPolicy(shape, generator()), make_states(4, 5, 0)
    for expert, lens in enumerate(shape.lenses):
        hidden = [column for column in range(shape.n_asset_features - 1) if column not in lens]
        changed = states.assets.clone()
        changed[..., hidden] += 3.0
        with torch.no_grad():
            before, after = policy(states), policy(states._replace(assets=changed))
        assert torch.equal(before.experts[:, expert], after.experts[:, expert])
        assert not torch.equal(before.experts, after.experts)


def test_the_centre_lies_between_the_current_weights_and_the_aim(shape: NetworkShape, make_states: MakeStates) -> None:
    states = make_states(8, 5, 0)
    with torch.no_grad():
        decision = ExpertPolicy(shape, generator())(states)
    expected = states.weights + decision.trade_rate * (decision.aim - states.weights)
    torch.testing.assert_close(decision.distribution.centre(), expected, rtol=1e-5, atol=1e-6)
    mixed = (decision.gate.unsqueeze(-1) * decision.experts).sum(dim=1)
    torch.testing.assert_close(decision.aim, mixed)


def test_money_that_was_never_invested_goes_to_the_aim(shape: NetworkShape, make_states: MakeStates) -> None:
    """A backtest begins in cash: an agent that crept to its aim would be out of the market for months."""
    states = make_states(3, 5, 0)
    states.portfolio[0, :6] = torch.eye(6)[-1]
    states.portfolio[1, :6] = torch.tensor([0.01, 0.0, 0.0, 0.0, 0.0, 0.99])
    policy = ExpertPolicy(shape, generator())
    with torch.no_grad():
        decision = policy(states)
    assert decision.trade_rate[0] == 1.0
    torch.testing.assert_close(decision.centre[0], decision.aim[0])
    assert (decision.trade_rate[1:] < 0.5).all()


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
    assert not slope_at(LOGITS, 3.0)[rate < 1e-3].any()  # under the smallest rate nothing lowers the logit


def test_within_its_bounds_a_scale_has_its_gradient_and_beyond_them_only_one_that_leads_back() -> None:
    asked = torch.tensor([-3.0, -1.0, 2.0], requires_grad=True)
    clamped = inward_clamp(asked, -2.0, 1.0)
    assert clamped.tolist() == [-2.0, -1.0, 1.0]
    for gradient, kept in ((5.0, [0.0, 5.0, 5.0]), (-5.0, [-5.0, -5.0, 0.0])):  # descent subtracts it
        (found,) = torch.autograd.grad(gradient * clamped.sum(), asked, retain_graph=True)
        assert found.tolist() == kept


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
