"""The options of an online update: each changes what it says, and nothing where it is off."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import portfolio_networks
from finflow.agent.losses.critic_losses import conservative_loss, indifferent_penalty
from finflow.agent.networks.critic import CRITICS, NetworkShape
from finflow.agent.networks.logistic_normal import kl_from_portfolios
from finflow.agent.networks.policy import expert_losses
from finflow.config import AnchorConfig, BCellConfig
from finflow.env.coverage import draw_coverage
from tests.agent import helpers
from tests.agent.helpers import CPU, SMALL, coverage, generator, parameters

MakeBatch = Callable[..., Batch]
PLAIN = {"anchor": AnchorConfig(weight=0.0)}


def make_agent(shape: NetworkShape, **changes: object) -> BCell:
    """An agent without regularisers of its policy."""
    return helpers.make_agent(shape, **{**PLAIN, **changes})


def learned(agent: BCell, part: str) -> torch.Tensor:
    return parameters(getattr(agent, part))


def test_a_batch_is_enough_for_an_update(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """Then the noise is the agent's own, schedules are at their end, and there is no conservative penalty."""
    anchor = AnchorConfig(weight=1.0, final=0.25)
    alone, told = (make_agent(shape, dropped_quantiles=2, anchor=anchor) for _ in range(2))
    metrics = alone.update_sac(make_batch())
    assert metrics["effective_anchor"].item() == 0.25
    assert "cql_loss" not in metrics
    assert {name: float(value) for name, value in metrics.items()} == {
        name: float(value) for name, value in told.update_sac(make_batch(), None, generator(0), 50, total=50).items()
    }
    torch.testing.assert_close(learned(alone, "critic"), learned(told, "critic"), rtol=0.0, atol=0.0)
    assert not torch.equal(learned(alone, "policy"), learned(make_agent(shape), "policy"))


@pytest.mark.parametrize(("schedule", "share"), [("constant", 1.0), ("cosine", 0.25)])
def test_rates_of_policy_and_critics_fall_along_the_cosine(shape: NetworkShape, schedule: str, share: float) -> None:
    agent = make_agent(shape, online_schedule=schedule, actor_lr=1e-3, critic_lr=4e-3)
    agent.set_learning_rates(2.0 / 3.0)  # where the cosine has a quarter left
    assert [group["lr"] for group in agent.policy_optimiser.param_groups] == pytest.approx([1e-3 * share])
    assert [group["lr"] for group in agent.critic_optimiser.param_groups] == pytest.approx([4e-3 * share])
    agent.set_learning_rates(0.0, 0.5)
    assert (agent.policy_optimiser.param_groups[0]["lr"], agent.critic_optimiser.param_groups[0]["lr"]) == (5e-4, 4e-3)


