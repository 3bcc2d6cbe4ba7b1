"""Losses of critics and of offline methods against their formulas; quantiles, pessimism and risk measures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from finflow.agent.batch import States
from finflow.agent.learners.bcell import BCell
from finflow.agent.losses.off_policy_losses import (
    CoverageProposals,
    CriticTarget,
    advantage_scale,
    advantage_weights,
    advantages,
    calibration,
    choice_loss,
    conservative_loss,
    ddpg_bc_loss,
    discounted_return,
)
from finflow.agent.losses.quantiles import (
    discounted_means,
    pairwise_loss,
    pessimistic_value,
    pinball_loss,
    quantile_weights,
    risk_adjusted_value,
    sample_risk,
    truncated_spread,
)
from finflow.agent.networks.critic import NetworkShape, Valuation
from finflow.config import AnchorConfig, BCellConfig, load_config
from finflow.errors import ConfigError
from tests.agent.conftest import CPU, MakeBatch, generator

DOUBLE = torch.float64


def test_the_return_of_decisions_is_their_discounted_sum() -> None:
    rewards = torch.tensor([[1.0, -2.0], [0.5, 4.0], [3.0, 0.0]])
    expected = torch.tensor([1.0 + 0.9 * 0.5 + 0.81 * 3.0, -2.0 + 0.9 * 4.0])
    torch.testing.assert_close(discounted_return(rewards, 0.9), expected)


def test_what_all_actions_share_is_no_advantage() -> None:
    """A day's luck, common to the actions of a state, changes neither advantages nor their scale."""
    returns = torch.randn(50, 4, generator=generator(), dtype=DOUBLE)
    luck = 100.0 * torch.randn(50, 1, generator=generator(1), dtype=DOUBLE)
    # luck of a hundred leaves fourteen of the sixteen digits
    torch.testing.assert_close(advantages(returns + luck), advantages(returns), rtol=0.0, atol=1e-12)
    expected = (returns - returns.mean(dim=1, keepdim=True)).square().mean().sqrt()
    assert advantage_scale(returns + luck).item() == pytest.approx(expected.item(), rel=1e-12)


def test_calibration_is_one_where_advantages_are_as_predicted_and_shrinks_with_exaggeration() -> None:
    predicted = torch.randn(4000, 6, generator=generator(2))
    noise = torch.randn(4000, 6, generator=generator(3))
    slope, correlation = calibration(predicted, predicted + 3.0 * noise)
    assert slope.item() == pytest.approx(1.0, abs=0.1)  # error of a slope: 3 / sqrt(20 000) = .02
    assert correlation.item() == pytest.approx(1.0 / math.sqrt(10.0), abs=0.03)  # its error: .006
    assert calibration(10.0 * predicted, predicted)[0].item() == pytest.approx(0.1, rel=1e-5)  # float32
    assert calibration(-predicted, predicted)[1].item() == pytest.approx(-1.0, rel=1e-5)


def test_the_loss_of_several_actions_is_its_formula() -> None:
    """Two critics, five actions, quantiles of the first three: every sum written out."""
    critics, states, actions, known, unit = 2, 6, 5, 3, 0.2
    noise = generator(critics + actions)
    mean = torch.randn(critics, states, actions, generator=noise, dtype=DOUBLE)
    spread = torch.randn(critics, states, known, 4, generator=noise, dtype=DOUBLE)
    values, returns = Valuation(mean, spread), torch.randn(states, actions, generator=noise, dtype=DOUBLE)
    samples = torch.randn(critics, states, actions, 4, generator=noise, dtype=DOUBLE)
    weights = torch.rand(states, generator=noise, dtype=DOUBLE)  # of what is shared
    target = CriticTarget(returns, returns.unsqueeze(-1) + samples, weights)
    loss, metrics = choice_loss(values, target, unit)
    expected = 0.0
    for critic in range(critics):
        for state in range(states):
            errors = [values.mean[critic, state, p].item() - returns[state, p].item() for p in range(actions)]
            shared = sum(errors) / actions
            apart = sum((error - shared) ** 2 for error in errors) / actions
            expected += (weights[state].item() * shared**2 + apart / unit**2) / states
    ordered = [
        pinball_loss(values.quantiles[:, :, p], target.samples[:, :, p]).item() for p in range(known)
    ]  # each is a mean over states: together the mean over states and actions
    assert loss.item() == pytest.approx(expected + sum(ordered) / known, rel=1e-12)
    assert metrics["q_largest"].item() == pytest.approx(values.mean.abs().max().item())
    slope, correlation = calibration(values.mean.mean(dim=0), returns)
    assert metrics["advantage_slope"].item() == pytest.approx(slope.item())
    assert metrics["advantage_correlation"].item() == pytest.approx(correlation.item())


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=DOUBLE)


