"""The actor's objective: the environment's own rewards, the critics' value at the end, and gradients through both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from finflow.agent.batch import states_of
from finflow.agent.gradient_steps import parameters_of
from finflow.agent.learners import soft_actor_critic
from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.learners.soft_actor_critic import Coefficients, policy_losses
from finflow.training.data.rollouts import as_tensors
from finflow.training.data.training_data import prepare
from finflow.training.off_policy.counterfactuals import logged_batch
from finflow.training.off_policy.exact_decisions import Ahead, Start, look_ahead
from finflow.training.off_policy.learners import Learner
from tests.training.off_policy.small_learners import CPU, MIDDLE, Desk, desk_of, market_of
from tests.training.whole_trainings import Make

MakeDesk = Callable[..., Desk]
COUNT = 16


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
    rows = desk.material.offline[0].draw(COUNT, torch.Generator().manual_seed(seed), desk.material.may_start[0])
    return Start.of(desk.market, learner, learner.portfolios.resumed(rows), desk.config)


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


def test_rewards_ahead_are_those_of_the_environment(desk: MakeDesk) -> None:
    """The same drawn actions, step by step; float32 decisions differ by 1e-7, in units of .01: to 1e-3 of sigma_A."""
    made = desk(bcell__expansion=5, env__max_weight=0.5, env__no_trade_band=0.001)
    without_entropy(made)
    start = start_of(made, made.learners.everyone[0])
    rewards, _ = played(made, start)
    gamma, unit = made.config.bcell.gamma, 5 * made.learners.everyone[0].agent.advantage_scale
    expected = sum(float(reward.mean()) * gamma**h for h, reward in enumerate(rewards)) / unit
    assert objective(made, start).earned.item() == pytest.approx(expected, abs=1e-3)
    assert abs(expected) > 0.05


def test_decisions_end_in_the_critics_value(desk: MakeDesk) -> None:
    """``gamma^H min_e Q_e`` of the last state and a drawn action, to float32's 1e-4."""
    for horizon in (3, 0):
        made = desk(bcell__expansion=horizon)
        without_entropy(made)
        learner = made.learners.everyone[0]
        start = start_of(made, learner)
        _, state = played(made, start)
        states = states_of(made.market.process.observe(state), CPU)
        with torch.no_grad():
            action = learner.agent.policy(states).distribution.sample(start.noise[horizon].unsqueeze(1))[0]
            critic = learner.agent.critic
            value = critic.value(critic.encode(states), states, action, 0).mean.min(dim=0).values[:, 0]
        unit = max(horizon, 1) * learner.agent.advantage_scale
        found = objective(made, start)
        expected = made.config.bcell.gamma**horizon * value.mean().item() / unit
        assert found.end.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert value.std() > 0.01


