"""Distributions over actions against torch's own, and initial weights by a generator."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import distributions

from finflow.agent.on_policy.on_policy_settings import ActorCritic
from finflow.agent.on_policy.task_policies import Categorical, DiagonalNormal, TaskActorCritic


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_categorical_agrees_with_torch() -> None:
    first, second = torch.randn(2, 6, 4, generator=generator())
    ours, other = (Categorical(one.log_softmax(-1)) for one in (first, second))
    theirs = distributions.Categorical(logits=first)
    actions = ours.sample(generator())
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
    actions = ours.sample(generator())
    torch.testing.assert_close(ours.log_prob(actions), theirs.log_prob(actions))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    torch.testing.assert_close(ours.kl(other), distributions.kl_divergence(theirs, beside))
    torch.testing.assert_close(ours.rows(torch.tensor([4, 1])).mode(), first[[4, 1]])


def test_samples_follow_the_distribution() -> None:
    odds = torch.tensor([0.7, 0.2, 0.1])
    drawn = Categorical(odds.log().log_softmax(-1).expand(20_000, 3)).sample(generator())
    torch.testing.assert_close(torch.bincount(drawn) / 20_000, odds, atol=0.02, rtol=0.0)
    normal = DiagonalNormal(torch.full((20_000, 1), 3.0), torch.tensor([-1.0])).sample(generator())
    assert float(normal.mean()) == pytest.approx(3.0, abs=0.02)
    assert float(normal.std()) == pytest.approx(torch.tensor(-1.0).exp().item(), abs=0.02)


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
