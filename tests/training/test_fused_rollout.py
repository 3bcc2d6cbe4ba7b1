"""The compiled loops of a rollout are its steps: values, and gradients for all that is learned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.decision import Blend, MarketReading
from finflow.agent.networks.policy import ExpertPolicy, blended
from finflow.agent.networks.policy_ensemble import BatchedPolicies
from finflow.config import CostsConfig
from finflow.env.decision_process import RUIN, DecisionProcess, with_growths
from finflow.env.portfolio_state import PortfolioState
from finflow.env.reward_context import ChosenReward
from finflow.training.data import rollouts
from finflow.training.data.fused_rollout import can_follow, follow
from finflow.training.data.rollouts import as_tensors
from finflow.training.off_policy.group_update import _followed_steps, _stepped
from tests.env.conftest import EVERYTHING, build_process, random_prices
from tests.env.test_torch import LIMITS, made
from tests.training.off_policy.small_learners import CPU, desk_of
from tests.training.whole_trainings import Make

ASSETS, MEMBERS, BATCH, HORIZON = 5, 2, 3, 6
ROWS, K = MEMBERS * BATCH, ASSETS + 1


class Case:
    """Policies with weights that are easily moved, what they read, and portfolios: of the market or its mirror."""

    def __init__(self, seed: int, process: DecisionProcess, scale: float = 1.0) -> None:
        self.process = with_growths(process, [process.growth[::-1].copy()])
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        shape = NetworkShape(3, 1, 16, ((0,),) * 5)
        self.members = [ExpertPolicy(shape, generator).double() for _ in range(MEMBERS)]
        for one in self.members:
            with torch.no_grad():
                one.trade.weight.mul_(scale)
                one.trade.bias[0] -= 0.2 * scale
        width = self.members[0].trade.in_features
        aim = rng.dirichlet(np.full(K, 0.2 if scale > 1.0 else 1.0), (HORIZON, ROWS))
        self.aim = torch.from_numpy(aim).flatten(0, 1).requires_grad_()
        self.hidden = torch.from_numpy(rng.random((HORIZON * ROWS, width))).requires_grad_()
        weights = rng.dirichlet(np.full(K, 0.2 if scale > 1.0 else 1.0), ROWS)
        weights[0] = np.eye(K)[-1]  # all in cash
        bars = rng.integers(8, 20, ROWS)
        state = self.process.start(bars, weights)
        bars += len(process.growth) * (np.arange(ROWS) % 2)
        before, now = (state.objective * rng.uniform(0.8, 1.2, (ROWS, 3)) for _ in range(2))
        now[1:, 2] = before[1:, 2] = -rng.random(ROWS - 1) * 0.1
        now[1, 1] = now[1, 0] ** 2  # a variance under its floor
        parts = {"weights": state.weights, "wealth": state.wealth, "objective": now, "objective_before": before}
        self.state = PortfolioState(bars, **{name: torch.from_numpy(part) for name, part in parts.items()})
        self.noise = torch.from_numpy(rng.standard_normal((HORIZON, ROWS, ASSETS)))
        self.factors = [torch.from_numpy(rng.standard_normal(size)) for size in ((HORIZON, ROWS), (ROWS, K), (ROWS, 3))]

    @property
    def policies(self) -> BatchedPolicies:
        return BatchedPolicies(self.members)

    @property
    def reading(self) -> MarketReading:
        nothing = self.aim.new_zeros(len(self.aim), 5)
        return MarketReading(nothing.unsqueeze(-1), nothing, self.aim, self.hidden)

    def stepped(self) -> tuple[Tensor, Tensor, Tensor, PortfolioState]:
        """Rewards, log densities, mean turnover and the state at the end, one decision after the other."""
        policies, reading, state = self.policies, self.reading, self.state
        rewards, densities, turnover = [], [], []
        for h in range(HORIZON):
            portfolio = self.process.observed_portfolio(state)
            blank = portfolio.new_zeros(1, ASSETS, 1)
            rows = reading.rows(h * ROWS, (h + 1) * ROWS)
            distribution = policies.trade_toward(States(blank, blank[:, 0], portfolio), rows).distribution
            action, density = distribution.sample(self.noise[h].unsqueeze(1))
            step = self.process.step(state, action[:, 0])
            rewards.append(step.reward)
            densities.append(density[:, 0])
            turnover.append(step.turnover)
            state = step.state
        return torch.stack(rewards), torch.stack(densities), torch.stack(turnover).mean(dim=0), state

    def gradients(self, rewards: Tensor, density: Tensor, state: PortfolioState) -> list[Tensor]:
        """Gradients of a random sum of the outcome for everything that is learned."""
        reward_factor, weight_factor, state_factor = self.factors
        total = (100.0 * reward_factor * rewards).sum() + (reward_factor.flip(0) * density).sum()
        total = total + (weight_factor * state.weights).sum() + 100.0 * (state_factor * state.objective).sum()
        total = total + 100.0 * (state_factor.flip(0) * state.objective_before).sum()
        layers = [p for one in self.members for layer in (one.trade_hidden, one.trade) for p in layer.parameters()]
        return list(torch.autograd.grad(total, [self.aim, self.hidden, *layers]))


def assert_same(case: Case) -> None:
    """Values to 1e-12, gradients to 1e-9 of the largest: rounding adds up over the decisions."""
    assert can_follow(case.policies, case.process, case.reading)
    found = follow(case.process, case.policies, case.reading, case.state, HORIZON, case.noise)
    rewards, density, turnover, state = case.stepped()
    pairs = [(found.rewards, rewards), (found.log_density, density), (found.turnover, turnover)]
    pairs += [(getattr(found.state, name), value) for name, value in vars(state).items()]
    for ours, theirs in pairs:
        np.testing.assert_allclose(*(torch.as_tensor(one).detach() for one in (ours, theirs)), rtol=1e-12, atol=1e-12)
    ours, theirs = (
        case.gradients(*one) for one in ((found.rewards, found.log_density, found.state), (rewards, density, state))
    )
    for one, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 0.0
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), lag=st.integers(1, 2), scale=st.sampled_from([1.0, 30.0]))
def test_the_loops_are_the_steps(seed: int, lag: int, scale: float) -> None:
    """With penalties, in a crash, out of cash; at the larger scale with tiny weights, closed rates and log
    scales past their bounds.
    """
    assert_same(Case(seed, made(seed, execution_lag=lag), scale))


def test_they_are_without_penalties_and_with_high_costs() -> None:
    close = random_prices(bars=40, assets=ASSETS, deviation=0.05)
    assert_same(Case(3, build_process(close, 1e-4, commission_bps=900.0, slippage_bps=300.0)))


@pytest.mark.parametrize(
    "changed",
    [
        {"ragged": True},
        {"paying": True},
        {"execution_lag": 0},
        {"costs": EVERYTHING},
        *({name: value} for name, value in LIMITS.items()),
    ],
    ids=str,
)
def test_what_the_loops_do_not_know_goes_step_by_step(changed: dict[str, Any]) -> None:
    case = Case(1, made(1))
    assert can_follow(case.policies, case.process, case.reading)
    assert not can_follow(case.policies, made(1, **changed), case.reading)


def test_blends_and_listings_go_step_by_step() -> None:
    case = Case(1, made(1, costs=CostsConfig()))
    mixed = BatchedPolicies([blended(one, Blend(0.5, "equal-weight", (0, 1.0))) for one in case.members])
    listed = case.reading._replace(listed=torch.ones(HORIZON * ROWS, ASSETS, dtype=torch.bool))
    assert not can_follow(mixed, case.process, case.reading)
    assert not can_follow(case.policies, case.process, listed)
    assert not can_follow(case.members[0], case.process, case.reading)
    case.members[0].keeps_slope = True
    assert not can_follow(case.policies, case.process, case.reading)


def test_chosen_rewards_and_halts_go_step_by_step() -> None:
    case, close = Case(1, made(1)), random_prices(bars=40, assets=ASSETS)
    halted = build_process(close, fields={"halted": np.arange(ASSETS) + 0 * close > 3.0})
    assert can_follow(case.policies, build_process(close), case.reading)
    assert not can_follow(case.policies, halted, case.reading)
    case.process.reward = cast("ChosenReward", object())
    assert not can_follow(case.policies, case.process, case.reading)


@pytest.mark.parametrize("rows", [HORIZON - 1, 2 * HORIZON])
def test_noise_for_another_horizon_is_refused(rows: int) -> None:
    case = Case(1, made(1))
    with pytest.raises(ValueError, match="noise is of shape"):
        follow(case.process, case.policies, case.reading, case.state, HORIZON, case.noise.repeat(2, 1, 1)[:rows])


def test_in_training_they_stand_in_for_the_steps(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """To single precision, in which the policy's layers compute; some portfolios are ruined on the way."""
    desk, found = desk_of(tiny(out_of_fold__blocks=2)), []
    learner, market = desk.learners.everyone[0], desk.market
    policies, begun = BatchedPolicies([learner.agent.policy]), learner.portfolios.state
    begun = replace(begun, wealth=np.linspace(0.9, 1.1, len(begun.bar)) * RUIN * market.process.env.initial_capital)
    reading = market.read(learner.agent.policy, begun, HORIZON)
    noise = torch.randn(HORIZON, len(begun.bar), market.tensors.n_weights - 1, generator=learner.noise)
    assert can_follow(policies, market.process, reading)
    for decide in (lambda *_: True, lambda *_: False):
        monkeypatch.setattr(rollouts, "can_follow", decide)
        out = market.roll_out(policies, reading, as_tensors(begun, CPU), HORIZON, noise=noise)
        assert out.log_density is not None
        found.append([out.rewards, out.turnover, out.log_density, *vars(out.state).values()])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(
            torch.as_tensor(ours).detach(), torch.as_tensor(theirs).detach(), rtol=1e-4, atol=1e-5
        )
    with torch.no_grad():
        steps = [step(market.process, policies, reading, begun, noise)[1] for step in (_followed_steps, _stepped)]
    ours, theirs = steps
    assert 0.0 < ours["alive"].mean() < 1.0
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