def test_critics_are_told_what_the_decisions_earned_and_where_they_ended(desk: MakeDesk) -> None:
    """Discounted rewards and the target critics' value, spread and all, to float32's 1e-4."""
    made = desk(bcell__expansion=3)
    learner = made.learners.everyone[0]
    with torch.no_grad():
        learner.agent.target_critic.mean.weight.mul_(1.5)  # as they are not the critics themselves
    start = start_of(made, learner)
    rewards, state = played(made, start)
    states = states_of(made.market.process.observe(state), CPU)
    with torch.no_grad():
        action = learner.agent.policy(states).distribution.sample(start.noise[3].unsqueeze(1))[0]
        target = learner.agent.target_critic
        ended = target.value(target.encode(states), states, action, 1)
    gamma, found = made.config.bcell.gamma, objective(made, start).expansion
    earned = sum(reward * gamma**h for h, reward in enumerate(rewards))
    assert found is not None
    expected = earned + gamma**3 * ended.mean.min(dim=0).values[:, 0]
    torch.testing.assert_close(found.value, expected.float(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found.spread, gamma**3 * ended.spread[:, :, 0], rtol=1e-4, atol=1e-4)
    assert found.references is None
    assert found.weight == 1 / 9
    assert not found.value.requires_grad


@pytest.mark.parametrize("measure", ["neutral", "cvar"])
def test_without_decisions_ahead_it_is_soft_actor_critic_s_objective(desk: MakeDesk, measure: str) -> None:
    """The same states and noise: the published loss of the policy with the sign turned, and its gradient.

    Sums in another order: 1e-4 of the largest slope.
    """
    made = desk(bcell__expansion=0, bcell__risk_measure=measure)
    learner = made.learners.everyone[0]
    agent = learner.agent
    rows = made.material.offline[0].draw(COUNT, torch.Generator().manual_seed(3))
    start = Start.of(made.market, learner, learner.portfolios.resumed(rows), made.config)
    batch = logged_batch(made.market, rows, learner.noise, 0.0)
    coefficients = Coefficients.of(agent, batch.actions, batch.states, MIDDLE)
    encoding = agent.critic.encode(batch.states)
    losses = policy_losses(agent, batch, start.noise[0], coefficients, MIDDLE, encoding, None)
    ahead = objective(made, start)
    whole = (ahead.earned + ahead.end) * agent.advantage_scale
    assert -whole.item() == pytest.approx(losses.metrics["actor_loss"].item(), rel=1e-4, abs=1e-5)
    assert ahead.temperature.item() == pytest.approx(losses.temperature.item(), rel=1e-4)
    parameters = parameters_of(agent.policy_optimiser)
    ours, theirs = (
        torch.cat(
            [slope.flatten() for slope in torch.autograd.grad(one, parameters, allow_unused=True) if slope is not None]
        )
        for one in (-whole, losses.loss)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
    assert theirs.abs().max() > 1e-4


def slope_of_rate(desk: Desk, start: Start) -> float:
    """Slope of the value at the end in the bias of the trade rate."""
    bias = desk.learners.everyone[0].agent.policy.trade.bias
    (slope,) = torch.autograd.grad(objective(desk, start).end, bias)
    return float(slope[0])


def test_the_value_at_the_end_reaches_the_policy_through_what_is_held(
    desk: MakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Central differences of the value itself, 3 % for their curvature; without the portfolio's part it is another."""
    made = desk(bcell__expansion=4)
    without_entropy(made)
    bias, start = made.learners.everyone[0].agent.policy.trade.bias, start_of(made, made.learners.everyone[0])
    slope, change, ends = slope_of_rate(made, start), 0.02, []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            bias[0] += sign * change
        ends.append(objective(made, start).end.item())
        with torch.no_grad():
            bias[0] -= sign * change
    assert slope == pytest.approx((ends[0] - ends[1]) / (2.0 * change), rel=0.03)
    linearised = soft_actor_critic.linearised
    monkeypatch.setattr(soft_actor_critic, "linearised", lambda f, held, action: linearised(f, held.detach(), action))
    assert abs(slope_of_rate(made, start) - slope) > 0.1 * abs(slope)


def test_mirrored_bars_are_mixed_into_both_parts_by_their_weight(desk: MakeDesk) -> None:
    """Linear in the weight, to float32's 1e-3 of sigma_A; the noise there has the opposite sign."""
    made = desk(bcell__mirrored__weight=0.5, bcell__mirrored__scaled=False, bcell__mirrored__regimes=False)
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


def test_learners_side_by_side_have_the_objectives_that_each_has_alone(desk: MakeDesk) -> None:
    """Their sums are taken in batches of another size: to 1e-4 of sigma_A."""
    made = desk(out_of_fold__blocks=2)
    everyone = made.learners.everyone
    starts = [start_of(made, one, seed) for seed, one in enumerate(everyone)]
    together = look_ahead(made.market, everyone, starts, MIDDLE, made.config)
    assert len({one.earned.item() for one in together}) == 3
    for own, learner, start in zip(together, everyone, starts, strict=True):
        (alone,) = look_ahead(made.market, [learner], [start], MIDDLE, made.config)
        assert own.earned.item() == pytest.approx(alone.earned.item(), abs=1e-4)
        assert own.end.item() == pytest.approx(alone.end.item(), rel=1e-4, abs=1e-4)
        assert own.temperature.item() == pytest.approx(alone.temperature.item(), rel=1e-4)


def test_the_gradient_of_rewards_is_that_of_finite_differences(tiny: Make) -> None:
    """Through ledger, costs, drift and the later decisions; of the trade rate's bias, in double precision."""
    config = tiny()
    training_data = prepare(config)
    market, process = market_of(training_data), training_data.learning
    policy = make_policy(training_data.shape, config.bcell, torch.Generator().manual_seed(2))
    start = as_tensors(process.start(np.arange(process.first_bar, process.first_bar + 60, 6)), CPU)

    def value(change: float) -> Tensor:
        with torch.no_grad():
            policy.trade.bias[0] += change
        found = market.roll_out(policy, market.read(policy, start, 6), start, 6).rewards.sum()
        with torch.no_grad():
            policy.trade.bias[0] -= change
        return found

    (slope,) = torch.autograd.grad(value(0.0), policy.trade.bias)
    step = 0.05
    differences = (value(step) - value(-step)).item() / (2.0 * step)
    assert slope[0].item() == pytest.approx(differences, rel=0.02)  # decisions are float32, and the curve bends


def test_a_closed_trade_rate_still_has_a_gradient_and_no_nan(desk: MakeDesk) -> None:
    """From a rate of 1e-6, at which its own sigmoid has no slope to speak of: it is raised to 1e-3 and can rise."""
    made = desk(bcell__expansion=4)
    policy = made.learners.everyone[0].agent.policy
    with torch.no_grad():
        policy.trade.bias[0] = float(np.log(1e-6))
    start = start_of(made, made.learners.everyone[0])
    weights = np.full_like(start.state.weights, 0.2)
    ahead = objective(made, start._replace(state=replace(start.state, weights=weights)))
    parts = (ahead.earned, ahead.end, *ahead.metrics.values())
    assert all(bool(part.isfinite()) for part in parts)
    for part in (ahead.earned, ahead.end):
        slopes = torch.autograd.grad(part, [policy.trade.bias, policy.score.weight], retain_graph=True)
        assert all(bool(slope.isfinite().all()) for slope in slopes)
    decision = policy(states_of(made.market.process.observe(start.state), CPU))
    assert decision.trade_rate.min().item() == pytest.approx(1e-3)
    (slope,) = torch.autograd.grad(decision.trade_rate.sum(), policy.trade.bias, retain_graph=True)
    assert slope[0].item() == 0.0  # a gradient that would close it further does not pass
    (slope,) = torch.autograd.grad(-decision.trade_rate.sum(), policy.trade.bias)
    assert slope[0].item() < -0.01 * COUNT
