"""Policies side by side: each decides as it does alone, and the ensemble decides by their mean."""

from __future__ import annotations

import pytest
import torch

from finflow.agent.batch import States
from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import Blend
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import BatchedPolicies, PolicyEnsemble, deployed_policy, joined_readings
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
