"""The online update on Box tasks: the squashed normal, and what an update is made of."""

from __future__ import annotations

import math

import pytest
import torch

from finflow.agent.losses.regularisers import conservative_loss, indifferent_penalty, overestimation
from finflow.config import BCellConfig
from scripts.evidence.box_sac import SquashedNormal, box_agent, uniform_proposals
from scripts.evidence.box_task import box_batch

CPU = torch.device("cpu")
CONFIG = BCellConfig(hidden_dim=16, n_quantiles=4, dropped_quantiles=1, cql_samples=2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("location", "scale"), [(0.0, 0.5), (1.5, 0.3), (-0.7, 1.2)])
def test_the_density_of_the_squashed_normal_integrates_to_one(location: float, scale: float) -> None:
    # noise on a fine grid: where it lands, and the density there
    noise = torch.linspace(-9.0, 9.0, 40_001, dtype=torch.float64).view(1, -1, 1)
    parameters = (torch.full((1, 1), value, dtype=torch.float64) for value in (location, math.log(scale)))
    actions, log_density = SquashedNormal(*parameters).sample(noise)
    assert torch.trapezoid(log_density[0].exp(), actions[0, :, 0]).item() == pytest.approx(1.0, abs=1e-6)


def test_densities_of_actions_at_the_bound_are_finite() -> None:
    actions, log_density = SquashedNormal(torch.full((1, 2), 40.0), torch.zeros(1, 2)).sample(torch.zeros(1, 1, 2))
    assert actions.tolist() == [[[1.0, 1.0]]]
    assert torch.isfinite(log_density).all()


def test_target_entropy_of_a_share_of_one_is_that_of_the_uniform_law() -> None:
    agent = box_agent(3, 2, CONFIG, generator(), CPU)
    assert agent.policy.target_entropy(1.0, 2) == pytest.approx(2 * math.log(2.0))
    assert agent.policy.target_entropy(math.exp(-1.0) / 2.0, 2) == pytest.approx(-2.0)  # the usual one
    assert uniform_proposals(5, 3, 2, generator()).log_density.unique().item() == pytest.approx(-2 * math.log(2.0))


def random_batch(size: int = 32) -> tuple[torch.Tensor, ...]:
    noise = generator(1)
    observations, following = torch.randn(2, size, 3, generator=noise)
    actions = torch.rand(size, 2, generator=noise) * 2.0 - 1.0
    return observations, actions, torch.randn(size, generator=noise), torch.zeros(size), following


def test_without_weight_no_penalty_is_reckoned_and_no_proposal_drawn() -> None:
    batch = box_batch(*random_batch())
    off = box_agent(3, 2, CONFIG.model_copy(update={"cql_alpha": 0.0}), generator(), CPU)
    other = box_agent(3, 2, CONFIG.model_copy(update={"cql_alpha": 0.0, "cql_samples": 7}), generator(), CPU)
    metrics = off.update_sac(batch, None, generator(2), 0)
    assert "cql_loss" not in metrics
    assert other.update_sac(batch, None, generator(2), 0)["actor_loss"] == metrics["actor_loss"]


def test_the_options_of_the_update_work_on_a_box_too() -> None:
    """A tuned penalty, a risk measure, entropy in the backup and products in bfloat16; densities stay in float32."""
    options = {
        "cql_mode": "lagrange",
        "risk_measure": "cvar",
        "entropy_backup": "relative",
        "mixed_precision": True,
    }
    agent, noise = box_agent(3, 2, CONFIG.model_copy(update=options), generator(), CPU), generator(3)
    for update in range(3):
        metrics = agent.update_sac(box_batch(*random_batch()), uniform_proposals(32, 2, 2, noise), noise, update)
        assert all(torch.isfinite(value) for value in metrics.values())
        assert {metrics[name].dtype for name in ("q_loss", "actor_loss", "entropy")} == {torch.float32}
    assert {"cql_alpha", "cql_excess"} <= set(metrics)


def test_values_that_are_all_alike_overestimate_nothing_on_a_box() -> None:
    values, none = torch.full((2, 8, 30), 1.7), torch.zeros(30, dtype=torch.bool)
    density = uniform_proposals(8, 30, 2, generator()).log_density
    penalty = conservative_loss(values, density, values[..., 0], none, torch.zeros(8), 2)
    assert penalty.item() > 1.0
    assert overestimation(penalty, indifferent_penalty(density, 2)).item() == pytest.approx(0.0, abs=1e-5)


def test_the_penalty_pushes_the_values_of_uniform_actions_below_those_of_the_data() -> None:
    rows = random_batch()
    apart = []
    for weight in (0.0, 5.0):
        config = CONFIG.model_copy(update={"cql_alpha": weight, "critic_lr": 3e-3})
        agent, noise = box_agent(3, 2, config, generator(), CPU), generator(3)
        batch = box_batch(*rows)._replace(calibrations=torch.full((32,), -math.inf))
        for update in range(100):
            agent.update_sac(batch, uniform_proposals(32, 2, 2, noise), noise, update)
        uniform = uniform_proposals(32, 20, 2, noise).portfolios
        with torch.no_grad():
            encoding = agent.critic.encode(batch.states)
            data = agent.critic.value(encoding, batch.states, batch.actions.unsqueeze(1)).mean
            apart.append((data.mean() - agent.critic.value(encoding, batch.states, uniform).mean.mean()).item())
    assert apart[1] > apart[0] + 0.1
