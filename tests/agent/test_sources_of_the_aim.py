"""A blend says what it holds, credits the reference for what it decides, and ends where the agent goes on learning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from finflow.agent.batch import Batch, States
from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import REFERENCES, Blend, describe_holding
from finflow.agent.networks.policy import EXPERTS, ExpertPolicy
from finflow.agent.networks.policy_ensemble import FrozenPolicy
from finflow.config import AveragingConfig
from tests.agent.helpers import CPU, coverage, generator, make_agent

MakeBatch = Callable[..., Batch]
MakeStates = Callable[[int, int, int], States]
VOLATILITY = (0, 0.5)


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
