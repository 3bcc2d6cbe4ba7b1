"""Networks that take any number of assets, and do not care for their order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from finflow.agent.batch import States
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape, ValueNetwork
from finflow.agent.networks.layers import EnsembleLinear, EnsembleReadout
from finflow.agent.networks.policy import ExpertPolicy

MakeStates = Callable[[int, int, int], States]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def permuted(states: States, order: torch.Tensor) -> States:
    n_assets = states.assets.shape[1]
    weights = torch.cat([states.weights[:, order], states.weights[:, n_assets:]], dim=1)
    return States(states.assets[:, order], states.market, torch.cat([weights, states.reward_state], dim=1))


def test_an_ensemble_equals_its_members_one_by_one() -> None:
    layer = EnsembleLinear(3, 5, 2, generator())
    rows = torch.randn(7, 5, generator=generator())
    with torch.no_grad():
        layer.bias.copy_(torch.randn(3, 1, 2, generator=generator()))
        expected = torch.stack([rows @ layer.weight[e] + layer.bias[e] for e in range(3)])
        torch.testing.assert_close(layer(rows), expected)


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


def test_the_spread_of_a_valuation_does_not_move_its_mean(shape: NetworkShape, make_states: MakeStates) -> None:
    critic, states = CriticEnsemble(shape, 8, generator()), make_states(4, 5, 0)
    with torch.no_grad():
        valuation = critic.value(critic.encode(states), states, states.weights.unsqueeze(1))
    torch.testing.assert_close(valuation.spread.mean(-1), torch.zeros(2, 4, 1), atol=1e-6, rtol=0.0)


def test_both_values_equal_each_alone_and_one_of_them_leaves_the_encoder_alone(
    shape: NetworkShape, make_states: MakeStates
) -> None:
    value, states = ValueNetwork(shape, generator()), make_states(6, 5, 0)
    own, behaviour = value.both(states)
    assert torch.equal(own, value(states))
    assert torch.equal(behaviour, value.of_behaviour(states))
    behaviour.square().sum().backward()
    assert all(parameter.grad is None for parameter in [*value.encoder.parameters(), *value.own.parameters()])
    assert all(parameter.grad is not None for parameter in value.behaviour.parameters())
