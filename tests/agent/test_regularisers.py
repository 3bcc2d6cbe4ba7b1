"""Anchors and averages, which hold a policy back, and coefficients that are counted in sigma_A."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.learners.acting import PolicyAverage
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import IQL, portfolio_networks
from finflow.agent.learners.soft_actor_critic import UpdatePoint, anchor_weight, held_back
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.distributions import LogisticNormal, kl_from_equal_weight, kl_per_dimension
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import AnchorConfig, AveragingConfig, BCellConfig
from tests.agent.conftest import CPU, coverage, generator, make_agent, parameters

MakeBatch = Callable[..., Batch]
CONFIG = BCellConfig(
    hidden_dim=32,
    n_quantiles=8,
    cql_samples=2,
    actor_lr=3e-3,
    anchor=AnchorConfig(weight=0.0),
)


def test_the_divergence_is_that_of_two_normals() -> None:
    noise = generator()
    own, other = (
        LogisticNormal(torch.randn(5, 3, generator=noise), 0.3 * torch.randn(5, 3, generator=noise)) for _ in range(2)
    )
    normals = [torch.distributions.Normal(one.location, one.log_scale.exp()) for one in (own, other)]
    expected = torch.distributions.kl_divergence(*normals).mean(dim=-1)
    torch.testing.assert_close(kl_per_dimension(own, other), expected)
    assert kl_per_dimension(own, own).abs().max() < 1e-6


def test_equal_weight_is_no_distance_from_itself_whatever_is_listed() -> None:
    listed = torch.tensor([[True, True, True], [True, False, True]])
    equal = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0.0], [0.5, 0.0, 0.5, 0.0]])
    torch.testing.assert_close(kl_from_equal_weight(equal, listed), torch.zeros(2), atol=1e-6, rtol=0.0)
    half_cash = torch.tensor([[1 / 6, 1 / 6, 1 / 6, 0.5], [0.25, 0.0, 0.25, 0.5]])
    torch.testing.assert_close(kl_from_equal_weight(half_cash, listed), torch.full((2,), 2.0).log())


def test_the_anchor_is_held_or_annealed() -> None:
    """Over the updates that are named, or over those of the phase."""
    held, annealed = AnchorConfig(weight=2.0), AnchorConfig(weight=2.0, final=0.5, updates=100)
    of_phase = AnchorConfig(weight=2.0, final=0.5)
    assert [anchor_weight(held, update, 500) for update in (0, 50, 500)] == [2.0, 2.0, 2.0]
    assert [anchor_weight(annealed, update, 500) for update in (0, 50, 100, 500)] == [2.0, 1.25, 0.5, 0.5]
    assert [anchor_weight(of_phase, update, 200) for update in (0, 100, 200, 500)] == [2.0, 1.25, 0.5, 0.5]


@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_the_average_is_what_a_hand_computes(shape: NetworkShape, kind: str) -> None:
    config = AveragingConfig.model_validate({"kind": kind, "start": 0.5, "decay": 0.8})
    policies = [ExpertPolicy(shape, generator(seed)) for seed in range(6)]
    average = PolicyAverage(config, policies[0])
    weights = [policy.gate.weight.detach().double() for policy in policies]
    for update, policy in enumerate(policies, start=1):
        average.update(policy, update / 6)
        if update <= 3:
            assert torch.equal(average.policy.gate.weight, policy.gate.weight)  # it has not begun: the policy itself
    expected = weights[2]
    if kind == "ema":
        for weight in weights[3:]:
            expected = 0.8 * expected + 0.2 * weight
    else:
        expected = (weights[3] + weights[4] + weights[5]) / 3.0
    torch.testing.assert_close(average.policy.gate.weight.double(), expected, rtol=1e-5, atol=1e-6)
    assert average.count == 3


def test_the_average_decides_and_the_policy_explores(shape: NetworkShape, make_batch: MakeBatch) -> None:
    config = CONFIG.model_copy(update={"averaging": AveragingConfig(kind="swa", start=0.0)})
    agent = BCell(shape, config, generator(), CPU)
    states = make_batch().states
    agent.seed_from(IQL(portfolio_networks(shape, CONFIG, generator(3)), CONFIG, CPU))
    with torch.no_grad():
        same = agent.decide(states).centre
        torch.testing.assert_close(same, agent.policy(states).centre)
        for parameter in agent.policy.parameters():
            parameter.add_(0.5)
        torch.testing.assert_close(agent.decide(states).centre, same)
        assert not torch.allclose(agent.policy(states).centre, same)
        agent.update_average(1.0)
        torch.testing.assert_close(agent.decide(states).centre, agent.policy(states).centre)


def test_saved_and_loaded_the_average_still_decides(shape: NetworkShape, make_batch: MakeBatch, tmp_path: Path) -> None:
    agent = make_agent(shape, averaging=AveragingConfig(kind="ema", start=0.0, decay=0.5))
    with torch.no_grad():
        for parameter in agent.policy.parameters():
            parameter.add_(0.5)
    agent.update_average(1.0)
    path = tmp_path / "agent.safetensors"
    agent.save(path)
    states = make_batch().states
    torch.testing.assert_close(BCell.load(path).decide(states).centre, agent.decide(states).centre)


SCALE = 0.05


def updated(
    shape: NetworkShape, batch: Batch, scale: float, alpha: float, **changes: object
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Policy and critics after an update, and its figures."""
    agent = make_agent(shape, **changes)
    agent.advantage_scale = scale
    metrics = agent.update_sac(batch, coverage(), generator(3), 0, alpha=alpha)
    return parameters(agent.policy), parameters(agent.critic), metrics


def test_coefficients_are_counted_in_sigma_a(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """Alpha, anchor and CQL at sigma_A = 1/20 do what a twentieth of each does at 1."""
    batch = make_batch()
    keys = {"cql_alpha": 5.0, "entropy_backup": "relative"}
    less = {"cql_alpha": 5.0 * SCALE, "entropy_backup": "relative"}
    weighed = updated(shape, batch, SCALE, 0.8, anchor=AnchorConfig(weight=1.0), **keys)
    written = updated(shape, batch, 1.0, 0.8 * SCALE, anchor=AnchorConfig(weight=SCALE), **less)
    torch.testing.assert_close(weighed[0], written[0])
    torch.testing.assert_close(weighed[1], written[1])
    for name in ("actor_loss", "q_loss", "effective_alpha", "effective_cql_alpha", "effective_anchor"):
        torch.testing.assert_close(weighed[2][name], written[2][name])
    logged = {name: weighed[2][name].item() for name in ("alpha", "advantage_scale")}
    assert logged == pytest.approx({"alpha": 0.8, "advantage_scale": SCALE})


def test_the_anchor_pulls_the_aim_as_far_as_it_is_traded(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """Its gradient for an aim is the divergence's own times the trade rate; its value stays."""
    batch = make_batch()
    agent = make_agent(shape, anchor=AnchorConfig(weight=1.0))
    decision = agent.policy(batch.states)
    aim = decision.aim.detach().requires_grad_(True)
    loss, _ = held_back(agent, decision._replace(aim=aim), batch, UpdatePoint())
    (found,) = torch.autograd.grad(loss, aim)
    plain = kl_from_equal_weight(aim, batch.states.listed).mean()
    (whole,) = torch.autograd.grad(plain, aim)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, decision.trade_rate.detach() * whole)
