"""Our online losses against those of Stable-Baselines3's SAC, sb3-contrib's TQC and d3rlpy's CQL.

From the same weights, batch and noise. The numbers are theirs (`fixtures/make_sb3_fixtures.py`, in float32, and
`fixtures/make_d3rlpy_fixtures.py`, in float64). Networks are written out here from the stored weights; whatever is a
loss, a density or a target is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from finflow.agent.learners import learning, sac_critics
from finflow.agent.learners.bcell import BCell
from finflow.agent.losses import losses, regularisers
from finflow.agent.losses.pinball import pinball_loss
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.config import BCellConfig
from scripts.evidence.box_sac import LOG_SCALE_RANGE, SquashedNormal, box_agent
from tests.agent.helpers import actor_loss
from tests.agent.parity import TYPES, Arrays, layers, load, take_over, their_batch

GAMMA, TEMPERATURE, TOLERANCE = 0.97, 0.3, 1e-5
SIZE, OBSERVATION, ACTION, HIDDEN = 32, 5, 3, 8
DROPPED = 2  # of each of TQC's critics
WEIGHT, THRESHOLD = 5.0, 0.7  # of d3rlpy's conservative penalty


def policy(arrays: Arrays, name: str, observations: Tensor) -> SquashedNormal:
    """Theirs, as our distribution: the last layer gives means and then log deviations, cut at -20 and 2 by all."""
    location, log_scale = layers(arrays, name, observations).chunk(2, dim=1)
    return SquashedNormal(location, log_scale.clamp(*LOG_SCALE_RANGE))


def critics(arrays: Arrays, name: str, observations: Tensor, actions: Tensor) -> Tensor:
    """Outputs of both critics for P actions a state (B, P, K), (2, B, P, outputs)."""
    rows = torch.cat([observations.unsqueeze(1).expand(-1, actions.shape[1], -1), actions], dim=-1)
    return torch.stack([layers(arrays, f"{name}.{critic}", rows) for critic in range(2)])


def drawn(arrays: Arrays, observations: str, noise: int) -> tuple[Tensor, Tensor]:
    """Action (B, 1, K) and log density (B, 1) under SB3's noise."""
    return policy(arrays, "actor", arrays[observations]).sample(arrays["noise"][noise].unsqueeze(1))


@pytest.mark.parametrize("name", ["sb3_sac", "sb3_tqc"])
@pytest.mark.parametrize("dtype", TYPES)
def test_draws_and_their_densities_are_those_of_sb3(name: str, dtype: torch.dtype) -> None:
    # SB3 takes log(1 - a^2 + 1e-6), we the logarithm itself: up to 1e-5 where a is 0.95
    arrays = load(name, dtype)
    for prefix, observations, place in (("", "batch.observations", 0), ("next_", "batch.next_observations", 1)):
        actions, log_density = drawn(arrays, observations, place)
        np.testing.assert_allclose(actions[:, 0], arrays[f"{prefix}actions"], atol=TOLERANCE)
        np.testing.assert_allclose(log_density[:, 0], arrays[f"{prefix}log_density"], atol=3 * TOLERANCE)


@pytest.mark.parametrize("name", ["sb3_sac", "sb3_tqc"])
@pytest.mark.parametrize("dtype", TYPES)
def test_temperature_loss_is_that_of_sb3(name: str, dtype: torch.dtype) -> None:
    # both take the gradient in log alpha; SB3's target entropy is minus the number of dimensions, which are summed
    arrays = load(name, dtype)
    _, log_density = drawn(arrays, "batch.observations", 0)
    log_alpha = torch.tensor(math.log(TEMPERATURE), dtype=dtype)
    loss = losses.temperature_loss(log_alpha, log_density, -float(ACTION), n_dimensions=1)
    assert loss.item() == pytest.approx(arrays["ent_coef_loss"].item(), abs=TOLERANCE)


