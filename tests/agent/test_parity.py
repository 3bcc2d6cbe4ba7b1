"""Our losses against d3rlpy's, from the same weights and the same batch.

The numbers are d3rlpy's own, computed in float64 (`fixtures/make_d3rlpy_fixtures.py` made them). Networks are written
out here from the stored weights; whatever is a loss, a weight or a target goes through `finflow.agent.losses`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from finflow.agent.learners.iql import IQL
from finflow.agent.learners.offline_learner import Networks
from finflow.agent.losses.critic_losses import bellman_target, mean_loss
from finflow.agent.losses.offline_losses import td3bc_loss
from finflow.agent.losses.quantiles import pessimistic_value
from finflow.agent.networks.logistic_normal import weighted_likelihood_loss
from finflow.config import BCellConfig
from scripts.evidence.box_task import BoxCritic, BoxPolicy, BoxValue
from tests.agent.parity import critics, layers, load, take_over, their_batch

GAMMA, EXPECTILE, TEMPERATURE = 0.97, 0.8, 5.0
TOLERANCE = 1e-5


def test_td3bc_critic_target_and_loss_are_those_of_d3rlpy() -> None:
    # smoothing noise of deviation 0.2 cut at 0.5, the action cut to -1..1, the least value over target critics
    arrays = load("d3rlpy_td3bc")
    smoothed = layers(arrays, "target_policy", arrays["batch.next_observations"]).tanh()
    smoothed = (smoothed + (0.2 * arrays["noise"]).clamp(-0.5, 0.5)).clamp(-1.0, 1.0)
    ahead = critics(arrays, "target_critic", arrays["batch.next_observations"], smoothed)[..., 0]
    next_value = pessimistic_value(ahead, torch.zeros(*ahead.shape, 2), dropped=0, share=0.0)
    np.testing.assert_allclose(next_value, arrays["next_values"][:, 0], atol=TOLERANCE)
    target = bellman_target(arrays["batch.rewards"][:, 0], arrays["batch.terminals"][:, 0], next_value, GAMMA)
    mean = critics(arrays, "critic", arrays["batch.observations"], arrays["batch.actions"])[..., 0]
    assert mean_loss(mean, target).item() == pytest.approx(arrays["q_loss"].item(), abs=TOLERANCE)


def test_td3bc_policy_loss_is_that_of_d3rlpy() -> None:
    # lambda = 2.5 / mean |Q| by the first critic, without gradient; the squared error is meant over dimensions too
    arrays = load("d3rlpy_td3bc")
    action = layers(arrays, "policy", arrays["batch.observations"]).tanh()
    value = critics(arrays, "critic", arrays["batch.observations"], action)[0, :, 0]
    distance = (action - arrays["batch.actions"]).square().mean(dim=1)
    assert distance.mean().item() == pytest.approx(arrays["bc_loss"].item(), abs=TOLERANCE)
    assert td3bc_loss(value, distance).item() == pytest.approx(arrays["policy_loss"].item(), abs=TOLERANCE)


def test_an_update_of_iql_reports_the_losses_of_d3rlpy() -> None:
    # the learner itself, on the networks for Box tasks; d3rlpy computes all losses before any step, we V's first, so
    # steps are next to nothing here
    arrays = load("d3rlpy_iql")
    config = BCellConfig(
        gamma=GAMMA,
        iql_expectile=EXPECTILE,
        iql_temperature=TEMPERATURE,
        iql_extraction="awr",
        n_quantiles=1,
        dropped_quantiles=0,
        critic_lr=1e-12,
        actor_lr=1e-12,
    )
    generator = torch.Generator().manual_seed(0)
    networks = Networks(BoxPolicy(5, 3, 8, generator), BoxCritic(5, 3, 8, 1, generator), BoxValue(5, 8, generator))
    learner = IQL(networks, config, torch.device("cpu"))
    for network in (learner.policy, learner.critic, learner.target_critic, learner.value):
        network.double()
    take_over(arrays, ["policy"], learner.policy.mean)
    take_over(arrays, ["value"], learner.value.own)
    take_over(arrays, ["critic.0", "critic.1"], learner.critic.layers)
    take_over(arrays, ["target_critic.0", "target_critic.1"], learner.target_critic.layers)
    with torch.no_grad():
        learner.policy.log_scale.copy_(-5.0 + 7.0 * arrays["policy.log_deviation_parameter"][0].sigmoid())
    metrics = learner.update(their_batch(arrays), 0.0, generator)
    for name in ("v_loss", "q_loss", "policy_loss"):
        assert metrics[name].item() == pytest.approx(arrays[name].item(), abs=TOLERANCE), name


def test_cloning_is_that_of_d3rlpy_under_a_scale_of_one() -> None:
    # d3rlpy's cloning is the squared error of a deterministic policy, meant over batch and dimensions; ours is a
    # likelihood, which at a deviation of one is half of it per dimension, and a constant
    arrays = load("d3rlpy_bc")
    mean = layers(arrays, "policy", arrays["batch.observations"]).tanh()
    density = torch.distributions.Normal(mean, 1.0).log_prob(arrays["batch.actions"]).sum(dim=1)
    loss = weighted_likelihood_loss(density, torch.ones_like(density), mean.shape[1])
    error = 2.0 * (loss.item() - 0.5 * math.log(2.0 * math.pi))
    assert error == pytest.approx(arrays["policy_loss"].item(), abs=TOLERANCE)
