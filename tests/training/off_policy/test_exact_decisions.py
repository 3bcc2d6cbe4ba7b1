"""Exact outcomes: each action earns what it would have earned alone; so do the actor's decisions, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from finflow.agent.batch import Batch, states_of
from finflow.agent.learners import soft_actor_critic
from finflow.agent.learners.soft_actor_critic import Coefficients, policy_losses
from finflow.env.decision_process import resumed_state
from finflow.env.portfolio_state import rows_of
from finflow.training.data.replay import make_batch
from finflow.training.off_policy.exact_decisions import ACTIONS, compared_actions, counterfactual_batch
from finflow.training.off_policy.group_update import Ahead, Start, look_ahead
from finflow.training.off_policy.learners import Learner
from tests.training.off_policy.small_learners import CPU, MIDDLE, SCALE, Desk, desk_of
from tests.training.whole_trainings import Make

MakeDesk = Callable[..., Desk]
COUNT, STATES = 16, 6


@pytest.fixture(scope="module")
def plain(shared: Make) -> Desk:
    return desk_of(shared(bcell__mirrored__weight=0.0))


@pytest.fixture(scope="module")
def mirrored(shared: Make) -> Desk:
    return desk_of(shared(bcell__mirrored__weight=0.3))


def compared(desk: Desk) -> tuple[dict[str, Tensor], Batch]:
    """Rows of the behaviour's data, and the same states with several actions."""
    learner = desk.learners.everyone[0]
    rows = learner.behaviour.draw(STATES, torch.Generator().manual_seed(3))
    policy, portfolios = learner.agent.policy, learner.portfolios
    batch, own = counterfactual_batch(desk.market, rows, policy, portfolios.rng, learner.noise, portfolios.mirror, 0.0)
    with torch.no_grad():
        assert torch.equal(own.location, policy(batch.states).distribution.location)
    return rows, batch


def test_each_action_earns_what_the_environment_pays_for_it_alone(plain: Desk) -> None:
    """Rewards are float32 differences of log returns in units of .01: within 1e-4; portfolios within 1e-5."""
    (rows, batch), process = compared(plain), plain.market.process
    assert batch.choices is not None
    actions, rewards, terminated, following = batch.choices
    assert actions.shape == (STATES, ACTIONS, process.n_weights)
    state = resumed_state(process, rows["bar"].numpy(), rows["portfolio"].double().numpy())
    reference = plain.market.units.reference[rows["bar"]].double().numpy()
    portfolios = following.portfolio.view(STATES, ACTIONS, -1)
    for place in range(ACTIONS):
        for row in range(STATES):
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
    logged = make_batch(rows, plain.market.tensors, plain.market.units)
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
    torch.testing.assert_close(actions.sum(dim=-1), torch.ones(STATES, ACTIONS - 1))
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


# --- decisions in a row


@pytest.fixture
def desk(tiny: Make) -> MakeDesk:
    """Learners whose critics tell portfolios apart: initial ones value all alike."""

    def make(**keys: object) -> Desk:
        made = desk_of(tiny(**{"bcell__mirrored__weight": 0.0, "bcell__hidden_dim": 32, **keys}))
        for one in made.learners.everyone:
            noise = torch.Generator().manual_seed(4)
            with torch.no_grad():
                one.agent.critic.mean.weight.normal_(generator=noise)
        return made

    return make


def start_of(desk: Desk, learner: Learner, seed: int = 3) -> Start:
    may_start = torch.from_numpy(desk.learners.everyone[0].portfolios.may_start)
    rows = learner.behaviour.draw(COUNT, torch.Generator().manual_seed(seed), may_start)
    return Start.of(desk.market, learner, desk.market.resumed(rows), desk.config)


def objective(desk: Desk, start: Start) -> Ahead:
    (ahead,) = look_ahead(desk.market, desk.learners.everyone[:1], [start], MIDDLE, desk.config)
    return ahead


def without_entropy(desk: Desk) -> None:
    with torch.no_grad():
        desk.learners.everyone[0].agent.log_alpha.fill_(-100.0)


def played(desk: Desk, start: Start) -> tuple[list[Tensor], Any]:
    """Scaled rewards of the same decisions in NumPy's own ledger, and the state at the end."""
    policy, process, units = desk.learners.everyone[0].agent.policy, desk.market.process, desk.market.units
    state, rewards = start.state, []
    for h in range(desk.config.bcell.expansion):
        with torch.no_grad():
            distribution = policy(states_of(process.observe(state), CPU)).distribution
            action = distribution.sample(start.noise[h].unsqueeze(1))[0][:, 0]
        step = process.step(state, action.double().numpy())
        rewards.append(units.scaled(torch.from_numpy(step.reward).float(), torch.from_numpy(state.bar)))
        state = step.state
    return rewards, state