def test_calibration_none_is_cql(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """An infinite lower bound, plain CQL, and the option: the same critics after an update, bit for bit."""
    batch = make_batch()
    unbounded = batch._replace(calibrations=torch.full((16,), -math.inf))
    calibrated, plain, option = make_agent(shape), make_agent(shape), make_agent(shape, calibration="none")
    calibrated.update_sac(batch, coverage(), generator(3), 0)
    plain.update_sac(unbounded, coverage(), generator(3), 0)
    option.update_sac(batch, coverage(), generator(3), 0)
    assert torch.equal(learned(option, "critic"), learned(plain, "critic"))
    assert not torch.equal(learned(calibrated, "critic"), learned(plain, "critic"))


@pytest.mark.parametrize("n_weights", [3, 21])
def test_a_critic_that_cannot_tell_portfolios_apart_overestimates_nothing(n_weights: int) -> None:
    """Not with uniform proposals, and not with few of the mixture's and the policy's, whose densities differ."""
    values, none = torch.full((2, 8, 30), 1.7), torch.zeros(30, dtype=torch.bool)
    uniform = torch.full((8, 30), math.lgamma(n_weights))
    drawn = torch.from_numpy(draw_coverage(np.random.default_rng(0), 240, n_weights)[1]).float().view(8, 30)
    largest = -math.lgamma(n_weights) / (n_weights - 1)
    for density in (uniform, drawn, uniform + 3.0 * torch.randn(8, 30, generator=generator())):
        penalty = conservative_loss(values, density, values[..., 0], none, torch.zeros(8), n_weights - 1)
        indifferent = indifferent_penalty(density, n_weights - 1)
        assert (penalty / CRITICS - indifferent).item() == pytest.approx(0.0, abs=1e-5)
    assert indifferent_penalty(uniform, n_weights - 1).item() == pytest.approx(largest, abs=1e-5)
    assert largest < -0.25  # the penalty itself is far from zero


def test_of_a_critic_that_is_constant_the_update_itself_finds_no_excess(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """With proposals of the policy among few others, and a bound that binds nowhere."""
    agent = make_agent(shape, cql_mode="lagrange", calibration="none")
    with torch.no_grad():
        for parameter in agent.critic.parameters():
            parameter.zero_()
    metrics = agent.update_sac(make_batch(), coverage(), generator(3), 0)
    assert metrics["cql_excess"].item() == pytest.approx(0.0, abs=1e-5)
    assert metrics["cql_loss"].item() != pytest.approx(0.0, abs=0.1)


def test_a_tuned_weight_begins_at_the_configured_one_and_follows_the_excess(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    agent = make_agent(shape, cql_mode="lagrange", critic_lr=1e-2)
    found = [agent.update_sac(make_batch(), coverage(), generator(n), n) for n in range(2)]
    assert found[0]["cql_alpha"].item() == pytest.approx(5.0)
    assert (found[1]["cql_alpha"].item() > 5.0) == (found[0]["cql_excess"].item() > 0.0)
    assert agent.log_cql_alpha.grad.item() == pytest.approx(
        -found[1]["cql_alpha"].item() * found[1]["cql_excess"].item()
    )


def named_in(batch: Batch) -> torch.Tensor:
    """Five families, each of which likes what is large in a feature that its expert reads."""
    scores = batch.states.assets[:, :, [0, 1, 3, 4, 5]].transpose(1, 2)
    return torch.softmax(torch.nn.functional.pad(scores, (0, 1)), dim=-1)


def test_naming_is_a_divergence() -> None:
    named = torch.softmax(torch.randn(6, 5, 4, generator=generator()), dim=-1)
    named[0, 0] = torch.tensor([0.0, 0.5, 0.5, 0.0])  # a weight of nothing teaches nothing
    assert kl_from_portfolios(named, named).mean().item() == pytest.approx(0.0, abs=1e-6)
    other = torch.softmax(torch.randn(6, 5, 4, generator=generator(1)), dim=-1)
    expected = torch.where(named > 0, named * (named.clamp(min=1e-9) / other).log(), 0.0).sum(-1).mean()
    assert kl_from_portfolios(named, other).mean().item() == pytest.approx(expected.item(), rel=1e-5)


def test_what_families_name_is_not_learned_online(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """The policy after an update is the same, bit for bit, whatever its weight and whatever is named."""
    batch, policies = make_batch(), []
    for weight, named in ((0.0, None), (1.0, named_in(batch)), (1.0, named_in(batch).flip(-1))):
        agent = make_agent(shape, expert_cloning=weight)
        metrics = agent.update_sac(batch._replace(named=named), coverage(), generator(3), 0)
        assert "naming_loss" not in metrics
        policies.append(learned(agent, "policy"))
    assert torch.equal(policies[0], policies[1])
    assert torch.equal(policies[0], policies[2])


def test_cloning_teaches_experts_and_neither_gate_nor_critics(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch = make_batch()
    agent = make_agent(shape, expert_cloning=1.0)
    named = batch._replace(named=named_in(batch))
    _, penalty, metrics = expert_losses(agent.policy(batch.states), named, torch.ones(16), agent.policy.expert_cloning)
    penalty.backward()
    assert agent.policy.score.weight.grad.abs().sum() > 0.0
    assert agent.policy.gate.weight.grad is None
    assert agent.policy.trade.weight.grad is None
    assert metrics["naming_loss"] > 0.0


def test_what_families_name_is_learned_offline(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch = make_batch()._replace(families=torch.full((16,), 5))  # coverage, which teaches no expert by itself
    moved = []
    for named in (None, named_in(batch)):
        config = BCellConfig.model_validate({**SMALL, **PLAIN, "expert_cloning": 1.0, "iql_extraction": "awr"})
        learner = IQL(portfolio_networks(shape, config, generator()), config, CPU)
        before = learner.policy.score.weight.detach().clone()
        learner.update(batch._replace(named=named), 0.0, generator())
        moved.append(not torch.equal(before, learner.policy.score.weight))
    assert moved == [False, True]


def test_dropout_acts_in_policy_and_critic(shape: NetworkShape, make_batch: MakeBatch) -> None:
    agent, batch = make_agent(shape, dropout=0.5), make_batch()
    states, actions = batch.states, batch.actions.unsqueeze(1)
    with torch.no_grad():
        first, second, calm = (agent.policy(states, noise).gate for noise in (generator(1), generator(2), None))
        assert not torch.equal(first, second)
        assert not torch.equal(first, calm)
        encoding = agent.critic.encode(states)
        one, other, still = (
            agent.critic.value(encoding, states, actions, noise=noise).mean
            for noise in (generator(1), generator(2), None)
        )
        assert not torch.equal(one, other)
        assert not torch.equal(one, still)
    plain = make_agent(shape)
    for part in ("policy", "critic"):
        assert torch.equal(learned(agent, part), learned(plain, part))
    for one_agent in (agent, plain):
        one_agent.update_sac(batch, coverage(), generator(3), 0)
    for part in ("policy", "critic"):
        assert not torch.equal(learned(agent, part), learned(plain, part)), part