def test_advantage_weights_are_clipped_at_a_hundred() -> None:
    weights = advantage_weights(torch.tensor([-1.0, 0.0, 1.0, 50.0]), 3.0)
    np.testing.assert_allclose(weights.numpy(), [math.exp(-3), 1.0, math.exp(3), 100.0], rtol=1e-6)


@pytest.mark.parametrize("dimensions", [1, 4])
def test_conservative_loss_equals_its_formula(dimensions: int) -> None:
    proposals, log_density, data = normal(2, 5, 6), normal(5, 6, seed=1), normal(2, 5, seed=2)
    drawn = torch.tensor([False, False, True, True, True, True])
    calibration = normal(5, seed=3)
    found = conservative_loss(proposals, log_density, data, drawn, calibration, dimensions).item()
    expected = 0.0
    for critic in range(2):
        for state in range(5):
            terms = []
            for p in range(6):
                value = proposals[critic, state, p].item()
                if drawn[p]:
                    value = max(value, calibration[state].item())
                terms.append(math.exp(dimensions * value - log_density[state, p].item()))
            expected += (math.log(sum(terms) / 6) / dimensions - data[critic, state].item()) / 5
    assert found == pytest.approx(expected, rel=1e-12)


def test_ascent_with_cloning_is_its_formula() -> None:
    value, advantage = torch.tensor([1.0, 3.0]), torch.tensor([-1.0, 0.5])
    loss = ddpg_bc_loss(value, advantage, torch.tensor(4.0), 0.1)
    assert loss.item() == pytest.approx(-2.0 / 0.75 + 0.4)


def direct_loss(quantiles: torch.Tensor, samples: torch.Tensor, width: float) -> torch.Tensor:
    """The formula over all pairs."""
    count = quantiles.shape[-1]
    levels = ((torch.arange(count, dtype=torch.float64) + 0.5) / count)[:, None]
    difference = samples.unsqueeze(-2) - quantiles.unsqueeze(-1)
    size = difference.abs()
    huber = torch.where(size <= width, 0.5 * difference**2, width * (size - 0.5 * width)) / width
    return ((levels - (difference < 0).double()).abs() * huber).mean(dim=(1, 2, 3)).sum()


