"""A frozen policy has the density of the agent as it was deployed, and is read back from its tensors alone."""

from __future__ import annotations

import math

import pytest
import torch

from finflow.agent.networks.decision import Blend
from finflow.agent.networks.logistic_normal import LogisticNormal, kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.agent.networks.policy_ensemble import FrozenPolicy, deployed_policy
from tests.agent.test_policy_ensemble import ASSETS, make_members, make_states

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
