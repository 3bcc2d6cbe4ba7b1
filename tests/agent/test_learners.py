"""IQL and the B-Cell: what an update does, from one action a state and from several, and that both learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from finflow.agent.batch import Batch, States
from finflow.agent.gradient_steps import linearised
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import (
    IQL,
    TD3BC,
    BehaviourCloning,
    BehaviourValues,
    OfflineLearner,
    portfolio_networks,
)
from finflow.agent.losses.off_policy_losses import advantage_weights, expectile_loss, expectile_of
from finflow.agent.networks.critic import CriticEnsemble, NetworkShape
from finflow.agent.networks.policy import LEAST_PULL, ExpertPolicy
from finflow.config import AnchorConfig, BCellConfig
from tests.agent.conftest import (
    CPU,
    TO_LEARN,
    MakeBatch,
    coverage,
    generator,
    held_of_the_best,
    make_iql,
    parameters,
    with_choices,
)

CONFIG = BCellConfig(hidden_dim=32, n_quantiles=8, cql_samples=3, iql_extraction="awr")


def test_seeding_is_exact(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch, iql = make_batch(), make_iql(shape, CONFIG)
    for _ in range(3):
        iql.update(batch, 0.5, generator())
    iql.advantage_scale = 0.05
    agent = BCell(shape, CONFIG, generator(9), CPU)
    agent.seed_from(iql)
    assert agent.advantage_scale == 0.05
    actions = batch.actions.unsqueeze(1)
    with torch.no_grad():
        assert torch.equal(agent.policy(batch.states).centre, iql.policy(batch.states).centre)
        for part in ("critic", "target_critic"):
            ours, theirs = getattr(agent, part), getattr(iql, part)
            first = ours.value(ours.encode(batch.states), batch.states, actions)
            second = theirs.value(theirs.encode(batch.states), batch.states, actions)
            assert torch.equal(first.mean, second.mean)
            assert torch.equal(first.quantiles, second.quantiles)


def test_cloning_is_iql_without_preference(shape: NetworkShape, make_batch: MakeBatch) -> None:
    batch, indifferent = make_batch(), CONFIG.model_copy(update={"iql_temperature": 0.0})
    one = make_iql(shape, indifferent)
    other = BehaviourCloning(portfolio_networks(shape, CONFIG, generator()), CONFIG, CPU)
    one.update(batch, 0.0, generator())
    other.update(batch, 0.0, generator())
    assert torch.equal(parameters(one.policy), parameters(other.policy))


def test_td3bc_moves_the_policy_at_every_second_update(shape: NetworkShape, make_batch: MakeBatch) -> None:
    learner = TD3BC(portfolio_networks(shape, CONFIG, generator()), CONFIG, CPU)
    before = learner.policy.gate.weight.detach().clone()
    learner.update(make_batch(), 0.0, generator())
    assert torch.equal(learner.policy.gate.weight, before)
    learner.update(make_batch(), 0.0, generator())
    assert not torch.equal(learner.policy.gate.weight, before)


def test_critics_learn_the_same_with_the_actor_and_without_which_leaves_the_policy_alone(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    learned = []
    for actor in (True, False):
        agent = BCell(shape, CONFIG, generator(), CPU)
        before = parameters(agent.policy), parameters(agent.critic)
        agent.update_sac(make_batch(), coverage(16, 5), generator(3), 0, actor=actor)
        assert torch.equal(parameters(agent.policy), before[0]) is not actor
        assert not torch.equal(parameters(agent.critic), before[1])
        learned.append(parameters(agent.critic))
    assert torch.equal(*learned)


@pytest.mark.timeout(120)
def test_both_phases_learn_to_hold_the_asset_that_pays(make_batch: MakeBatch) -> None:
    sizes = {"hidden_dim": 32, "n_quantiles": 4, "cql_samples": 1, "actor_lr": 1e-2, "critic_lr": 1e-2}
    free = {"cql_alpha": 0.01, "alpha_init": 0.01, "alpha_mode": "fixed", "anchor": AnchorConfig(weight=0.0)}
    config = BCellConfig(**sizes, **free, iql_temperature=30.0)
    iql, test = make_iql(TO_LEARN, config), make_batch(256, 4, seed=10_000)

    def value(policy: torch.nn.Module, states: States) -> float:
        with torch.no_grad():
            return held_of_the_best(test, policy(states).distribution.centre()).mean().item()

    def data(seed: int) -> Batch:
        batch = make_batch(64, 4, seed=seed)
        return batch._replace(rewards=held_of_the_best(batch, batch.actions), terminated=torch.ones(64))

    untrained = value(iql.policy, test.states)
    for update in range(300):
        iql.update(data(update), 0.0, generator())
    offline = value(iql.policy, test.states)
    behaviour = held_of_the_best(test, test.actions).mean().item()
    agent = BCell(TO_LEARN, config, generator(1), CPU)
    agent.seed_from(iql)
    for update in range(100):
        agent.update_sac(data(1000 + update), coverage(64, 5, 1), generator(update), update)
    online = value(agent.policy, test.states)
    # all of the best asset pays 1, a random portfolio 0.2; seen: 0.45 after IQL, 0.91 at the end
    assert untrained < 0.25
    assert offline > behaviour + 0.08
    assert online > 0.85


def test_without_a_method_critics_alone_are_fitted(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """As behaviour cloning fits them, bit for bit; the policy keeps its initial weights."""
    learners = [
        method(portfolio_networks(shape, CONFIG, generator()), CONFIG, CPU)
        for method in (BehaviourCloning, BehaviourValues)
    ]
    untouched = parameters(learners[1].policy).clone()
    for learner in learners:
        for step in range(3):
            learner.update(make_batch(), step / 3, generator(step))
    cloning, alone = learners
    parts = ("critic", "target_critic", "value")
    of_each = [parameters(*(getattr(one, part) for part in parts)) for one in learners]
    assert torch.equal(*of_each)
    assert torch.equal(parameters(alone.policy), untouched)
    assert not torch.equal(parameters(cloning.policy), untouched)


def test_of_several_inputs_each_has_the_gradient_of_autograd(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """The critics' least value of what is held and of what is bought: the slope of both, and none for the critics."""
    critic, states = CriticEnsemble(shape, 4, generator()), make_batch().states
    with torch.no_grad():
        encoding = critic.encode(states)

    def value_of(portfolio: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        there = states._replace(portfolio=portfolio)
        return critic.value(encoding, there, action.unsqueeze(1), 0).mean[..., 0].min(dim=0).values

    free = torch.randn(16, 8, generator=generator(1)), torch.randn(16, 5, generator=generator(2))
    weights, slopes = torch.rand(16, generator=generator(3)), []
    for value_by in (value_of, lambda *inputs: linearised(value_of, *inputs)):
        held, bought = (part.clone().requires_grad_(True) for part in free)
        critic.zero_grad()
        value = value_by(0.1 * held.tanh(), torch.softmax(bought, dim=-1))
        (weights * value).sum().backward()
        slopes.append((value.detach(), held.grad, bought.grad))
        reached = [parameter.grad is not None for parameter in critic.parameters()]
        assert any(reached) == (value_by is value_of)
    for direct, linear in zip(*slopes, strict=True):
        torch.testing.assert_close(linear, direct, rtol=1e-4, atol=1e-7)  # float32, sums in another order
    assert min(slope.abs().max() for _, *of_inputs in slopes for slope in of_inputs) > 0.0


def test_a_pull_changes_gradients_and_no_decision(shape: NetworkShape, make_batch: MakeBatch) -> None:
    policy, states = ExpertPolicy(shape, generator()), make_batch().states
    with torch.no_grad():
        policy.trade.bias[0] = -6.0  # a rate of a quarter of a percent
    plain, pulled = policy(states), policy(states, least_pull=LEAST_PULL)
    assert torch.equal(plain.centre, pulled.centre)
    slopes = []
    for decision in (plain, pulled):
        (slope,) = torch.autograd.grad(decision.centre[:, 0].sum(), policy.score.weight)
        slopes.append(slope)
    ratio = (slopes[1].norm() / slopes[0].norm()).item()
    rates = plain.trade_rate
    assert LEAST_PULL / rates.max().item() * 0.3 < ratio < LEAST_PULL / rates.min().item()  # part comes by the rate


def make(method: type[OfflineLearner], shape: NetworkShape, **options: Any) -> OfflineLearner:
    config = BCellConfig(hidden_dim=32, n_quantiles=8, **options)
    learner = method(portfolio_networks(shape, config, generator()), config, CPU)
    learner.advantage_scale = 0.5
    return learner


@given(values=st.lists(st.floats(-10.0, 10.0), min_size=1, max_size=8), expectile=st.sampled_from((0.1, 0.5, 0.7, 0.9)))
@settings(deadline=None)
def test_the_expectile_is_where_its_loss_is_least(values: list[float], expectile: float) -> None:
    """By bisection of the loss's derivative, which rises."""
    row = torch.tensor([values], dtype=torch.float64)
    low, high = min(values), max(values)
    for _ in range(60):  # of an interval of at most 20: to 2e-17
        middle = 0.5 * (low + high)
        slope = sum((expectile if one > middle else 1.0 - expectile) * (middle - one) for one in values)
        low, high = (low, middle) if slope > 0.0 else (middle, high)
    found = expectile_of(row, expectile)
    assert found.shape == (1, 1)
    assert found.item() == pytest.approx(0.5 * (low + high), abs=1e-9)
    assert expectile_loss(row, found, expectile) <= expectile_loss(row, found + 1e-3, expectile)


@pytest.mark.parametrize("method", [IQL, TD3BC, BehaviourCloning])
def test_a_state_with_its_own_action_alone_is_the_published_update(
    method: type[OfflineLearner], shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """IQL's advantage is apart: of one alternative the expectile is its value, so that its weights are one."""
    batch, learned = make_batch(), []
    for told in (batch, batch._replace(choices=batch.outcomes)):
        learner = make(method, shape)
        for step in range(3):
            learner.update(told, step / 3, generator(step))
        parts = (learner.critic, learner.value) if method is IQL else (learner.critic, learner.value, learner.policy)
        learned.append(parameters(*parts))
    assert torch.equal(learned[0], learned[1])


def test_iql_weighs_exact_alternatives(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """V learns the expectile of all of a state's values; each action is cloned by its advantage over it."""
    batch = with_choices(make_batch(), 4)
    learner, before = (make(IQL, shape, iql_extraction="awr") for _ in range(2))
    metrics = learner.update(batch, 0.0, generator())
    choices = batch.outcomes
    with torch.no_grad():
        critic = before.target_critic
        values = critic.value(critic.encode(batch.states), batch.states, choices.actions).mean.min(dim=0).values
        v_loss = expectile_loss(values, before.value(batch.states).unsqueeze(1), 0.7)
        weights = advantage_weights(values - expectile_of(values, 0.7), 3.0 / 0.5)
        weights[:, 1:3] = 0.0  # holding and the policy's own decision are not imitated
        ahead = learner.value(choices.next_states).view(16, 4)
        target = choices.rewards + 0.99 * (1.0 - choices.terminated) * ahead
        own = before.critic.value(before.critic.encode(batch.states), batch.states, choices.actions).mean
        error = own - target
        shared = error.mean(dim=-1, keepdim=True)
    torch.testing.assert_close(metrics["v_loss"], v_loss)
    torch.testing.assert_close(metrics["mean_weight"], weights.mean())
    torch.testing.assert_close(metrics["q_loss"], shared.square().mean(dim=(1, 2)).sum())
    differences = (error - shared).square().mean(dim=(1, 2)).sum() / 0.5**2
    torch.testing.assert_close(metrics["advantage_loss"], differences)


@pytest.mark.parametrize("method", [IQL, TD3BC])
def test_it_moves_toward_the_better_of_alternatives(
    method: type[OfflineLearner], shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """By the critics' gradient, where rewards say that the first asset is better, or that it is worse."""
    batch, held = with_choices(make_batch(64), 8), []
    first = batch.outcomes.actions[..., 0]
    for rewards in (first, -first):
        choices = batch.outcomes._replace(rewards=rewards, terminated=torch.ones_like(rewards))
        learner = make(method, shape, iql_extraction="gradient", iql_cloning=0.1)
        learner.advantage_scale = float((first - first.mean(dim=1, keepdim=True)).square().mean().sqrt())
        for step in range(150):
            learner.update(batch._replace(choices=choices), step / 150, generator(step))
        held.append(float(learner.policy.deterministic(batch.states)[:, 0].detach().mean()))
    assert held[0] > held[1] + 0.02
