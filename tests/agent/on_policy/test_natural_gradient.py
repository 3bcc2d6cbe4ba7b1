"""The trust-region step: its linear algebra, and the bound on the KL that every accepted step keeps."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from finflow.agent.on_policy.on_policy_losses import (
    conjugate_gradient,
    fisher_product,
    trust_region_step,
)
from finflow.agent.on_policy.task_policies import TaskActorCritic

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
