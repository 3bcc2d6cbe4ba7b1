"""Mathematics of on-policy learning against definitions: advantages, losses, coefficients of a penalty, TRPO's step."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from finflow.agent.on_policy.on_policy_losses import (
    DoublingKL,
    ProportionalKL,
    clipped_policy_loss,
    conjugate_gradient,
    fisher_product,
    generalised_advantages,
    normalised,
    penalised_policy_loss,
    surrogate_loss,
    trust_region_step,
)
from finflow.agent.on_policy.task_policies import TaskActorCritic
from finflow.errors import ConfigError

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


def test_truncation_is_bootstrapped_and_termination_is_not() -> None:
    one = torch.ones(1, 2)
    ends = {"terminated": torch.tensor([[1.0, 0.0]]), "ended": one}
    found = generalised_advantages(one, 0 * one, 10 * one, **ends, gamma=GAMMA, lam=0.95)
    torch.testing.assert_close(found, torch.tensor([[1.0, 10.0]]))


def test_shapes_that_do_not_fit_are_one_line() -> None:
    parts = episode(0)
    parts["values"] = parts["values"][:-1]
    with pytest.raises(ConfigError, match="one shape"):
        generalised_advantages(**parts, gamma=GAMMA, lam=0.95)


def test_normalised_advantages_have_mean_zero_and_deviation_one() -> None:
    found = normalised(torch.tensor([3.0, 5.0, 10.0]))
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(found.std()) == pytest.approx(1.0, abs=1e-6)
    assert normalised(torch.tensor([3.0])).tolist() == [3.0]
    assert normalised(torch.ones(4)).tolist() == [0.0] * 4


@pytest.mark.parametrize("advantage", [0.5, 1.0, 2.0])
def test_gains_end_at_the_limit_and_losses_do_not(advantage: float) -> None:
    def objective(ratio: float, of: float) -> float:
        return -float(clipped_policy_loss(torch.tensor([ratio]), torch.tensor([of]), 0.2))

    assert objective(1.5, advantage) == pytest.approx(1.2 * advantage)
    assert objective(0.5, advantage) == pytest.approx(0.5 * advantage)
    assert objective(0.5, -advantage) == pytest.approx(-0.8 * advantage)
    assert objective(1.5, -advantage) == pytest.approx(-1.5 * advantage)


def test_penalised_loss_charges_beta_times_the_divergence() -> None:
    ratio, advantages, divergence = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -1.0]), torch.tensor([0.1, 0.3])
    assert float(penalised_policy_loss(ratio, advantages, divergence, 0.5)) == pytest.approx(-0.5 + 0.1)
    assert float(surrogate_loss(ratio, advantages)) == pytest.approx(-0.5)


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
        actions = agent.distribution(observations).sample(generator)
    return agent, observations, actions, torch.randn(40, generator=generator)


@given(st.integers(0, 1000))
def test_conjugate_gradient_solves_positive_definite_systems(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    matrix = root @ root.T + torch.eye(6, dtype=torch.float64)
    target = torch.randn(6, generator=generator, dtype=torch.float64)
    found = conjugate_gradient(lambda vector: matrix @ vector, target, 30)
    torch.testing.assert_close(matrix @ found, target, atol=1e-4, rtol=0.0)


def test_fisher_product_is_the_covariance_of_the_score() -> None:
    agent, observations, _, _ = problem("discrete", 0)
    agent.double()
    observations = (observations[0][:5].double(),)
    parameters = list(agent.actor_parameters())
    distribution = agent.distribution(observations)
    fisher = torch.zeros(sum(one.numel() for one in parameters), sum(one.numel() for one in parameters)).double()
    for row in range(5):
        for action in range(3):
            odds = distribution.log_prob(torch.full((5,), action))[row]
            score = torch.cat([g.reshape(-1) for g in torch.autograd.grad(odds, parameters, retain_graph=True)])
            fisher += odds.exp().item() * torch.outer(score, score) / 5
    with torch.no_grad():
        old: Any = agent.distribution(observations)
    product = fisher_product(parameters, lambda: old.kl(agent.distribution(observations)).mean(), damping=0.5)
    vector = torch.randn(len(fisher), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(product(vector), fisher @ vector + 0.5 * vector)


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
    step = trust_region_step(list(agent.actor_parameters()), objective, divergence, delta)
    after = parameters_to_vector(agent.actor_parameters()).detach()
    moved = not torch.equal(after, before)
    return step.accepted, moved, float(divergence().detach()), float(objective().detach()) - value


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
