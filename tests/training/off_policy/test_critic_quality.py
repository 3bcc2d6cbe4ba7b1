"""How well critics know what moves are worth: slopes, their errors, and the unit of decisions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from finflow.agent.networks.decision import FAMILY_RATE
from finflow.env.coverage import draw_coverage
from finflow.training.data.rollouts import as_tensors
from finflow.training.off_policy import exact_decisions
from finflow.training.off_policy.exact_decisions import (
    ACTIONS as COMPARED,
    ExactReturns,
    compare_advantages,
    critics_values,
    exact_returns,
    measure_decision_scale,
    measure_returns,
)
from tests.training.off_policy.small_learners import CPU, SCALE, desk_of, market_of
from tests.training.whole_trainings import Make

STATES, ACTIONS = 2000, 6


def exact_of(returns: torch.Tensor) -> ExactReturns:
    bars = np.sort(np.random.default_rng(0).integers(0, 3000, len(returns)))
    return ExactReturns(bars, torch.zeros(len(returns), 1), torch.zeros(*returns.shape, 2), returns)


def test_critics_that_exaggerate_have_a_slope_below_one() -> None:
    """Twice the truth, and luck on top of what really was: the slope is a half, within its standard error."""
    noise = torch.Generator().manual_seed(0)
    truth = torch.randn(STATES, ACTIONS, generator=noise)
    luck = 5.0 * torch.randn(STATES, ACTIONS, generator=noise)
    found = compare_advantages(2.0 * truth, exact_of(truth + luck))
    assert found["slope"] == pytest.approx(0.5, abs=4.0 * found["slope_error"])
    assert 0.0 < found["slope_error"] < 0.05  # sqrt(25 / (4 * 2000 * 5)) is .025


def test_shared_luck_counts_once() -> None:
    """Where neighbouring states have the same luck, errors are as large as if there were only as many blocks."""
    noise = torch.Generator().manual_seed(1)
    said = torch.randn(1, ACTIONS, generator=noise).repeat(STATES, 1)
    apart = torch.randn(STATES, ACTIONS, generator=noise)
    shared = torch.randn(STATES // 50, ACTIONS, generator=noise).repeat_interleave(50, dim=0)
    alone, together = (compare_advantages(said, exact_of(luck))["slope_error"] for luck in (apart, shared))
    assert together > 3.0 * alone  # sqrt(50) is 7; twenty blocks estimate it within a fifth


def test_returns_are_those_of_the_policy_that_follows(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Discounted rewards of an action, then of the policy's centre, in the process itself: float32, to 1e-3."""
    desk = desk_of(tiny(bcell__mirrored__weight=0.0))
    process, policy = desk.market.process, desk.learners.everyone[0].agent.policy
    rng = np.random.default_rng(0)
    state = process.start(np.array([process.first_bar + 3, process.first_bar + 40]), rng.dirichlet(np.ones(5), 2))
    actions = torch.from_numpy(rng.dirichlet(np.ones(5), (2, 3))).float()
    returns = exact_returns(desk.market, policy, as_tensors(state, CPU), actions, 6, 0.9)
    for place in range(3):
        account, expected = state, np.zeros(2)
        for h in range(6):
            target = actions[:, place].double().numpy()
            if h > 0:
                with torch.no_grad():
                    centre = policy(desk.market.states(as_tensors(account, CPU))).distribution.centre()
                target = centre.double().numpy()
            step = process.step(account, target)
            expected += 0.9**h * (step.reward - desk.market.units.reference[account.bar].numpy()) / SCALE
            account = step.state
        np.testing.assert_allclose(returns[:, place].numpy(), expected, atol=1e-3)
    assert (returns.std(dim=1) > 0.01).all()
    monkeypatch.setattr(exact_decisions, "WEIGHTS_AT_ONCE", 1)  # with many assets states are followed a few at a time
    torch.testing.assert_close(exact_returns(desk.market, policy, as_tensors(state, CPU), actions, 6, 0.9), returns)


def test_critics_are_asked_about_the_same_actions(tiny: Make) -> None:
    """The mean of the ensemble, in the states in which the returns were measured."""
    desk = desk_of(tiny(bcell__mirrored__weight=0.0))
    agent, first = desk.learners.everyone[0].agent, desk.market.process.first_bar
    with torch.no_grad():
        agent.critic.mean.weight.normal_(generator=torch.Generator().manual_seed(2))
    exact = measure_returns(desk.market, agent.policy, np.arange(first, first + 5), desk.config, 9)
    values = critics_values(desk.market, agent, exact)
    states = desk.market.tensors.states(torch.from_numpy(exact.bars[3:4]), exact.portfolios[3:4])
    with torch.no_grad():
        each = agent.critic.value(agent.critic.encode(states), states, exact.actions[3:4], 0).mean
    torch.testing.assert_close(values[3:4], each.mean(dim=0), rtol=1e-4, atol=1e-5)
    assert values.std(dim=1).min() > 1e-3


def test_decisions_are_priced_by_the_ledger(tiny: Make) -> None:
    """Holding, and moves of a ninth of the way, over one bar: their rewards are those of the decision process."""
    desk = desk_of(tiny(bcell__mirrored__weight=0.0))
    market, process = desk.market, desk.market.process
    bars = np.arange(process.first_bar, process.first_bar + 30)
    measured = measure_returns(market, desk.learners.everyone[0].agent.policy, bars, desk.config, 9, decisions=True)
    n_weights = process.n_weights
    held = measured.portfolios[:, :n_weights]
    torch.testing.assert_close(measured.actions[:, 0], held)
    reached = held.unsqueeze(1) + (measured.actions[:, 1:] - held.unsqueeze(1)) / FAMILY_RATE
    assert reached.min() > -1e-5  # a portfolio lies at the end of the way
    torch.testing.assert_close(reached.sum(dim=-1), torch.ones(30, COMPARED - 1))
    rng = np.random.default_rng(np.random.SeedSequence([desk.config.train.seed, 81, 9]))
    weights, _ = draw_coverage(rng, 30, n_weights)
    for place in range(COMPARED):
        step = process.step(process.start(bars, weights), measured.actions[:, place].double().numpy())
        rewards = market.units.scaled(torch.from_numpy(step.reward).float(), torch.from_numpy(bars))
        torch.testing.assert_close(measured.returns[:, place], rewards, rtol=1e-4, atol=1e-5)


def test_sigma_a_is_a_number_of_the_market_alone(tiny: Make) -> None:
    """In twice the unit of rewards it is half as large, and no policy changes it."""
    desk = desk_of(tiny(bcell__mirrored__weight=0.0))
    policy, data = desk.learners.everyone[0].agent.policy, desk.data
    bars, found = [data.learning.decision_bars(data.split.train)], []
    for scale in (0.01, 0.02):
        found.append(measure_decision_scale(market_of(data, scale), policy, desk.config, bars))
        torch.nn.init.normal_(policy.gate.weight, generator=torch.Generator().manual_seed(1))
    assert 0.01 < found[0] < 0.3  # a day's deviation is near 1
    assert found[1] == pytest.approx(0.5 * found[0], rel=1e-4)
