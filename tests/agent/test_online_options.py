"""The options of an online update, anchors and averages among them; and learning from several actions a state."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.learners.acting import PolicyAverage
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import IQL, portfolio_networks
from finflow.agent.learners.soft_actor_critic import UpdatePoint, anchor_weight, held_back
from finflow.agent.losses.off_policy_losses import conservative_loss, indifferent_penalty
from finflow.agent.networks.critic import CRITICS, NetworkShape
from finflow.agent.networks.distributions import (
    LogisticNormal,
    kl_from_equal_weight,
    kl_from_portfolios,
    kl_per_dimension,
)
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import AnchorConfig, AveragingConfig, BCellConfig
from finflow.env.coverage import draw_coverage
from tests.agent.conftest import (
    CPU,
    SMALL,
    TO_LEARN,
    MakeBatch,
    coverage,
    generator,
    held_of_the_best,
    make_agent as agent_of,
    parameters,
    with_choices,
)

PLAIN = {"anchor": AnchorConfig(weight=0.0)}


def make_agent(shape: NetworkShape, **changes: object) -> BCell:
    """An agent without regularisers of its policy."""
    return agent_of(shape, **{**PLAIN, **changes})


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
    for one_agent in (agent, plain):
        one_agent.update_sac(batch, coverage(), generator(3), 0)
    for part in ("policy", "critic"):
        assert not torch.equal(learned(agent, part), learned(plain, part)), part


def taught(shape: NetworkShape, batch: Batch, updates: int, **options: object) -> BCell:
    """An agent after some updates on one batch with four actions a state."""
    agent, noise = make_agent(shape, **options), generator(3)
    for update in range(updates):
        agent.update_sac(batch, coverage(), noise, update, total=updates)
    return agent


@pytest.mark.parametrize("several", [True, False])
def test_the_penalty_lowers_the_values_of_portfolios_that_no_one_chose(
    several: bool, shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """In the order of its weight, beside the value of what was chosen, with several actions a state and with one.

    The penalty raises that value by as much as it lowers the others: the level of all is the rewards' affair. No bound
    keeps proposals of the policy up here, and nothing is known ahead of an action.
    """
    last = make_batch()._replace(terminated=torch.ones(16))
    batch = with_choices(last) if several else last
    if several:
        batch = batch._replace(choices=batch.outcomes._replace(terminated=torch.ones(16, 4)))
    actions, excess = torch.cat([batch.actions.unsqueeze(1), coverage(seed=11).portfolios], dim=1), []
    for weight in (0.0, 5.0, 10.0):
        agent = taught(shape, batch, 40, cql_alpha=weight, critic_lr=3e-3, calibration="none")
        with torch.no_grad():
            values = agent.critic.value(agent.critic.encode(batch.states), batch.states, actions, 0).mean
        excess.append((values[..., 1:].mean() - values[..., 0].mean()).item())
    # seen: -.025, -.058, -.078 with several actions, and -.007, -.175, -.187 with one, where its weight is fifty times
    assert excess[0] > excess[1] + 0.005 > excess[2] + 0.01, excess


def test_an_agent_learns_to_hold_what_pays_from_the_outcomes_of_several_actions(make_batch: MakeBatch) -> None:
    """One step; whatever is held of the asset with the highest first feature pays one. A random portfolio earns .2."""
    options = {"actor_lr": 1e-2, "critic_lr": 1e-2, "alpha_init": 0.01, "alpha_mode": "fixed", "cql_alpha": 0.5}
    agent, noise = make_agent(TO_LEARN, **options), generator(3)
    agent.advantage_scale = 0.1  # the deviation of what random portfolios earn of such a state

    for update in range(90):
        batch = with_choices(make_batch(32, seed=update), seed=update)
        choices = batch.outcomes
        choices = choices._replace(rewards=held_of_the_best(batch, choices.actions), terminated=torch.ones(32, 4))
        agent.update_sac(batch._replace(choices=choices), coverage(32), noise, update, total=90)
    test = make_batch(256, seed=10_000)
    with torch.no_grad():
        held = agent.policy(test.states).distribution.centre()
        before = make_agent(TO_LEARN, **options).policy(test.states).distribution.centre()
    found = [held_of_the_best(test, portfolios).mean().item() for portfolios in (before, held)]
    assert found[0] < 0.25
    assert found[1] > 0.75  # seen: .88


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
    agent, states = make_agent(shape, averaging=AveragingConfig(kind="swa", start=0.0)), make_batch().states
    agent.seed_from(IQL(portfolio_networks(shape, agent.config, generator(3)), agent.config, CPU))
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
    agent = agent_of(shape, averaging=AveragingConfig(kind="ema", start=0.0, decay=0.5))
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
    agent = agent_of(shape, **changes)
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
    agent = agent_of(shape, anchor=AnchorConfig(weight=1.0))
    decision = agent.policy(batch.states)
    aim = decision.aim.detach().requires_grad_(True)
    loss, _ = held_back(agent, decision._replace(aim=aim), batch, UpdatePoint())
    (found,) = torch.autograd.grad(loss, aim)
    plain = kl_from_equal_weight(aim, batch.states.listed).mean()
    (whole,) = torch.autograd.grad(plain, aim)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, decision.trade_rate.detach() * whole)
