"""Our on-policy losses and steps against those of Stable-Baselines3's PPO and sb3-contrib's TRPO.

From the same weights, rollout and noise; the numbers are theirs (`../fixtures/make_sb3_fixtures.py`).
"""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from finflow.agent.on_policy.on_policy_losses import (
    approximate_kl,
    clip_fraction,
    explained_variance,
    fisher_product,
    generalised_advantages,
    natural_gradient,
    standardised,
    surrogate_loss,
    trust_region_step,
    value_loss,
)
from finflow.agent.on_policy.on_policy_settings import OnPolicySettings, Rollout, TaskActorCritic
from finflow.agent.on_policy.on_policy_update import OnPolicyLearner
from tests.agent.test_parity import Arrays, load

KINDS = ["box", "discrete"]
GAMMA, LAMBDA, CLIP, ENTROPY, RATE = 0.97, 0.9, 0.2, 0.01, 3e-3
TOLERANCE, STEP_TOLERANCE = 1e-5, 1e-4


def agent_with(arrays: Arrays, kind: Any, when: str) -> TaskActorCritic:
    """An actor-critic with their weights, before or after the update."""
    found = {key.partition(".")[2]: value for key, value in arrays.items() if key.startswith(f"{when}.")}
    agent = TaskActorCritic(5, 3, kind, torch.Generator(), hidden=8)
    agent.load_state_dict(found)
    return agent


def rollout_with(arrays: Arrays, kind: str) -> Rollout:
    """Their rollout, as ours."""
    actions = arrays["actions"].flatten(0, 1)
    return Rollout(
        (arrays["observations"].flatten(0, 1),),
        actions.flatten().long() if kind == "discrete" else actions,
        *(arrays[name].flatten() for name in ("log_prob", "values", "advantages", "returns")),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_advantages_and_returns_are_those_of_sb3(kind: str) -> None:
    arrays = load(f"sb3_ppo_{kind}", None)
    ended = torch.cat([arrays["starts"][1:], arrays["last_ends"][None]])
    following = torch.cat([arrays["values"][1:], arrays["last_values"][None]])
    found = generalised_advantages(arrays["rewards"], arrays["values"], following, ended, ended, GAMMA, LAMBDA)
    torch.testing.assert_close(found, arrays["advantages"], atol=TOLERANCE, rtol=0.0)
    torch.testing.assert_close(found + arrays["values"], arrays["returns"], atol=TOLERANCE, rtol=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_sb3(kind: str) -> None:
    arrays = load(f"sb3_ppo_{kind}", None)
    agent, rollout = agent_with(arrays, kind, "before"), rollout_with(arrays, kind)
    with torch.no_grad():
        distribution, values = agent.distribution(rollout.observations), agent.value(rollout.observations)
        log_ratio = distribution.log_prob(rollout.actions) - rollout.log_prob
        ours = {
            "policy_gradient_loss": surrogate_loss(log_ratio.exp(), standardised(rollout.advantages), CLIP),
            "entropy_loss": -distribution.entropy().mean(),
            "value_loss": 2.0 * value_loss(values, rollout.returns),  # theirs has no half
            "approx_kl": approximate_kl(log_ratio),
            "clip_fraction": clip_fraction(log_ratio.exp(), CLIP),
            "explained_variance": explained_variance(rollout.values, rollout.returns),
        }
    for name, value in ours.items():
        assert float(value) == pytest.approx(float(arrays[name]), abs=TOLERANCE), name


@pytest.mark.parametrize("kind", KINDS)
def test_weights_after_an_update_are_those_of_sb3(kind: str) -> None:
    arrays = load(f"sb3_ppo_{kind}", None)
    agent, rollout = agent_with(arrays, kind, "before"), rollout_with(arrays, kind)
    settings = OnPolicySettings(
        epochs=1,
        minibatch=len(rollout.log_prob),
        learning_rate=RATE,
        entropy_coefficient=ENTROPY,
        value_coefficient=1.0,  # theirs is 0.5 of a loss without a half
    )
    OnPolicyLearner(agent, settings, torch.Generator()).update(rollout)
    theirs = agent_with(arrays, kind, "after")
    for (name, found), expected in zip(agent.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0.0, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_the_natural_gradient_and_the_step_are_those_of_sb3(kind: str) -> None:
    arrays = load(f"sb3_trpo_{kind}", None)
    agent, rollout = agent_with(arrays, kind, "before"), rollout_with(arrays, kind)
    parameters = list(agent.actor_parameters())
    with torch.no_grad():
        old = agent.distribution(rollout.observations)
    dimensions = 3 if kind == "box" else 1  # their KL is the mean over the dimensions of a Box, ours the joint one

    def divergence() -> Tensor:
        distance = old.kl(cast(Any, agent.distribution(rollout.observations)))
        return distance.mean() / dimensions

    def objective() -> Tensor:
        ratio = (agent.distribution(rollout.observations).log_prob(rollout.actions) - rollout.log_prob).exp()
        return (ratio * standardised(rollout.advantages)).mean()

    direction = natural_gradient(parameters, objective(), fisher_product(parameters, divergence))
    torch.testing.assert_close(by_layer(direction, agent), arrays["direction"], atol=STEP_TOLERANCE, rtol=1e-4)
    _, improvement = trust_region_step(parameters, objective, divergence, 0.01)
    assert improvement > 0.0
    with torch.no_grad():  # theirs is KL(new || old), which has the same second derivative at the old policy
        other = cast(Any, agent.distribution(rollout.observations)).kl(old).mean() / dimensions
    assert float(other) == pytest.approx(float(arrays["kl"]), abs=TOLERANCE)
    theirs = agent_with(arrays, kind, "after")
    found, expected = (parameters_to_vector(one.actor_parameters()).detach() for one in (agent, theirs))
    torch.testing.assert_close(found, expected, atol=STEP_TOLERANCE, rtol=0.0)


def by_layer(vector: Tensor, agent: TaskActorCritic) -> Tensor:
    """A vector in the order of their parameters: the deviation first."""
    if agent.log_scale is None:
        return vector
    size = agent.log_scale.numel()
    return torch.cat([vector[-size:], vector[:-size]])
