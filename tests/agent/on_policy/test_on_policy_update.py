"""On-policy learning: updates with known answers, distributions, advantages, losses, penalties and the step of TRPO."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, distributions
from torch.nn.utils import parameters_to_vector

from finflow.agent.networks.distributions import Categorical, DiagonalNormal
from finflow.agent.on_policy.on_policy_losses import (
    DoublingKL,
    ProportionalKL,
    generalised_advantages,
    standardised,
    surrogate_loss,
    trust_region_step,
)
from finflow.agent.on_policy.on_policy_settings import ActorCritic, OnPolicySettings, Rollout, TaskActorCritic
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner
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
        actions = distribution.draw_action(one.generator)
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
    [("sarsa", {}), ("ppo", {"clip": 0.0}), ("ppo", {"gamma": 1.1}), ("ppo", {"minibatch": 0}), ("ppo", {"cilp": 0.2})],
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


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_categorical_agrees_with_torch() -> None:
    first, second = torch.randn(2, 6, 4, generator=generator())
    ours, other = (Categorical(one.log_softmax(-1)) for one in (first, second))
    theirs = distributions.Categorical(logits=first)
    actions = ours.draw_action(generator())
    assert actions.shape == (6,)
    assert actions.dtype == torch.int64
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    expected = distributions.kl_divergence(theirs, distributions.Categorical(logits=second))
    torch.testing.assert_close(ours.kl(other), expected)
    torch.testing.assert_close(ours.mode(), first.argmax(dim=1))


def test_diagonal_normal_agrees_with_torch() -> None:
    first, second = torch.randn(2, 6, 3, generator=generator())
    scale, other_scale = torch.randn(2, 3, generator=generator(1))
    ours, other = DiagonalNormal(first, scale), DiagonalNormal(second, other_scale)
    theirs = distributions.Independent(distributions.Normal(first, scale.exp()), 1)
    beside = distributions.Independent(distributions.Normal(second, other_scale.exp()), 1)
    actions = ours.draw_action(generator())
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl(other), distributions.kl_divergence(theirs, beside))
    torch.testing.assert_close(ours.rows(torch.tensor([4, 1])).mode(), first[[4, 1]])


@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_a_seed_decides_the_weights_and_every_parameter_is_learned(kind: Literal["discrete", "box"]) -> None:
    agents = [TaskActorCritic(5, 3, kind, generator(seed)) for seed in (7, 7, 8)]
    vectors = [torch.nn.utils.parameters_to_vector(agent.parameters()) for agent in agents]
    assert torch.equal(vectors[0], vectors[1])
    assert not torch.equal(vectors[0], vectors[2])
    agent: ActorCritic = agents[0]
    learned = {*agent.actor_parameters(), *agent.critic_parameters()}
    assert learned == set(agents[0].parameters())
    observations = (torch.randn(4, 5, generator=generator()),)
    assert agent.value(observations).shape == (4,)
    assert agent.distribution(observations).entropy().shape == (4,)


GAMMA = 0.9


def episode(seed: int, steps: int = 7, environments: int = 3) -> dict[str, Tensor]:
    """Random rewards, values and ends; some episodes terminate, some are truncated."""
    generator = torch.Generator().manual_seed(seed)
    shape = (steps, environments)
    terminated = (torch.rand(shape, generator=generator) < 0.2).double()
    truncated = (torch.rand(shape, generator=generator) < 0.2).double()
    values, following, rewards = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    ended = torch.maximum(terminated, truncated)
    return {"rewards": rewards, "values": values, "next_values": following, "terminated": terminated, "ended": ended}


@given(st.integers(0, 1000))
def test_lambda_one_is_the_monte_carlo_return_less_the_value(seed: int) -> None:
    parts = episode(seed)
    steps = len(parts["rewards"])
    # between steps of an episode the next value is that of the next observation
    for step in range(steps - 1):
        going_on = parts["ended"][step] == 0
        parts["next_values"][step][going_on] = parts["values"][step + 1][going_on]
    found = generalised_advantages(**parts, gamma=GAMMA, lam=1.0)
    for environment in range(parts["rewards"].shape[1]):
        for start in range(steps):
            total, weight = 0.0, 1.0
            for step in range(start, steps):
                total += weight * float(parts["rewards"][step, environment])
                weight *= GAMMA
                if parts["ended"][step, environment] or step == steps - 1:
                    if not parts["terminated"][step, environment]:
                        total += weight * float(parts["next_values"][step, environment])
                    break
            assert float(found[start, environment]) == pytest.approx(
                total - float(parts["values"][start, environment]), abs=1e-12
            )


def test_normalised_advantages_have_mean_zero_and_deviation_one() -> None:
    found = standardised(torch.tensor([3.0, 5.0, 10.0]))
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(found.std()) == pytest.approx(1.0, abs=1e-6)
    assert standardised(torch.tensor([3.0])).tolist() == [3.0]
    assert standardised(torch.ones(4)).tolist() == [0.0] * 4


def test_the_surrogate_is_as_by_hand_and_a_penalty_holds_the_policy_near() -> None:
    ratio, advantages = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0])
    assert float(surrogate_loss(ratio, advantages)) == pytest.approx(-0.5)
    assert float(surrogate_loss(ratio, -advantages, clip=0.2)) == pytest.approx(0.5 * (3.0 - 1.2))
    free, held = (learner("ppo-kl", kl_beta=beta, learning_rate=1e-2) for beta in (0.0, 100.0))
    assert held.update(play(held))["kl"] < 0.1 * free.update(play(free))["kl"]


@given(st.lists(st.floats(1e-6, 1.0), max_size=20))
def test_doubling_rule_counts_powers_of_two(divergences: list[float]) -> None:
    controller = DoublingKL(0.01, target=0.01)
    for one in divergences:
        controller.update(one)
    ups = sum(one > 0.015 for one in divergences)
    downs = sum(one < 0.01 / 1.5 for one in divergences)
    assert controller.beta == pytest.approx(0.01 * 2.0 ** (ups - downs))


@given(st.floats(0.0, 100.0), st.integers(1, 9999))
def test_proportional_controller_is_that_of_ziegler(divergence: float, decisions: int) -> None:
    controller = ProportionalKL(0.2, target=6.0, horizon=10_000)
    error = max(-0.2, min(0.2, divergence / 6.0 - 1.0))
    assert controller.update(divergence, decisions) == pytest.approx(0.2 * (1.0 + error * decisions / 10_000))


def test_betas_survive_a_divergence_that_is_no_number() -> None:
    assert DoublingKL(0.1, target=0.01).update(math.nan) == 0.1
    assert ProportionalKL(0.1, target=6.0).update(math.nan, 64) == 0.1


Kind = Literal["discrete", "box"]


def problem(kind: Kind, seed: int, scale: float = 1.0) -> tuple[TaskActorCritic, tuple[Tensor, ...], Tensor, Tensor]:
    """An agent, observations, actions and advantages."""
    generator = torch.Generator().manual_seed(seed)
    agent = TaskActorCritic(4, 3, kind, generator, hidden=8)
    observations = (scale * torch.randn(40, 4, generator=generator),)
    with torch.no_grad():
        actions = agent.distribution(observations).draw_action(generator)
    return agent, observations, actions, torch.randn(40, generator=generator)


def move(
    agent: TaskActorCritic, observations: tuple[Tensor, ...], actions: Tensor, advantages: Tensor, delta: float = 0.01
) -> tuple[bool, bool, float, float]:
    """Take one step: whether it was accepted and the parameters moved, the exact KL and what was gained."""
    with torch.no_grad():
        old: Any = agent.distribution(observations)
        log_prob = old.log_prob(actions)

    def objective() -> Tensor:
        return ((agent.distribution(observations).log_prob(actions) - log_prob).exp() * advantages).mean()

    def divergence() -> Tensor:
        distance: Tensor = old.kl(agent.distribution(observations)).mean()
        return distance

    before, value = parameters_to_vector(agent.actor_parameters()).detach().clone(), float(objective().detach())
    _, step = trust_region_step(list(agent.actor_parameters()), objective, divergence, delta)
    after = parameters_to_vector(agent.actor_parameters()).detach()
    moved = not torch.equal(after, before)
    return step > 0.0, moved, float(divergence().detach()), float(objective().detach()) - value


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.sampled_from(["discrete", "box"]), st.floats(0.1, 30.0), st.floats(1e-4, 0.3))
def test_the_kl_bound_holds_after_every_accepted_step(seed: int, kind: Kind, scale: float, delta: float) -> None:
    agent, observations, actions, advantages = problem(kind, seed, scale)
    for _ in range(3):
        accepted, moved, divergence, gained = move(agent, observations, actions, advantages, delta)
        assert moved is accepted
        if accepted:
            assert divergence <= delta
            assert gained > 0.0


@pytest.mark.parametrize("poison", [0.0, float("nan"), float("inf")])
def test_a_refused_step_leaves_the_parameters_bit_for_bit(poison: float) -> None:
    agent, observations, actions, advantages = problem("box", 3)
    assert move(agent, observations, actions, advantages * poison)[:2] == (False, False)
