"""Offline learning from several actions a state: the published update where there is one, exact alternatives else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from finflow.agent.batch import Batch
from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import BehaviourCloning, OfflineLearner, portfolio_networks
from finflow.agent.learners.td3bc import TD3BC
from finflow.agent.losses.offline_losses import advantage_weights, expectile_loss, expectile_of
from finflow.agent.networks.critic import NetworkShape
from finflow.config import BCellConfig
from tests.agent.helpers import CPU, generator, parameters, with_choices

MakeBatch = Callable[..., Batch]
CONFIG = BCellConfig(hidden_dim=32, n_quantiles=8)


def make(method: type[OfflineLearner], shape: NetworkShape, **options: Any) -> OfflineLearner:
    config = CONFIG.model_copy(update=options)
    learner = method(portfolio_networks(shape, config, generator()), config, CPU)
    learner.advantage_scale = 0.5
    return learner


@given(
    values=st.lists(st.floats(-10.0, 10.0), min_size=1, max_size=8),
    expectile=st.sampled_from((0.1, 0.5, 0.7, 0.9)),
)
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


def test_imitation_leaves_holding_and_the_policys_own_decision_out(shape: NetworkShape, make_batch: MakeBatch) -> None:
    """They are compared alone: other portfolios in their places change nothing of the policy's gradient."""
    batch, found = with_choices(make_batch(), 4), []
    for places in ([], [1, 2], [3]):
        learner = make(IQL, shape, iql_extraction="awr")
        encoding, values, _ = learner.target_values(batch)
        actions = batch.outcomes.actions.clone()
        actions[:, places] = 1.0 / actions.shape[-1]
        told = batch._replace(choices=batch.outcomes._replace(actions=actions))
        loss, _ = learner._policy_loss(told, encoding, values, torch.zeros(16, 1), None)
        loss.backward()
        gradients = [one.grad.flatten() for one in learner.policy.parameters() if one.grad is not None]
        found.append(torch.cat(gradients))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