@settings(deadline=None, max_examples=60)
@given(
    counts=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)),
    scale=st.sampled_from([1e-3, 0.05, 1.0, 1e4]),
    seed=st.integers(0, 100),
)
def test_pinball_loss_equals_the_unfused_formula_and_its_gradient(
    counts: tuple[int, int, int, int], scale: float, seed: int
) -> None:
    # samples tie with each other; quantiles come in any layout of memory
    critics, batch, n_quantiles, n_samples = counts
    quantiles = (normal(n_quantiles, batch, critics, seed=seed) * scale).transpose(0, 2).requires_grad_()
    samples = normal(critics, batch, n_samples, seed=seed + 1) * scale
    samples[..., -1] = samples[..., 0]
    direct = direct_loss(quantiles, samples, 0.05)
    (expected,) = torch.autograd.grad(direct, quantiles)
    for loss in (pinball_loss, pairwise_loss):  # on the CPU, and on other devices
        found = loss(quantiles, samples, 0.05)
        assert found.item() == pytest.approx(direct.item(), rel=1e-10)
        (slope,) = torch.autograd.grad(found, quantiles)
        torch.testing.assert_close(slope, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("place", ["quantiles", "samples"])
def test_a_number_that_is_not_finite_is_not_hidden(place: str) -> None:
    # the optimiser skips a step whose gradient is not finite, so the loss has to show it
    numbers = {"quantiles": normal(2, 3, 8), "samples": normal(2, 3, 8, seed=1)}
    numbers[place][0, 1, 2] = float("nan")
    quantiles = numbers["quantiles"].requires_grad_()
    loss = pinball_loss(quantiles, numbers["samples"])
    loss.backward()
    assert quantiles.grad is not None
    assert not loss.isfinite()
    assert not quantiles.grad.isfinite().all()


def test_truncation_is_switched_on_gradually_and_only_lowers_values() -> None:
    mean, spread = normal(2, 6), normal(2, 6, 8, seed=1)
    spread = spread - spread.mean(dim=-1, keepdim=True)
    off, half, on = (pessimistic_value(mean, spread, 2, share) for share in (0.0, 0.5, 1.0))
    assert torch.equal(off, mean.min(dim=0).values)
    assert (on < half).all()
    assert (half < off).all()
    kept = np.sort(spread.numpy(), axis=-1)[..., :6].mean(axis=-1)
    np.testing.assert_allclose(on.numpy(), (mean.numpy() + kept).min(axis=0), rtol=1e-12)


def test_several_choices_of_a_state_are_valued_by_one_critic() -> None:
    """By that which values them least on average: what the critics disagree about is charged to no single choice."""
    mean = torch.tensor([[1.0, 5.0, 2.0, 2.0], [3.0, 1.0, 4.0, 1.0]])  # two critics; two states of two choices
    spread = torch.zeros(2, 4, 6)
    assert pessimistic_value(mean, spread, 0, 0.0, choices=2).tolist() == [3.0, 1.0, 2.0, 2.0]
    assert pessimistic_value(mean, spread, 0, 0.0).tolist() == [1.0, 1.0, 2.0, 1.0]
    wide = torch.stack([torch.zeros(4, 6), torch.linspace(-9.0, 9.0, 6).expand(4, 6)])
    cut = truncated_spread(wide, 2)  # a critic without spread, and one whose cut makes it the least of both
    assert torch.equal(pessimistic_value(mean, wide, 2, 1.0, choices=2), mean[1] + cut[1])


@pytest.mark.parametrize("level", [0.1, 0.25, 0.3, 1.0])
def test_cvar_is_the_mean_of_the_worst_share(level: float) -> None:
    samples = np.random.default_rng(0).normal(size=40)
    found = sample_risk(samples, BCellConfig(risk_measure="cvar", risk_level=level))
    assert found == pytest.approx(np.sort(samples)[: round(40 * level)].mean(), rel=1e-12)
    config = BCellConfig(risk_measure="cvar", risk_level=0.3)  # which lies across the second of four quantiles
    np.testing.assert_allclose(quantile_weights(config, 4), [1 / 1.2, 0.2 / 1.2, 0.0, 0.0], atol=1e-15)


def test_wang_moves_the_mean_of_a_normal_by_its_strength() -> None:
    """Wang's transform of a normal is the same normal, moved down by the strength times its deviation."""
    levels = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    normal = 3.0 + 2.0 * math.sqrt(2.0) * torch.erfinv(2.0 * levels - 1.0)
    found = sample_risk(normal.numpy(), BCellConfig(risk_measure="wang"))
    assert found == pytest.approx(3.0 - 2.0 * 0.75, abs=5e-3)


def test_a_critics_value_is_its_mean_and_the_measure_of_its_spread() -> None:
    mean = torch.randn(2, 5, 3, generator=generator())
    quantiles = torch.randn(2, 5, 3, 8, generator=generator(1))  # in no order, not centred
    for measure in ("cvar", "wang"):
        config = BCellConfig(risk_measure=measure)
        found = risk_adjusted_value(Valuation(mean, quantiles), config)
        own = quantiles[1, 4, 2].double().numpy()
        assert found[1, 4, 2].item() == pytest.approx(
            mean[1, 4, 2].item() + sample_risk(own - own.mean(), config), abs=1e-5
        )
    assert risk_adjusted_value(Valuation(mean, quantiles), BCellConfig()) is mean


def test_returns_of_a_window_are_discounted_means() -> None:
    rewards = np.random.default_rng(1).normal(size=30)
    found = discounted_means(rewards, 0.9)
    assert len(found) == 20  # the last ten days have no horizon of ten ahead
    weights = 0.9 ** np.arange(30)
    np.testing.assert_allclose(found[0], (weights * rewards).sum() / weights.sum(), rtol=1e-12)
    np.testing.assert_allclose(found[19], (weights[:11] * rewards[19:]).sum() / weights[:11].sum(), rtol=1e-12)
    assert len(discounted_means(rewards[:4], 0.9)) == 1


def test_a_measure_needs_a_distribution_and_units_that_stay() -> None:
    with pytest.raises(ConfigError, match="needs a distribution"):
        load_config(None, {"bcell.risk_measure": "cvar", "bcell.n_quantiles": 1, "bcell.dropped_quantiles": 0}, {})
    with pytest.raises(ConfigError, match="units that stay"):
        load_config(None, {"bcell.risk_measure": "wang", "train.reward_normalization.enabled": True}, {})


def told(states: States) -> States:
    """States that say by their first feature which of two assets is the risky one."""
    states.assets[:, :, 0] = torch.tensor([1.0, -1.0])
    return states


def held_of_the_risky(make_batch: MakeBatch, measure: str, excess: bool = False) -> float:
    """Weight that an agent learns to aim at, of an asset that pays 1 with a deviation of 3, beside one that pays 0.6.

    One step; two assets, no costs. ``excess``: rewards beside a reference that carries the same risk.
    """
    shape = NetworkShape(7, 4, 16, ((0,), (0, 2), (0, 3), (0, 4), (0, 5)))
    config = BCellConfig(
        hidden_dim=16,
        n_quantiles=16,
        cql_samples=1,
        actor_lr=5e-3,
        critic_lr=5e-3,
        cql_alpha=0.0,
        alpha_init=0.003,
        alpha_mode="fixed",
        risk_measure=measure,
        risk_level=0.25,
        anchor=AnchorConfig(weight=0.0),
    )
    agent = BCell(shape, config, generator(1), CPU)
    density = torch.full((64, 1), math.lgamma(3.0))
    for update in range(200):
        batch, draw = make_batch(64, 2, seed=update), generator(10_000 + update)
        luck = 1.0 + 3.0 * torch.randn(64, generator=draw)
        rewards = batch.actions[:, 0] * luck + 0.6 * batch.actions[:, 1]
        references = luck if excess else None
        batch = batch._replace(
            both=told(batch.both),
            terminated=torch.ones(64),
            rewards=rewards - luck if excess else rewards,
            references=references,
        )
        agent.update_sac(batch, CoverageProposals(batch.actions[:, None], density), draw, update)
    with torch.no_grad():
        return float(agent.policy(told(make_batch(64, 2, seed=99_999).both)).aim[:, 0].mean())


@pytest.mark.learning
@pytest.mark.timeout(300)
def test_risk_measures_change_what_is_held_where_risk_and_return_trade_off(make_batch: MakeBatch) -> None:
    """The risky asset pays more on average; its worst quarter is far worse: fear leaves it, and greed does not.

    In excess of what the risky asset pays it has no risk at all; the measure still sees what it costs.
    """
    held = {measure: held_of_the_risky(make_batch, measure) for measure in ("neutral", "cvar", "wang")}
    assert held["neutral"] > 0.6, held
    assert held["cvar"] < 0.25, held
    assert held["wang"] < 0.45, held  # seen: 0.37
    assert held_of_the_risky(make_batch, "cvar", excess=True) < 0.25
