"""Risk measures: they are their formulas, and a policy that learns by one holds what it says."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.learners.bcell import BCell
from finflow.agent.losses.critic_losses import CoverageProposals
from finflow.agent.losses.quantiles import discounted_means, quantile_weights, risk_adjusted_value, sample_risk
from finflow.agent.networks.critic import NetworkShape, Valuation
from finflow.config import AnchorConfig, BCellConfig, load_config
from finflow.errors import ConfigError
from tests.agent.helpers import CPU, generator


@pytest.mark.parametrize("level", [0.1, 0.25, 0.3, 1.0])
def test_cvar_is_the_mean_of_the_worst_share(level: float) -> None:
    samples = np.random.default_rng(0).normal(size=40)
    found = sample_risk(samples, BCellConfig(risk_measure="cvar", risk_level=level))
    assert found == pytest.approx(np.sort(samples)[: round(40 * level)].mean(), rel=1e-12)


def test_cvar_shares_a_quantile_that_lies_across_its_level() -> None:
    config = BCellConfig(risk_measure="cvar", risk_level=0.3)
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


def held_of_the_risky(make_batch: Callable[..., Batch], measure: str, excess: bool = False) -> float:
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
        told = batch.both.assets.clone()
        told[:, :, 0] = torch.tensor([1.0, -1.0])  # which of the two is the risky one
        luck = 1.0 + 3.0 * torch.randn(64, generator=draw)
        rewards = batch.actions[:, 0] * luck + 0.6 * batch.actions[:, 1]
        references = luck if excess else None
        batch = batch._replace(
            both=batch.both._replace(assets=told),
            terminated=torch.ones(64),
            rewards=rewards - luck if excess else rewards,
            references=references,
        )
        agent.update_sac(batch, CoverageProposals(batch.actions[:, None], density), draw, update)
    states = make_batch(64, 2, seed=99_999).both
    told = states.assets.clone()
    told[:, :, 0] = torch.tensor([1.0, -1.0])
    with torch.no_grad():
        aims = agent.policy(states._replace(assets=told)).aim.mean(dim=0)
    return float(aims[0])


@pytest.mark.learning
@pytest.mark.timeout(300)
def test_risk_measures_change_what_is_held_where_risk_and_return_trade_off(make_batch: Callable[..., Batch]) -> None:
    """The risky asset pays more on average; its worst quarter is far worse: fear leaves it, and greed does not."""
    held = {measure: held_of_the_risky(make_batch, measure) for measure in ("neutral", "cvar", "wang")}
    assert held["neutral"] > 0.6, held
    assert held["cvar"] < 0.25, held
    assert held["wang"] < 0.45, held  # seen: 0.37


@pytest.mark.learning
@pytest.mark.timeout(300)
def test_a_reference_that_is_taken_from_rewards_hides_no_risk(make_batch: Callable[..., Batch]) -> None:
    """In excess of what the risky asset pays it has no risk at all; the measure still sees what it costs."""
    assert held_of_the_risky(make_batch, "cvar", excess=True) < 0.25
