"""Our losses against those of d3rlpy, of Stable-Baselines3's SAC and of sb3-contrib's TQC.

From the same weights, batch and noise. The numbers are theirs (`fixtures/make_d3rlpy_fixtures.py`, in float64, and
`fixtures/make_sb3_fixtures.py`, in float32). Networks are written out here from the stored weights; whatever is a
loss, a weight, a density or a target is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from finflow.agent.batch import Batch
from finflow.agent.learners import bcell, soft_actor_critic
from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.offline_learner import IQL, Networks
from finflow.agent.learners.soft_actor_critic import temperature_loss
from finflow.agent.losses import quantiles
from finflow.agent.losses.off_policy_losses import CoverageProposals, bellman_target, mean_loss, td3bc_loss
from finflow.agent.losses.quantiles import pessimistic_value, pinball_loss
from finflow.config import BCellConfig
from tests.agent.box_task import (
    SAC_LOG_SCALES,
    BoxCritic,
    BoxLayers,
    BoxPolicy,
    BoxValue,
    SquashedNormal,
    box_agent,
    box_batch,
)

FIXTURES = Path(__file__).parent / "fixtures"
Arrays = dict[str, Tensor]


def load(name: str, dtype: torch.dtype | None = torch.float64) -> Arrays:
    """The arrays of one fixture, in a type or, without one, as they were written."""
    with np.load(FIXTURES / f"{name}.npz") as file:
        return {key: torch.from_numpy(file[key]).to(dtype) for key in file.files if "version" not in key}


def layers(arrays: Arrays, name: str, rows: Tensor) -> Tensor:
    """Linear layers with a ReLU after each but the last: encoders and heads of both libraries."""
    count = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in arrays)
    for index in range(count):
        rows = rows @ arrays[f"{name}.{index}.weight"].T + arrays[f"{name}.{index}.bias"]
        rows = rows.relu() if index < count - 1 else rows
    return rows


def critics(arrays: Arrays, name: str, observations: Tensor, actions: Tensor) -> Tensor:
    """Outputs of both critics, (2, B, outputs)."""
    rows = torch.cat([observations, actions], dim=1)
    return torch.stack([layers(arrays, f"{name}.{critic}", rows) for critic in range(2)])


def take_over(arrays: Arrays, names: list[str], network: BoxLayers) -> None:
    """Put their layers into our ensemble's, (E, inputs, outputs), a single output first."""
    with torch.no_grad():
        for index, layer in enumerate((network.first, network.second, network.last)):
            for member, name in enumerate(names):
                weight, bias = arrays[f"{name}.{index}.weight"].T, arrays[f"{name}.{index}.bias"]
                layer.weight[member, :, : weight.shape[1]] = weight
                layer.bias[member, 0, : weight.shape[1]] = bias


def their_batch(arrays: Arrays, ends: str = "terminals") -> Batch:
    """Their transitions, as ours; they keep scalars of a transition as (B, 1), ours are (B,)."""
    return box_batch(
        arrays["batch.observations"],
        arrays["batch.actions"],
        arrays["batch.rewards"][:, 0],
        arrays[f"batch.{ends}"][:, 0],
        arrays["batch.next_observations"],
    )


GAMMA, TEMPERATURE, TOLERANCE = 0.97, 0.3, 1e-5
SIZE, OBSERVATION, ACTION, HIDDEN = 32, 5, 3, 8
DROPPED = 2  # of each of TQC's critics
WEIGHT, THRESHOLD = 5.0, 0.7  # of d3rlpy's conservative penalty
EXPECTILE, BETA = 0.8, 5.0  # of d3rlpy's IQL


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
        iql_temperature=BETA,
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


def drawn(arrays: Arrays, observations: str, noise: int) -> tuple[Tensor, Tensor]:
    """Action (B, K) and log density (B,) under SB3's noise, the last layer's means and then log deviations."""
    location, log_scale = layers(arrays, "actor", arrays[observations]).chunk(2, dim=1)
    law = SquashedNormal(location, log_scale.clamp(*SAC_LOG_SCALES))
    actions, log_density = law.sample(arrays["noise"][noise].unsqueeze(1))
    return actions[:, 0], log_density[:, 0]


def test_draws_their_densities_and_the_temperature_loss_are_those_of_sb3() -> None:
    # SB3 takes log(1 - a^2 + 1e-6), we the logarithm itself: up to 1e-5 where a is 0.95. Both take the gradient in
    # log alpha; SB3's target entropy is minus the number of dimensions, which are summed
    arrays = load("sb3_sac")
    for prefix, observations, place in (("", "batch.observations", 0), ("next_", "batch.next_observations", 1)):
        actions, log_density = drawn(arrays, observations, place)
        np.testing.assert_allclose(actions, arrays[f"{prefix}actions"], atol=TOLERANCE)
        np.testing.assert_allclose(log_density, arrays[f"{prefix}log_density"], atol=3 * TOLERANCE)
    _, log_density = drawn(arrays, "batch.observations", 0)
    log_alpha = torch.tensor(math.log(TEMPERATURE), dtype=torch.float64)
    loss = temperature_loss(log_alpha, log_density, -float(ACTION), n_dimensions=1)
    assert loss.item() == pytest.approx(arrays["ent_coef_loss"].item(), abs=TOLERANCE)


