"""Learning from several actions a state: what the distributional, conservative and entropy options change in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from finflow.agent.batch import Batch
from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.critic import NetworkShape
from tests.agent.helpers import coverage, generator, make_agent, parameters, with_choices

MakeBatch = Callable[..., Batch]


def taught(shape: NetworkShape, batch: Batch, updates: int, **options: object) -> BCell:
    """An agent after some updates on one batch with four actions a state."""
    agent, noise = make_agent(shape, **options), generator(3)
    for update in range(updates):
        agent.update_sac(batch, coverage(), noise, update, total=updates)
    return agent


def decisions(agent: BCell, batch: Batch) -> np.ndarray:
    """Portfolios that it takes in the batch's states."""
    states = batch.states
    return agent.act({name: getattr(states, name).numpy() for name in ("assets", "market", "portfolio")})


@pytest.mark.parametrize(
    "options",
    [
        {"risk_measure": "cvar"},
        {"risk_measure": "wang"},
        {"n_quantiles": 1},
        {"cql_alpha": 0.0},
        {"dropped_quantiles": 4},
        {"calibration": "none"},
        {"entropy_backup": "relative"},
    ],
    ids=str,
)
def test_each_option_changes_what_is_done_after_a_few_updates(
    options: dict[str, object], shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """From the same weights, on the same batch, with the same draws; and not without it."""
    batch = with_choices(make_batch())
    before, untaught = (decisions(make_agent(shape, **changes), batch) for changes in ({}, options))
    np.testing.assert_array_equal(before, untaught)
    plain, same, changed = (decisions(taught(shape, batch, 12, **changes), batch) for changes in ({}, {}, options))
    np.testing.assert_array_equal(plain, same)
    assert np.abs(changed - plain).max() > 1e-6  # many times the last digit of a float32 weight
    assert np.abs(changed - before).max() > 1e-4


@pytest.mark.parametrize("several", [True, False])
def test_the_penalty_lowers_the_values_of_portfolios_that_no_one_chose(
    several: bool, shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """In the order of its weight, beside the value of what was chosen, with several actions a state and with one.

    The penalty raises that value by as much as it lowers the others: the level of all is the rewards' affair. No bound
    keeps proposals of the policy up here, and nothing is known ahead of an action.
    """
    last = make_batch()._replace(terminated=torch.ones(16))
    batch = with_choices(last) if several else last
    if several:
        batch = batch._replace(choices=batch.outcomes._replace(terminated=torch.ones(16, 4)))
    actions, excess = torch.cat([batch.actions.unsqueeze(1), coverage(seed=11).portfolios], dim=1), []
    for weight in (0.0, 5.0, 10.0):
        agent = taught(shape, batch, 40, cql_alpha=weight, critic_lr=3e-3, calibration="none")
        with torch.no_grad():
            values = agent.critic.value(agent.critic.encode(batch.states), batch.states, actions, 0).mean
        excess.append((values[..., 1:].mean() - values[..., 0].mean()).item())
    # seen: -.025, -.058, -.078 with several actions, and -.007, -.175, -.187 with one, where its weight is fifty times
    assert excess[0] > excess[1] + 0.005 > excess[2] + 0.01, excess


def test_the_distribution_of_the_first_three_actions_alone_is_learned(
    shape: NetworkShape, make_batch: MakeBatch
) -> None:
    """The stored one, holding and the policy's own: what the others end in moves no quantile's own layer."""
    batch, layers = with_choices(make_batch(), 6), []
    for place in (None, 1, 5):
        rewards = batch.outcomes.rewards.clone()
        if place is not None:
            rewards[:, place] += 3.0
        agent = make_agent(shape)
        agent.update_sac(batch._replace(choices=batch.outcomes._replace(rewards=rewards)), None, generator(3))
        layers.append(parameters(agent.critic.quantiles))
    assert not torch.equal(layers[0], layers[1])
    assert torch.equal(layers[0], layers[2])


def earned(batch: Batch, portfolios: torch.Tensor) -> torch.Tensor:
    """What portfolios (batch, P, K) hold of the asset with the highest first feature, (batch, P)."""
    best = batch.states.assets[..., 0].argmax(dim=1)
    return portfolios.gather(-1, best.view(-1, 1, 1).expand(-1, portfolios.shape[1], 1))[..., 0]


def test_an_agent_learns_to_hold_what_pays_from_the_outcomes_of_several_actions(make_batch: MakeBatch) -> None:
    """One step; whatever is held of the asset with the highest first feature pays one. A random portfolio earns .2."""
    shape = NetworkShape(7, 4, 32, ((0,), (0, 2), (0, 3), (0, 4), (0, 5)))
    options = {"actor_lr": 1e-2, "critic_lr": 1e-2, "alpha_init": 0.01, "alpha_mode": "fixed", "cql_alpha": 0.5}
    agent, noise = make_agent(shape, **options), generator(3)
    agent.advantage_scale = 0.1  # the deviation of what random portfolios earn of such a state

    for update in range(90):
        batch = with_choices(make_batch(32, seed=update), seed=update)
        choices = batch.outcomes
        choices = choices._replace(rewards=earned(batch, choices.actions), terminated=torch.ones(32, 4))
        agent.update_sac(batch._replace(choices=choices), coverage(32), noise, update, total=90)
    test = make_batch(256, seed=10_000)
    with torch.no_grad():
        held = agent.policy(test.states).distribution.centre()
        before = make_agent(shape, **options).policy(test.states).distribution.centre()
    found = [earned(test, portfolios.unsqueeze(1)).mean().item() for portfolios in (before, held)]
    assert found[0] < 0.25
    assert found[1] > 0.75  # seen: .88
