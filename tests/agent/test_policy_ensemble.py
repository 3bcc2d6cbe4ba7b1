"""Policies side by side: each decides as it does alone, together by their mean, and frozen as they were deployed."""

from __future__ import annotations

import math

import pytest
import torch

from finflow.agent.batch import States
from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import Blend
from finflow.agent.networks.logistic_normal import LogisticNormal, kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import (
    BatchedPolicies,
    FrozenPolicy,
    PolicyEnsemble,
    deployed_policy,
    joined_readings,
)
from finflow.config import BCellConfig

ASSETS, FEATURES, MARKET = 6, 8, 3
SHAPE = NetworkShape(FEATURES + 1, MARKET, 64, tuple((column, FEATURES) for column in range(5)))


def make_members(count: int) -> list[ExpertPolicy]:
    return [make_policy(SHAPE, BCellConfig(), torch.Generator().manual_seed(number)) for number in range(count)]


def make_states(batch: int, seed: int = 0, groups: int | None = None) -> States:
    noise = torch.Generator().manual_seed(seed)
    groups = groups or batch
    assets = torch.cat([torch.randn(groups, ASSETS, FEATURES, generator=noise), torch.ones(groups, ASSETS, 1)], dim=-1)
    held = torch.softmax(torch.randn(batch, ASSETS + 1, generator=noise), dim=-1)
    portfolio = torch.cat([held, torch.randn(batch, 3, generator=noise)], dim=-1)
    return States(assets, torch.randn(groups, MARKET, generator=noise), portfolio, True)


@pytest.mark.parametrize("groups", [12, 4])
def test_an_ensemble_decides_by_the_mean_of_its_members(groups: int) -> None:
    members, states = make_members(3), make_states(12, groups=groups)
    with torch.no_grad():
        members[1].trade.bias[1] -= 0.5
    found = PolicyEnsemble(members)(states)
    mean = torch.stack([one(states).centre for one in members]).mean(dim=0)
    torch.testing.assert_close(found.centre, mean, rtol=1e-5, atol=1e-7)
    scales = torch.stack([one(states).log_scale for one in members])  # the geometric mean of scales
    torch.testing.assert_close(found.log_scale, scales.mean(dim=0))


def test_its_parts_lead_to_its_decision() -> None:
    """Experts mixed by the gate are the aim; the trade rate leads from what is held toward it."""
    states = make_states(12)
    found = PolicyEnsemble(make_members(4))(states)
    torch.testing.assert_close(found.gate.sum(dim=-1), torch.ones(12))
    torch.testing.assert_close(torch.einsum("be,bek->bk", found.gate, found.experts), found.aim)
    moved = states.weights + found.trade_rate * (found.aim - states.weights)
    torch.testing.assert_close(moved, found.centre, rtol=1e-5, atol=1e-6)


def test_out_of_cash_it_goes_the_whole_way() -> None:
    states = make_states(5)
    states.portfolio[:, : ASSETS + 1] = torch.eye(ASSETS + 1)[-1]
    found = PolicyEnsemble(make_members(2))(states)
    torch.testing.assert_close(found.centre, found.aim, rtol=1e-5, atol=1e-6)


def test_side_by_side_each_decides_as_it_does_alone() -> None:
    """Decisions and gradients; portfolios of one member reach no other."""
    members = make_members(3)
    states = [make_states(8, seed=number) for number in range(3)]
    readings = [one.read_market(own) for one, own in zip(members, states, strict=True)]
    portfolio = torch.cat([own.portfolio for own in states])
    joined = joined_readings(readings, 1)
    found = BatchedPolicies(members).trade_toward(states[0]._replace(portfolio=portfolio), joined).centre
    for number, (one, own) in enumerate(zip(members, states, strict=True)):
        rows = found[8 * number : 8 * number + 8]
        alone = one(own).centre
        torch.testing.assert_close(rows, alone, rtol=1e-5, atol=1e-7)
        slopes = torch.autograd.grad(rows.square().sum(), list(one.parameters()), retain_graph=True, allow_unused=True)
        expected = torch.autograd.grad(alone.square().sum(), list(one.parameters()), allow_unused=True)
        for slope, wanted in zip(slopes, expected, strict=True):
            if wanted is not None:
                torch.testing.assert_close(slope, wanted, rtol=1e-4, atol=1e-6)
        others = [p for other in members if other is not one for p in other.parameters()]
        reached = torch.autograd.grad(rows.sum(), others, retain_graph=True, allow_unused=True)
        assert all(slope is None or not slope.any() for slope in reached)


def test_readings_are_joined_horizon_first() -> None:
    """A row of the joint reading is of a bar, then of a member, then of a portfolio."""
    members, states = make_members(2), make_states(6)  # two bars of three portfolios
    readings = [one.read_market(states) for one in members]
    joined = joined_readings(readings, 2)
    assert torch.equal(joined.rows(6, 9).aim, readings[0].aim[3:])
    assert torch.equal(joined.rows(9, 12).aim, readings[1].aim[3:])