def test_quantile_huber_loss_is_that_of_tqc() -> None:
    # width 1, mean over quantiles and samples on both sides; sb3-contrib takes the mean over critics, we their sum
    arrays = load("sb3_tqc")
    quantiles = critics(arrays, "critic", arrays["batch.observations"], arrays["batch.actions"])
    np.testing.assert_allclose(quantiles.transpose(0, 1), arrays["quantiles"], atol=TOLERANCE)
    samples = arrays["targets"].expand(2, -1, -1)
    loss = pinball_loss(quantiles, samples, width=1.0) / 2
    assert loss.item() == pytest.approx(arrays["critic_loss"].item(), abs=TOLERANCE)


def test_truncated_target_is_that_of_tqc() -> None:
    # TQC pools the critics' quantiles before it cuts; so do we here, as one critic of all of them. What we bootstrap
    # from, mean and truncated spread, is the mean of what it bootstraps from
    arrays = load("sb3_tqc")
    actions, log_density = drawn(arrays, "batch.next_observations", 1)
    ahead = critics(arrays, "target_critic", arrays["batch.next_observations"], actions)
    pooled = ahead.transpose(0, 1).flatten(1).unsqueeze(0)
    mean = pooled.mean(dim=-1)
    next_value = quantiles.pessimistic_value(mean, pooled - mean.unsqueeze(-1), dropped=2 * DROPPED, share=1.0)
    next_value = next_value - TEMPERATURE * log_density
    target = bellman_target(arrays["batch.rewards"][:, 0], arrays["batch.dones"][:, 0], next_value, GAMMA)
    np.testing.assert_allclose(target, arrays["targets"].mean(dim=1), atol=TOLERANCE)


def agent_of(arrays: Arrays, actor: str, targets: str, **settings: object) -> BCell:
    """Our agent with their networks, in float64; it takes steps of next to nothing."""
    config = BCellConfig.model_validate(
        {"gamma": GAMMA, "n_quantiles": 1, "dropped_quantiles": 0, "hidden_dim": HIDDEN, **settings}
        | {"critic_lr": 1e-12, "actor_lr": 1e-12, "alpha_lr": 1e-12, "alpha_init": TEMPERATURE}
    )
    agent = box_agent(OBSERVATION, ACTION, config, torch.Generator().manual_seed(0), torch.device("cpu"))
    for network in (agent.policy, agent.critic, agent.target_critic):
        network.double()
    with torch.no_grad():
        agent.log_alpha.data = agent.log_alpha.data.double()
    take_over(arrays, [actor], agent.policy.layers)
    take_over(arrays, ["critic.0", "critic.1"], agent.critic.layers)
    take_over(arrays, [f"{targets}.0", f"{targets}.1"], agent.target_critic.layers)
    return agent


def hand_out(noise: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> Iterator[Tensor]:
    """In place of draws: this noise in order."""
    handed = iter(noise)
    for module in (bcell, soft_actor_critic):
        monkeypatch.setattr(module, "standard_normal", lambda shape, generator, like: next(handed).view(shape))
    return handed


def test_an_update_reports_the_losses_of_sb3_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    # entropy is per dimension with us, so the temperature is three times SB3's for the same objective
    arrays = load("sb3_sac")
    agent = agent_of(arrays, "actor", "target_critic", cql_alpha=0.0)
    batch = their_batch(arrays, "dones")
    none = arrays["noise"][0][:0]  # no proposals, as there is no penalty
    handed = hand_out([arrays["noise"][0], none, arrays["noise"][1]], monkeypatch)
    metrics = agent.update_sac(batch, None, torch.Generator(), 0, alpha=ACTION * TEMPERATURE)
    assert next(handed, None) is None
    assert metrics["actor_loss"].item() == pytest.approx(arrays["actor_loss"].item(), abs=TOLERANCE)
    assert 0.5 * metrics["q_loss"].item() == pytest.approx(arrays["critic_loss_without_entropy"].item(), abs=TOLERANCE)
    assert metrics["entropy"].item() == pytest.approx(-arrays["log_density"].mean().item(), abs=TOLERANCE)


def test_an_update_reports_the_conservative_penalty_of_d3rlpy(monkeypatch: pytest.MonkeyPatch) -> None:
    # as published where the action has one free dimension; ours counts entropy per dimension, so we are told of one
    arrays = load("d3rlpy_cql")
    agent = agent_of(arrays, "policy", "critic", cql_samples=arrays["uniform"].shape[1])
    monkeypatch.setattr(type(agent.policy), "free_dimensions", lambda self, actions, states: 1)
    batch = their_batch(arrays)._replace(calibrations=torch.full((SIZE,), -math.inf, dtype=torch.float64))
    now, following = (arrays["noise"][place].transpose(0, 1) for place in range(2))
    decided = torch.cat([torch.zeros_like(following[:, :1]), following], dim=1)  # first the target's, then proposals
    handed = hand_out([arrays["actor_noise"], now, decided], monkeypatch)
    uniform = arrays["uniform"]
    coverage = CoverageProposals(uniform, uniform.new_full(uniform.shape[:2], -ACTION * math.log(2.0)))
    metrics = agent.update_sac(batch, coverage, torch.Generator(), 0, alpha=TEMPERATURE)
    assert next(handed, None) is None
    # theirs by critic, weighed and less a threshold, is of the logarithm of a sum over proposals, ours of their mean
    theirs = arrays["conservative_loss"] / WEIGHT + THRESHOLD - math.log(3 * uniform.shape[1])
    assert metrics["cql_loss"].item() == pytest.approx(theirs.sum().item(), abs=TOLERANCE)
    assert metrics["actor_loss"].item() == pytest.approx(arrays["policy_loss"].item(), abs=TOLERANCE)
