"""Weights that are counted in sigma_A: each against the same term with its coefficient written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.learners.soft_actor_critic import UpdatePoint, held_back
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.logistic_normal import kl_from_equal_weight
from finflow.config import AnchorConfig, BCellConfig
from tests.agent.helpers import SMALL, coverage, generator, make_agent, make_iql, parameters

MakeBatch = Callable[..., Batch]
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


def test_a_tuned_penalty_is_weighed_in_sigma_a_too(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch = make_batch()
    tuned = updated(shape, batch, SCALE, 0.8, cql_mode="lagrange", cql_alpha=5.0)
    fixed = updated(shape, batch, SCALE, 0.8, cql_alpha=5.0)
    torch.testing.assert_close(tuned[1], fixed[1])
    assert tuned[2]["effective_cql_alpha"].item() == pytest.approx(5.0 * SCALE, rel=1e-6)


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


def test_advantages_of_imitation_are_in_sigma_a(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """Beta 3 at sigma_A = 1/20 is beta 60 at 1: the same policy after an update, bit for bit."""
    policies = []
    for scale, beta in ((SCALE, 3.0), (1.0, 3.0 / SCALE)):
        learner = make_iql(shape, BCellConfig.model_validate({**SMALL, "iql_temperature": beta}))
        learner.advantage_scale = scale
        metrics = learner.update(make_batch(), 0.0, generator(2))
        assert metrics["effective_beta"].item() == pytest.approx(60.0)
        policies.append(parameters(learner.policy))
    assert torch.equal(*policies)
