"""Networks take any number of assets in any order, learning comes back from bounds; portfolios that are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from finflow.agent.batch import States
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape, ValueNetwork
from finflow.agent.networks.decision import acted_portfolio, nucleus
from finflow.agent.networks.distributions import UNLISTED, LogisticNormal
from finflow.agent.networks.layers import EnsembleReadout, inward_clamp, open_rate
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import ActingConfig
from tests.agent.conftest import MakeBatch, MakeStates, coverage, generator, make_agent

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


def test_permuting_the_assets_permutes_decisions_and_no_value(shape: NetworkShape, make_states: MakeStates) -> None:
    policy, critic = ExpertPolicy(shape, generator()), CriticEnsemble(shape, 8, generator())
    value, states, order = ValueNetwork(shape, generator()), make_states(6, 5, 0), torch.tensor([3, 0, 4, 1, 2])
    moved, with_cash = permuted(states, order), torch.cat([order, torch.tensor([5])])
    actions = torch.softmax(torch.randn(6, 3, 6, generator=generator()), dim=-1)
    with torch.no_grad():
        decision, other = policy(states), policy(moved)
        first = critic.value(critic.encode(states), states, actions)
        second = critic.value(critic.encode(moved), moved, actions[..., with_cash])
        torch.testing.assert_close(value(states), value(moved), rtol=1e-4, atol=1e-5)
    # float32 sums in another order
    torch.testing.assert_close(other.centre, decision.centre[:, with_cash], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(other.experts, decision.experts[:, :, with_cash], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(other.gate, decision.gate, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(first.mean, second.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(first.quantiles, second.quantiles, rtol=1e-4, atol=1e-5)


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


def slope_at(logits: torch.Tensor, gradient: float) -> torch.Tensor:
    """Gradient of the logits for a gradient of the rate."""
    asked = logits.clone().requires_grad_(True)
    (found,) = torch.autograd.grad((gradient * open_rate(asked)).sum(), asked)
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


DAY = np.datetime64("2011-12-14")
LOCATION = torch.tensor([[1.2, -0.4, 0.3, 0.0], [-2.0, 0.5, 0.1, 1.0]], dtype=torch.float64)
LAW = LogisticNormal(LOCATION, torch.full_like(LOCATION, math.log(0.3)))


def acted(date: np.datetime64 = DAY, **settings: float) -> torch.Tensor:
    return acted_portfolio(LAW, ActingConfig(**settings), date)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_the_log_ratios_of_draws_have_the_policys_mean_and_the_temperature_times_its_variance(
    temperature: float,
) -> None:
    days = np.arange("1966-01-01", "1975-01-01", dtype="datetime64[D]")  # before 1970 too
    drawn = torch.stack([acted(day, temperature=temperature) for day in days])
    ratios = (drawn[..., :-1] / drawn[..., -1:]).log()
    deviation = 0.3 * math.sqrt(temperature)
    error = deviation / math.sqrt(len(days))
    torch.testing.assert_close(ratios.mean(dim=0), LOCATION, rtol=0.0, atol=4.5 * error)
    torch.testing.assert_close(ratios.std(dim=0), torch.full_like(LOCATION, deviation), rtol=0.0, atol=3.5 * error)
    following = torch.stack([ratios[:-1, 0, 0], ratios[1:, 0, 0]])
    assert abs(float(torch.corrcoef(following)[0, 1])) < 4.0 / math.sqrt(len(days))


def test_a_draw_depends_on_the_date_alone() -> None:
    assert torch.equal(acted(), LAW.centre())  # which is what is decided by default
    first = acted(temperature=1.0)
    acted(np.datetime64("2011-12-15"), temperature=1.0)
    assert torch.equal(acted(temperature=1.0), first)
    assert not torch.equal(acted(np.datetime64("2011-12-15"), temperature=1.0), first)
    alone = LogisticNormal(LOCATION[1:], LAW.log_scale[1:])  # whoever else is drawn for
    assert torch.equal(acted_portfolio(alone, ActingConfig(temperature=1.0), DAY), first[1:])
    with pytest.raises(ValueError, match="date"):
        acted_portfolio(LAW, ActingConfig(temperature=1.0), None)


@given(st.lists(st.floats(0.0, 1.0, width=32), min_size=1, max_size=8), st.floats(0.01, 1.0))
def test_the_set_has_the_share_and_no_smaller_one_has(weights: list[float], top_p: float) -> None:
    found = nucleus(torch.tensor(weights), top_p)
    total, size = math.fsum(weights), int(found.sum())
    largest = sorted(weights, reverse=True)
    share = math.fsum(w for w, kept in zip(weights, found.tolist(), strict=True) if kept)
    assert share == pytest.approx(math.fsum(largest[:size]), abs=1e-12)  # the largest are kept
    assert share >= (top_p - 2e-6) * total
    if size:
        assert math.fsum(largest[: size - 1]) < top_p * total
    else:
        assert total == 0.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@given(top_p=st.floats(0.05, 1.0))
def test_assets_that_are_left_out_leave_their_weight_to_the_others_and_cash_as_it_is(
    temperature: float, top_p: float
) -> None:
    whole, chosen = acted(temperature=temperature), acted(temperature=temperature, top_p=top_p)
    torch.testing.assert_close(chosen.sum(dim=-1), torch.ones(2, dtype=torch.float64))
    assert torch.equal(chosen[:, -1], whole[:, -1])
    kept = nucleus(LAW.centre()[:, :-1], top_p)  # of the centre: a draw changes no names
    assert torch.equal(chosen[:, :-1] > 0.0, kept)
    ratios = chosen[:, :-1] / whole[:, :-1]
    for row, held in zip(ratios, kept, strict=True):
        assert float(row[held].max() - row[held].min()) < 1e-12


def test_assets_that_are_not_listed_are_never_held() -> None:
    listed = torch.tensor([[True, False, True, False], [False, False, False, False]])
    law = LogisticNormal(LOCATION.masked_fill(~listed, UNLISTED), LAW.log_scale, listed)
    for top_p in (0.3, 1.0):
        found = acted_portfolio(law, ActingConfig(temperature=2.0, top_p=top_p), DAY)
        assert torch.equal(found[:, :-1][~listed], torch.zeros(6, dtype=torch.float64))
        torch.testing.assert_close(found.sum(dim=-1), torch.ones(2, dtype=torch.float64))
    assert float(found[1, -1]) == 1.0


def test_samples_carry_their_own_density() -> None:
    location = torch.tensor([[0.2, -0.3, 0.1]], dtype=torch.float64)
    law = LogisticNormal(location, torch.full_like(location, math.log(0.5)))
    noise = torch.randn(1, 64, 3, generator=generator(), dtype=torch.float64)
    portfolios, log_density = law.sample(noise)
    many = LogisticNormal(law.location.expand(64, -1), law.log_scale.expand(64, -1))
    torch.testing.assert_close(many.log_density(portfolios[0]), log_density[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(portfolios.sum(-1), torch.ones(1, 64, dtype=torch.float64))


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
