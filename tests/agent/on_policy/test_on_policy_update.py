"""The update on tasks whose answer is known: bandits, and gradients written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from finflow.agent.on_policy.on_policy_settings import OnPolicySettings, Rollout
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner
from finflow.agent.on_policy.task_policies import TaskActorCritic
from finflow.errors import ConfigError

ALGORITHMS = ["ppo", "ppo-kl", "trpo", "a2c", "reinforce"]


def learner(algorithm: str, kind: Any = "box", seed: int = 0, **changes: Any) -> OnPolicyLearner:
    generator = torch.Generator().manual_seed(seed)
    agent = TaskActorCritic(2, 2, kind, generator, hidden=16)
    return OnPolicyLearner(agent, OnPolicySettings.of(algorithm, **changes), generator)


def play(one: OnPolicyLearner, size: int = 256) -> Rollout:
    """Decisions of a bandit: the reward is highest where the action is the observation, or its larger part."""
    observations = (torch.randn(size, 2, generator=one.generator),)
    with torch.no_grad():
        distribution = one.agent.distribution(observations)
        actions = distribution.sample(one.generator)
        log_prob, values = distribution.log_prob(actions), one.agent.value(observations)
    if actions.ndim == 1:
        rewards = (actions == observations[0].argmax(dim=1)).float()
    else:
        rewards = -(actions - observations[0]).square().sum(dim=1)
    if one.settings.value_coefficient == 0.0:
        values = torch.zeros_like(values)
    return Rollout(observations, actions, log_prob, values, rewards - values, rewards)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_every_configuration_solves_a_bandit(algorithm: str, kind: str) -> None:
    one = learner(algorithm, kind, learning_rate=1e-2, entropy_coefficient=0.0)
    first = play(one).returns.mean()
    for _ in range(150 if algorithm in ("a2c", "reinforce") else 12):
        figures = one.update(play(one))
    last = play(one, 2048).returns.mean()
    assert float(last) > (0.9 if kind == "discrete" else 0.5 * float(first)), figures


def test_a2c_takes_the_policy_gradient() -> None:
    one = learner("a2c", entropy_coefficient=0.0, value_coefficient=0.0)
    rollout = play(one)
    other = learner("a2c")
    loss = -(other.agent.distribution(rollout.observations).log_prob(rollout.actions) * rollout.advantages).mean()
    expected = torch.autograd.grad(loss, list(other.agent.actor_parameters()))
    norm = torch.stack([gradient.norm() for gradient in expected]).norm()
    figures = one.update(rollout)
    assert figures["gradient_norm"] == pytest.approx(float(norm), rel=1e-4)
    for parameter, gradient in zip(one.agent.actor_parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient * min(0.5 / float(norm), 1.0), rtol=1e-3, atol=1e-6)


def test_the_penalty_follows_the_kl() -> None:
    slow, fast = learner("ppo-kl", learning_rate=1e-6), learner("ppo-kl", learning_rate=1e-2)
    assert slow.update(play(slow))["beta"] == 0.005
    assert fast.update(play(fast))["beta"] == 0.02


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_advantages_that_are_no_numbers_change_no_policy(algorithm: str) -> None:
    one = learner(algorithm)
    rollout = play(one)
    before = parameters_to_vector(one.agent.actor_parameters()).detach().clone()
    one.update(rollout._replace(advantages=rollout.advantages * math.nan))
    assert torch.equal(parameters_to_vector(one.agent.actor_parameters()).detach(), before)


def test_a_rollout_shorter_than_a_minibatch_is_one_line_and_changes_nothing() -> None:
    one = learner("ppo")
    before = parameters_to_vector(one.agent.actor_parameters()).detach().clone()
    with pytest.raises(ConfigError, match="a rollout of 32 decisions is shorter than a minibatch of 64"):
        one.update(play(one, 32))
    assert torch.equal(parameters_to_vector(one.agent.actor_parameters()).detach(), before)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("sarsa", {}),
        ("ppo", {"clip": 0.0}),
        ("ppo", {"gamma": 1.1}),
        ("ppo", {"minibatch": 0}),
        ("ppo", {"cilp": 0.2}),
    ],
)
def test_settings_that_cannot_be_are_one_line(algorithm: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as found:
        OnPolicySettings.of(algorithm, **changes)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameters_in_one_vector_learn_the_same(algorithm: str) -> None:
    learned = []
    for flat in (False, True):
        made = learner(algorithm, seed=3)
        one = OnPolicyLearner(made.agent, made.settings, made.generator, flat=flat)
        for _ in range(3):
            one.update(play(one))
        learned.append(parameters_to_vector(one.agent.parameters()).detach())
    torch.testing.assert_close(learned[0], learned[1], rtol=1e-3, atol=1e-4)
