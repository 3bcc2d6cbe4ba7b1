"""Policies side by side, frozen and blended: each decides as it does alone, and the parts of an aim sum to it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from finflow.agent.batch import States
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import REFERENCES, Blend, describe_holding
from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.agent.networks.policy_ensemble import (
    BatchedPolicies,
    FrozenPolicy,
    PolicyEnsemble,
    deployed_policy,
    joined_readings,
)
from finflow.config import AveragingConfig, BCellConfig
from tests.agent.conftest import CPU, MakeBatch, MakeStates, coverage, generator, make_agent

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
    with torch.no_grad():  # what becomes of the agent later does not move it
        for parameter in deployed.parameters():
            parameter.add_(1.0)
    assert torch.equal(frozen(states).centre, found.centre)


def test_inverse_volatility_is_read_by_the_scale_of_the_market_it_is_used_in() -> None:
    """The same volatilities, scaled by a deviation half as large, are twice the numbers."""
    deployed, states = make_deployed(Blend(0.0, "inverse-volatility", VOLATILITY)), make_states(5)
    rescaled = states.assets.clone()
    rescaled[:, :, VOLATILITY[0]] *= 2.0
    here = FrozenPolicy.of(deployed, (VOLATILITY[0], VOLATILITY[1] / 2.0))
    torch.testing.assert_close(here(states._replace(assets=rescaled)).aim, deployed(states).aim)


def test_tensors_of_other_policies_are_refused() -> None:
    tensors = FrozenPolicy.of(make_deployed(Blend(0.25, "equal-weight", VOLATILITY)), VOLATILITY).state_dict()
    del tensors["members.1.gate.bias"]
    with pytest.raises(RuntimeError, match=r"gate\.bias"):
        FrozenPolicy.from_tensors(make_members(1)[0], tensors)


def deployed(shape: NetworkShape, blend: Blend, members: int = 0) -> BCell:
    """An agent with some policies of blocks, in a blend."""
    agent = BCell(shape, make_agent(shape).config, generator(), CPU, blocks=members)
    assert agent.blend is not None
    assert agent.members is not None
    for number, one in enumerate(agent.members):
        other = make_agent(shape)
        with torch.no_grad():
            for parameter in other.policy.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator(50 + number)))
        one.load_state_dict(other.policy.state_dict())
    agent.blend.copy_(blend.to_tensor(CPU))
    return agent


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("confidence", [0.0, 0.4, 1.0])
def test_the_parts_of_an_aim_sum_to_it_and_the_reference_is_one_of_them(
    confidence: float, reference: str, members: int, shape: NetworkShape, make_states: MakeStates
) -> None:
    """Its share is what the experts do not have."""
    agent, states = deployed(shape, Blend(confidence, reference, VOLATILITY), members), make_states(6, 4, 0)
    policy = agent.deployed
    with torch.no_grad():
        decision = policy(states)
    assert policy.sources == (*EXPERTS, "reference")
    assert decision.gate.shape == (6, 6)
    assert decision.experts.shape == (6, 6, 5)
    # float32, of weights that sum to one
    torch.testing.assert_close(decision.gate.sum(dim=1), torch.ones(6), rtol=0.0, atol=1e-5)
    mixed = torch.einsum("be,bek->bk", decision.gate, decision.experts)
    torch.testing.assert_close(mixed, decision.aim, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(decision.experts.sum(dim=-1), torch.ones(6, 6), rtol=0.0, atol=1e-5)
    torch.testing.assert_close(decision.gate[:, -1], torch.full((6,), 1.0 - confidence), rtol=0.0, atol=1e-5)
    portfolio = Blend(confidence, reference, VOLATILITY).portfolio(states)
    torch.testing.assert_close(decision.experts[:, -1], portfolio, rtol=0.0, atol=1e-5)
    frozen: ExpertPolicy = FrozenPolicy.of(policy, VOLATILITY)
    assert frozen.sources == policy.sources
    torch.testing.assert_close(frozen(states).gate, decision.gate, rtol=0.0, atol=1e-6)


def test_an_agent_says_what_it_holds(shape: NetworkShape) -> None:
    assert make_agent(shape).holds == describe_holding(None) == "holds what its own policy decides"
    held = deployed(shape, Blend(0.0, "inverse-volatility", VOLATILITY)).holds
    assert held == "holds inverse volatility; its own policy found nothing that holds out of sample"
    assert deployed(shape, Blend(0.62, "equal-weight", VOLATILITY)).holds == (
        "holds 62% of its own policy's portfolio, the rest equal weight"
    )


@pytest.mark.parametrize("averaging", ["none", "ema", "swa"])
def test_a_saved_agent_goes_on_learning(
    averaging: str, shape: NetworkShape, make_batch: MakeBatch, tmp_path: Path
) -> None:
    """An update changes what it does: the blend, whose evidence is of the policy before, ends with a warning."""
    agent, batch = deployed(shape, Blend(0.0, "equal-weight", VOLATILITY)), make_batch()
    config = agent.config.model_copy(update={"averaging": AveragingConfig(kind=averaging, start=0.0, decay=0.5)})
    fresh = BCell(shape, config, generator(), CPU, blocks=0)
    assert fresh.blend is not None
    assert agent.blend is not None
    fresh.blend.copy_(agent.blend)
    fresh.save(tmp_path / "agent.safetensors")
    states = batch.states
    observation = {name: getattr(states, name).numpy() for name in ("assets", "market", "portfolio")}
    found = []
    for updates in (1, 2):
        loaded = BCell.load(tmp_path / "agent.safetensors")
        before = loaded.act(observation)
        with pytest.warns(UserWarning, match="holds equal weight; its own policy found nothing .* goes on learning"):
            loaded.update_sac(batch, coverage(), generator(3))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once
            for _ in range(updates - 1):
                loaded.update_sac(batch, coverage(), generator(4))
        assert loaded.holds == describe_holding(None)
        found.append(loaded.act(observation))
        assert abs(found[-1] - before).max() > 1e-4
    assert abs(found[1] - found[0]).max() > 1e-5  # and the next update again


def test_critics_alone_leave_a_blend_as_it_is(shape: NetworkShape, make_batch: MakeBatch) -> None:
    agent = deployed(shape, Blend(0.0, "equal-weight", VOLATILITY))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.update_sac(make_batch(), coverage(), generator(3), actor=False)
    assert "holds equal weight" in agent.holds