@pytest.mark.parametrize("dtype", TYPES)
def test_actor_loss_is_that_of_sb3_sac(dtype: torch.dtype) -> None:
    # the least of the critics; SB3 does not divide the entropy by the dimensions of the action: n_dimensions = 1
    arrays = load("sb3_sac", dtype)
    actions, log_density = drawn(arrays, "batch.observations", 0)
    value = critics(arrays, "critic", arrays["batch.observations"], actions)[..., 0, 0].min(dim=0).values
    loss = actor_loss(log_density[:, 0], value, torch.tensor(TEMPERATURE, dtype=dtype), n_dimensions=1)
    assert loss.item() == pytest.approx(arrays["actor_loss"].item(), abs=TOLERANCE)


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("dtype", TYPES)
def test_critic_loss_is_that_of_sb3_sac(dtype: torch.dtype, entropy: bool) -> None:
    # SB3 halves the squared loss; with entropy in the backup and without
    arrays = load("sb3_sac", dtype)
    actions, log_density = drawn(arrays, "batch.next_observations", 1)
    ahead = critics(arrays, "target_critic", arrays["batch.next_observations"], actions)[..., 0, 0]
    next_value = losses.pessimistic_value(ahead, torch.zeros(*ahead.shape, 2), dropped=0, share=0.0)
    np.testing.assert_allclose(next_value, arrays["next_values"][:, 0], atol=TOLERANCE)
    if entropy:
        next_value = next_value - TEMPERATURE * log_density[:, 0]
    rewards, terminated = arrays["batch.rewards"][:, 0], arrays["batch.dones"][:, 0]
    target = losses.bellman_target(rewards, terminated, next_value, GAMMA)
    mean = critics(arrays, "critic", arrays["batch.observations"], arrays["batch.actions"].unsqueeze(1))[..., 0, 0]
    expected = arrays["critic_loss" if entropy else "critic_loss_without_entropy"]
    assert 0.5 * losses.mean_loss(mean, target).item() == pytest.approx(expected.item(), abs=TOLERANCE)


@pytest.mark.parametrize("dtype", TYPES)
def test_quantile_huber_loss_is_that_of_tqc(dtype: torch.dtype) -> None:
    # width 1, mean over quantiles and samples on both sides; sb3-contrib takes the mean over critics, we their sum
    arrays = load("sb3_tqc", dtype)
    quantiles = critics(arrays, "critic", arrays["batch.observations"], arrays["batch.actions"].unsqueeze(1))[:, :, 0]
    np.testing.assert_allclose(quantiles.transpose(0, 1), arrays["quantiles"], atol=TOLERANCE)
    samples = arrays["targets"].expand(2, -1, -1)
    loss = pinball_loss(quantiles, samples, width=1.0) / 2
    assert loss.item() == pytest.approx(arrays["critic_loss"].item(), abs=TOLERANCE)


@pytest.mark.parametrize("dtype", TYPES)
def test_truncated_target_is_that_of_tqc(dtype: torch.dtype) -> None:
    # TQC pools the critics' quantiles before it cuts; so do we here, as one critic of all of them. What we bootstrap
    # from, mean and truncated spread, is the mean of what it bootstraps from
    arrays = load("sb3_tqc", dtype)
    actions, log_density = drawn(arrays, "batch.next_observations", 1)
    ahead = critics(arrays, "target_critic", arrays["batch.next_observations"], actions)[:, :, 0]
    pooled = ahead.transpose(0, 1).flatten(1).unsqueeze(0)
    mean = pooled.mean(dim=-1)
    next_value = losses.pessimistic_value(mean, pooled - mean.unsqueeze(-1), dropped=2 * DROPPED, share=1.0)
    next_value = next_value - TEMPERATURE * log_density[:, 0]
    target = losses.bellman_target(arrays["batch.rewards"][:, 0], arrays["batch.dones"][:, 0], next_value, GAMMA)
    np.testing.assert_allclose(target, arrays["targets"].mean(dim=1), atol=TOLERANCE)


def test_actor_loss_is_that_of_tqc() -> None:
    # the mean over critics, where SAC takes the least
    arrays = load("sb3_tqc", torch.float64)
    actions, log_density = drawn(arrays, "batch.observations", 0)
    value = critics(arrays, "critic", arrays["batch.observations"], actions)[:, :, 0].mean(dim=-1).mean(dim=0)
    loss = actor_loss(log_density[:, 0], value, torch.tensor(TEMPERATURE, dtype=torch.float64), 1)
    assert loss.item() == pytest.approx(arrays["actor_loss"].item(), abs=TOLERANCE)