def test_without_confidence_one_policy_is_enough() -> None:
    policy, *others = make_members(4)
    blend = Blend(0.0, "equal-weight", (0, 1.0))
    assert deployed_policy(policy, others, blend).blend == blend
    assert not isinstance(deployed_policy(policy, others, blend), PolicyEnsemble)
    assert deployed_policy(policy, others, None) is policy
    held = deployed_policy(policy, others, blend._replace(confidence=0.5))
    assert isinstance(held, PolicyEnsemble)
    equal = deployed_policy(policy, others, blend)(make_states(4)).aim[:, :-1]
    torch.testing.assert_close(equal, torch.full((4, ASSETS), 1.0 / ASSETS))


VOLATILITY = (2, 0.7)
BLENDS = [
    None,
    Blend(0.0, "equal-weight", VOLATILITY),
    Blend(0.0, "inverse-volatility", VOLATILITY),
    Blend(0.25, "inverse-volatility", VOLATILITY),
    Blend(1.0, "equal-weight", VOLATILITY),
]


def make_deployed(blend: Blend | None) -> ExpertPolicy:
    """What an agent decides by: its policy and three blocks' policies, in a blend."""
    policy, *others = make_members(4)
    for number, one in enumerate((policy, *others)):
        with torch.no_grad():
            one.trade.bias[1] -= 0.2 * number
    return deployed_policy(policy, others, blend)


@pytest.mark.parametrize("blend", BLENDS)
def test_it_decides_as_the_agent_was_deployed_and_is_read_back_from_its_tensors(blend: Blend | None) -> None:
    deployed, states = make_deployed(blend), make_states(9, groups=3)
    frozen, wanted = FrozenPolicy.of(deployed, VOLATILITY), deployed(states)
    found = frozen(states)
    for name in ("centre", "aim", "trade_rate", "log_scale"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name), rtol=1e-5, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    tensors = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}
    read = FrozenPolicy.from_tensors(make_members(9)[-1], tensors)  # a policy of the same shape with other weights
    assert read.blend == blend
    for one, other in zip(found[:6], read(states)[:6], strict=True):
        assert torch.equal(one, other)
    assert all(torch.equal(tensor, read.state_dict()[name]) for name, tensor in tensors.items())


def test_what_becomes_of_the_agent_later_does_not_move_it() -> None:
    deployed, states = make_deployed(Blend(0.25, "equal-weight", VOLATILITY)), make_states(5)
    frozen = FrozenPolicy.of(deployed, VOLATILITY)
    before = frozen(states).centre
    with torch.no_grad():
        for parameter in deployed.parameters():
            parameter.add_(1.0)
    assert torch.equal(frozen(states).centre, before)


def test_inverse_volatility_is_read_by_the_scale_of_the_market_it_is_used_in() -> None:
    """The same volatilities, scaled by a deviation half as large, are twice the numbers."""
    deployed, states = make_deployed(Blend(0.0, "inverse-volatility", VOLATILITY)), make_states(5)
    rescaled = states.assets.clone()
    rescaled[:, :, VOLATILITY[0]] *= 2.0
    here = FrozenPolicy.of(deployed, (VOLATILITY[0], VOLATILITY[1] / 2.0))
    torch.testing.assert_close(here(states._replace(assets=rescaled)).aim, deployed(states).aim)


@pytest.mark.parametrize("blend", BLENDS)
def test_the_divergence_in_closed_form_is_the_mean_of_sampled_log_ratios(blend: Blend | None) -> None:
    """Both densities are of weights, as those of an agent's actions are; Jacobians cancel."""
    states = make_states(3)
    own = make_members(5)[-1](states).distribution
    other = FrozenPolicy.of(make_deployed(blend), VOLATILITY)(states).distribution
    portfolios, density = own.sample(torch.randn(3, 40_000, ASSETS, generator=torch.Generator().manual_seed(5)))
    of_each = LogisticNormal(other.location.unsqueeze(1), other.log_scale.unsqueeze(1))
    ratios = density - of_each.log_density(portfolios)
    error = ratios.std(dim=1) / math.sqrt(ratios.shape[1])
    closed = ASSETS * kl_per_dimension(own, other)
    assert bool(((ratios.mean(dim=1) - closed).abs() < 4.5 * error).all())
    assert bool((closed > 10.0 * error).all())  # which tells it from none


def test_tensors_of_other_policies_are_refused() -> None:
    tensors = FrozenPolicy.of(make_deployed(Blend(0.25, "equal-weight", VOLATILITY)), VOLATILITY).state_dict()
    del tensors["members.1.gate.bias"]
    with pytest.raises(RuntimeError, match=r"gate\.bias"):
        FrozenPolicy.from_tensors(make_members(1)[0], tensors)
