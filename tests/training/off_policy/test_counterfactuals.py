"""Actions of one state on the same prices: each earns what it would have earned alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from finflow.agent.batch import Batch
from finflow.env.decision_process import resumed_state
from finflow.env.portfolio_state import rows_of
from finflow.training.off_policy.counterfactuals import ACTIONS, compared_actions, counterfactual_batch, logged_batch
from tests.training.off_policy.small_learners import SCALE, Desk, desk_of
from tests.training.whole_trainings import Make

COUNT = 6


@pytest.fixture(scope="module")
def plain(shared: Make) -> Desk:
    return desk_of(shared(bcell__mirrored__weight=0.0))


@pytest.fixture(scope="module")
def mirrored(shared: Make) -> Desk:
    return desk_of(shared(bcell__mirrored__weight=0.3))


def compared(desk: Desk) -> tuple[dict[str, Tensor], Batch]:
    """Rows of the behaviour's data, and the same states with several actions."""
    learner, rows = desk.learners.everyone[0], desk.material.offline[0].draw(COUNT, torch.Generator().manual_seed(3))
    batch, own = counterfactual_batch(desk.market, rows, learner.portfolios.resumed(rows), learner.comparison, 0.0)
    with torch.no_grad():
        assert torch.equal(own.location, learner.agent.policy(batch.states).distribution.location)
    return rows, batch


def test_each_action_earns_what_the_environment_pays_for_it_alone(plain: Desk) -> None:
    """Rewards are float32 differences of log returns in units of .01: within 1e-4; portfolios within 1e-5."""
    (rows, batch), process = compared(plain), plain.market.process
    assert batch.choices is not None
    actions, rewards, terminated, following = batch.choices
    assert actions.shape == (COUNT, ACTIONS, process.n_weights)
    state = resumed_state(process, rows["bar"].numpy(), rows["portfolio"].double().numpy())
    reference = plain.market.units.reference[rows["bar"]].double().numpy()
    portfolios = following.portfolio.view(COUNT, ACTIONS, -1)
    for place in range(ACTIONS):
        for row in range(COUNT):
            alone = rows_of(state, slice(row, row + 1))
            step = process.step(alone, actions[row, place : place + 1].double().numpy())
            expected = (step.reward - reference[row]) / SCALE
            assert rewards[row, place].item() == pytest.approx(expected.item(), abs=1e-4)
            after = process.observed_portfolio(step.state)[0]
            np.testing.assert_allclose(portfolios[row, place].numpy(), after, atol=1e-5)
    assert not terminated.any()
    assert (rewards.std(dim=1) > 1e-3).all()  # the actions differ


def test_the_stored_action_comes_first_with_its_state_and_the_reward_that_was_stored(plain: Desk) -> None:
    """At costs that do not depend on wealth, and up to the differential Sharpe ratio's own lag: within 2 %."""
    rows, batch = compared(plain)
    logged = logged_batch(plain.market, rows, plain.learners.everyone[0].noise, 0.0)
    assert batch.choices is not None
    assert logged.choices is None
    assert torch.equal(batch.choices.actions[:, 0], rows["action"])
    assert torch.equal(batch.actions, rows["action"])
    torch.testing.assert_close(batch.choices.rewards[:, 0], logged.rewards, rtol=0.02, atol=0.02)
    assert torch.equal(logged.rewards, batch.rewards)
    outcomes = logged.outcomes
    assert torch.equal(outcomes.rewards[:, 0], logged.rewards)
    assert torch.equal(outcomes.actions[:, 0], rows["action"])
    assert torch.equal(outcomes.next_states.portfolio, rows["next_portfolio"])
    torch.testing.assert_close(batch.states.portfolio, rows["portfolio"], atol=1e-5, rtol=1e-5)
    assert torch.equal(batch.states.market, plain.market.tensors.market[rows["bar"] - plain.market.tensors.lag])
    assert torch.equal(batch.choices.next_states.market, batch.next_states.market)
    assert batch.choices.next_states.group_size == ACTIONS


def test_holding_the_policy_s_own_and_moves_are_compared(plain: Desk) -> None:
    states = compared(plain)[1].states
    with torch.no_grad():
        own = plain.learners.everyone[0].agent.policy(states).distribution.centre()
    actions = compared_actions(own, states, ACTIONS - 1, np.random.default_rng(0))
    assert torch.equal(actions[:, 0], states.weights)
    assert torch.equal(actions[:, 1], own)
    torch.testing.assert_close(actions.sum(dim=-1), torch.ones(COUNT, ACTIONS - 1))
    assert (actions >= 0.0).all()
    moves = (actions[:, 2:] - states.weights.unsqueeze(1)).abs().sum(dim=-1)
    assert moves.min() > 1e-4
    assert moves.max() > 0.3


def test_rewards_of_mirrored_bars_are_mixed_by_their_weight(mirrored: Desk) -> None:
    """Weights of 0 and 1 give the two, and .3 lies between them: in float32, to 1e-4 of a day's deviation."""
    portfolios, found = mirrored.learners.everyone[0].portfolios, []
    before = portfolios.mirror
    assert before.offset == len(mirrored.data.learning.growth)
    for weight in (0.0, 1.0, 0.3):
        portfolios.mirror, portfolios.rng = before._replace(weight=weight), np.random.default_rng(5)
        _, batch = compared(mirrored)
        assert batch.choices is not None
        found.append(batch.choices.rewards)
    portfolios.mirror = before
    history, mirror, mixed = found
    torch.testing.assert_close(mixed, 0.7 * history + 0.3 * mirror, rtol=1e-4, atol=1e-4)
    assert (history - mirror).abs().mean() > 0.1