def proposals(arrays: Arrays) -> CoverageProposals:
    """Those of d3rlpy: uniform ones, then of the policy now and ahead; (B, 3 P, K)."""
    uniform = arrays["uniform"]
    parts = [(uniform, uniform.new_full(uniform.shape[:2], -ACTION * math.log(2.0)))]
    for place, observations in enumerate(("batch.observations", "batch.next_observations")):
        noise = arrays["noise"][place].transpose(0, 1)
        parts.append(policy(arrays, "policy", arrays[observations]).sample(noise))
    actions, log_density = (torch.cat(columns, dim=1) for columns in zip(*parts, strict=True))
    return CoverageProposals(actions, log_density)


def penalty(arrays: Arrays, calibration: float = -math.inf, every: bool = True) -> Tensor:
    """Ours, of d3rlpy's proposals."""
    found = proposals(arrays)
    count = found.portfolios.shape[1]
    values = critics(arrays, "critic", arrays["batch.observations"], found.portfolios)[..., 0]
    data = critics(arrays, "critic", arrays["batch.observations"], arrays["batch.actions"].unsqueeze(1))[..., 0, 0]
    policy_drawn = torch.full((count,), every) & (torch.arange(count) >= count // 3)
    bound = torch.full((SIZE,), calibration, dtype=data.dtype)
    return regularisers.conservative_loss(values, found.log_density, data, policy_drawn, bound, n_dimensions=1)


def of_d3rlpy(arrays: Arrays) -> float:
    """Its penalty, summed over critics, without weight and threshold.

    It takes the logarithm of a sum over proposals, we of their mean: a constant, which teaches nothing.
    """
    own = arrays["conservative_loss"] / WEIGHT + THRESHOLD - math.log(3 * arrays["uniform"].shape[1])
    return float(own.sum())


@pytest.mark.parametrize("dtype", TYPES)
def test_conservative_penalty_is_that_of_d3rlpy(dtype: torch.dtype) -> None:
    arrays = load("d3rlpy_cql", dtype)
    assert penalty(arrays, every=False).item() == pytest.approx(of_d3rlpy(arrays), abs=TOLERANCE)


def test_cal_ql_with_an_infinite_lower_bound_is_cql_and_with_a_high_one_is_not() -> None:
    arrays = load("d3rlpy_cql", torch.float64)
    assert penalty(arrays, calibration=-math.inf).item() == pytest.approx(of_d3rlpy(arrays), abs=TOLERANCE)
    assert penalty(arrays, calibration=1.0).item() > of_d3rlpy(arrays) + 0.01


def test_actor_loss_is_that_of_d3rlpy() -> None:
    arrays = load("d3rlpy_cql", torch.float64)
    decided = policy(arrays, "policy", arrays["batch.observations"])
    actions, log_density = decided.sample(arrays["actor_noise"].unsqueeze(1))
    value = critics(arrays, "critic", arrays["batch.observations"], actions)[..., 0, 0].min(dim=0).values
    loss = actor_loss(log_density[:, 0], value, torch.tensor(TEMPERATURE, dtype=torch.float64), 1)
    assert loss.item() == pytest.approx(arrays["policy_loss"].item(), abs=TOLERANCE)


# the whole update -------------------------------------------------------------------------------


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
    for module in (learning, sac_critics):
        monkeypatch.setattr(module, "standard_normal", lambda shape, generator, like: next(handed).view(shape))
    return handed


def test_an_update_reports_the_losses_of_sb3_sac(monkeypatch: pytest.MonkeyPatch) -> None:
    # entropy is per dimension with us, so the temperature is three times SB3's for the same objective
    arrays = load("sb3_sac", torch.float64)
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
    arrays = load("d3rlpy_cql", torch.float64)
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
    assert metrics["cql_loss"].item() == pytest.approx(of_d3rlpy(arrays), abs=TOLERANCE)
    assert metrics["actor_loss"].item() == pytest.approx(arrays["policy_loss"].item(), abs=TOLERANCE)