@pytest.mark.parametrize("horizon", [5, 0])
def test_rewards_ahead_are_the_environment_s_and_end_in_the_critics_value(desk: MakeDesk, horizon: int) -> None:
    """The same drawn actions, step by step; ``gamma^H min_e Q_e`` of the last state and a drawn action.

    Float32 decisions differ by 1e-7, in units of .01: to 1e-3 of sigma_A. The critics are told the same, by the target
    critics with their spread.
    """
    made = desk(bcell__expansion=horizon, env__max_weight=0.5, env__no_trade_band=0.001)
    without_entropy(made)
    learner, gamma = made.learners.everyone[0], made.config.bcell.gamma
    agent = learner.agent
    with torch.no_grad():
        agent.target_critic.mean.weight.mul_(1.5)  # as they are not the critics themselves
    start = start_of(made, learner)
    rewards, state = played(made, start)
    states = states_of(made.market.process.observe(state), CPU)
    with torch.no_grad():
        action = agent.policy(states).distribution.sample(start.noise[horizon].unsqueeze(1))[0]
        value, told = (
            part.value(part.encode(states), states, action, parts)
            for part, parts in ((agent.critic, 0), (agent.target_critic, 1))
        )
    worst = value.mean.min(dim=0).values[:, 0]
    unit = max(horizon, 1) * agent.advantage_scale
    found = objective(made, start)
    earned = sum(reward * gamma**h for h, reward in enumerate(rewards)) + torch.zeros(COUNT)
    assert found.earned.item() == pytest.approx(float(earned.mean()) / unit, abs=1e-3)
    assert found.end.item() == pytest.approx(gamma**horizon * worst.mean().item() / unit, rel=1e-4, abs=1e-4)
    assert worst.std() > 0.01
    if horizon > 0:
        assert abs(float(earned.mean())) / unit > 0.05
        assert found.expansion is not None
        expected = earned + gamma**horizon * told.mean.min(dim=0).values[:, 0]
        torch.testing.assert_close(found.expansion.value, expected.float(), rtol=1e-4, atol=1e-3)
        spread = gamma**horizon * told.spread[:, :, 0]
        torch.testing.assert_close(found.expansion.spread, spread, rtol=1e-4, atol=1e-4)
        assert found.expansion.weight == 1 / horizon**2
        assert not found.expansion.value.requires_grad


@pytest.mark.parametrize("measure", ["neutral", "cvar"])
def test_without_decisions_ahead_it_is_soft_actor_critic_s_objective(desk: MakeDesk, measure: str) -> None:
    """The same states and noise: the published loss of the policy with the sign turned, and its gradient.

    Sums in another order: 1e-4 of the largest slope.
    """
    made = desk(bcell__expansion=0, bcell__risk_measure=measure)
    learner = made.learners.everyone[0]
    agent = learner.agent
    rows = learner.behaviour.draw(COUNT, torch.Generator().manual_seed(3))
    start = Start.of(made.market, learner, made.market.resumed(rows), made.config)
    batch = make_batch(rows, made.market.tensors, made.market.units)
    coefficients = Coefficients.of(agent, batch.actions, batch.states, MIDDLE)
    encoding = agent.critic.encode(batch.states)
    loss, temperature, metrics = policy_losses(agent, batch, start.noise[0], coefficients, MIDDLE, encoding, None)
    ahead = objective(made, start)
    whole = (ahead.earned + ahead.end) * agent.advantage_scale
    assert -whole.item() == pytest.approx(metrics["actor_loss"].item(), rel=1e-4, abs=1e-5)
    assert ahead.temperature.item() == pytest.approx(temperature.item(), rel=1e-4)
    parameters = list(agent.policy.parameters())
    ours, theirs = (
        torch.cat(
            [slope.flatten() for slope in torch.autograd.grad(one, parameters, allow_unused=True) if slope is not None]
        )
        for one in (-whole, loss)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
    assert theirs.abs().max() > 1e-4


@pytest.mark.parametrize("part", ["earned", "end"])
def test_gradients_through_ledger_and_later_decisions_are_those_of_finite_differences(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Central differences in the trade rate's bias, 3 % for their curvature.

    Without the portfolio's part in the value at the end its slope is another.
    """
    made = desk(bcell__expansion=4)
    without_entropy(made)
    bias, start = made.learners.everyone[0].agent.policy.trade.bias, start_of(made, made.learners.everyone[0])

    def slope() -> float:
        (found,) = torch.autograd.grad(getattr(objective(made, start), part), bias)
        return float(found[0])

    whole, change, values = slope(), 0.02, []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            bias[0] += sign * change
        values.append(getattr(objective(made, start), part).item())
        with torch.no_grad():
            bias[0] -= sign * change
    assert whole == pytest.approx((values[0] - values[1]) / (2.0 * change), rel=0.03)
    linearised = soft_actor_critic.linearised
    monkeypatch.setattr(soft_actor_critic, "linearised", lambda f, held, action: linearised(f, held.detach(), action))
    assert (abs(slope() - whole) > 0.1 * abs(whole)) == (part == "end")


def test_mirrored_bars_are_mixed_into_both_parts_by_their_weight(desk: MakeDesk) -> None:
    """Linear in the weight, to float32's 1e-3 of sigma_A; the noise there has the opposite sign."""
    made = desk(bcell__mirrored__weight=0.5)
    without_entropy(made)
    portfolios = made.learners.everyone[0].portfolios
    start = start_of(made, made.learners.everyone[0])
    assert torch.equal(start.noise[:, COUNT:], -start.noise[:, :COUNT])
    found = {}
    for weight in (0.0, 0.25, 1.0):
        portfolios.mirror = portfolios.mirror._replace(weight=weight)
        found[weight] = objective(made, start)
    for part in ("earned", "end"):
        history, mixed, mirror = (getattr(found[weight], part).item() for weight in (0.0, 0.25, 1.0))
        assert mixed == pytest.approx(0.75 * history + 0.25 * mirror, abs=1e-3)
    assert abs(found[0.0].earned.item() - found[1.0].earned.item()) > 0.05
