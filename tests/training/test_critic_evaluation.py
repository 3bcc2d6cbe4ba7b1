"""How well critics know what moves are worth: slopes, their errors, and the scale that sets them right."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from finflow.agent.learners.pathwise import calibration
from finflow.agent.networks.decision import FAMILY_RATE
from finflow.config import Config
from finflow.env.coverage import draw_coverage
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.phases.critic_evaluation import (
    DECISIONS,
    GROUPS,
    ExactReturns,
    calibrate,
    compare_advantages,
    critics_values,
    measure_decision_scale,
    measure_returns,
)
from finflow.training.trainer import FinFlowTrainer

CPU = torch.device("cpu")
STATES, ACTIONS = 2000, 6


def exact_of(returns: torch.Tensor) -> ExactReturns:
    bars = np.sort(np.random.default_rng(0).integers(0, 3000, len(returns)))
    return ExactReturns(bars, torch.zeros(len(returns), 1), None, torch.zeros(*returns.shape, 2), returns)


def test_critics_that_exaggerate_have_a_slope_below_one() -> None:
    """Twice the truth, and luck on top of what really was: the slope is a half, within its standard error."""
    noise = torch.Generator().manual_seed(0)
    truth = torch.randn(STATES, ACTIONS, generator=noise)
    luck = 5.0 * torch.randn(STATES, ACTIONS, generator=noise)
    found = compare_advantages(2.0 * truth, exact_of(truth + luck))
    assert found.slope == pytest.approx(0.5, abs=4.0 * found.slope_error)
    assert 0.0 < found.slope_error < 0.05  # sqrt(25 / (4 * 2000 * 5)) is .025
    assert len(found.critics) == GROUPS
    assert found.critics == sorted(found.critics)
    assert found.exact[-1] > found.exact[0] + 4.0 * (found.error[0] + found.error[-1])


def test_shared_luck_counts_once() -> None:
    """Where neighbouring states have the same luck, errors are as large as if there were only as many blocks."""
    noise = torch.Generator().manual_seed(1)
    said = torch.randn(1, ACTIONS, generator=noise).repeat(STATES, 1)
    apart = torch.randn(STATES, ACTIONS, generator=noise)
    shared = torch.randn(STATES // 50, ACTIONS, generator=noise).repeat_interleave(50, dim=0)
    alone, together = (compare_advantages(said, exact_of(luck)).slope_error for luck in (apart, shared))
    assert together > 3.0 * alone  # sqrt(50) is 7; twenty blocks estimate it within a fifth


def test_calibrated_critics_have_a_slope_of_one(tiny: Callable[..., Config]) -> None:
    config = tiny(
        online__algorithm="rollouts",
        bcell__rollouts__horizon=4,
        bcell__rollouts__blocks=1,
        bcell__rollouts__critic_updates=20,
        train__offline_training_epochs=1,
        train__generalisation=False,
    )
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    trainer.finetune()
    process, agent = trainer.training_data.learning.process, trainer.agent
    units = RewardUnits.of(process, 0.01, "equal-weight", CPU)
    market = RolloutMarket(process, MarketTensors.of(process, CPU), units)
    bars = np.arange(process.first_bar, process.first_bar + 200)
    exact = measure_returns(market, agent.deployed, bars, config, 9)
    agent.critic.mean.weight.data.normal_(generator=torch.Generator().manual_seed(2))  # critics that know nothing
    if float(calibration(critics_values(market, agent, exact), exact.returns).slope) < 0.0:
        agent.critic.mean.weight.data.neg_()
    before = critics_values(market, agent, exact)
    calibrate(market, agent, exact)
    after = critics_values(market, agent, exact)
    assert float(calibration(after, exact.returns).slope) == pytest.approx(1.0, abs=1e-3)  # float32
    ratio = (after - after.mean(dim=1, keepdim=True)) / (before - before.mean(dim=1, keepdim=True))
    assert torch.allclose(ratio, ratio[0, 0], rtol=1e-2)
    assert after.mean().item() == pytest.approx(exact.returns.mean().item(), abs=1e-4)


def test_decisions_are_priced_by_the_ledger(tiny: Callable[..., Config]) -> None:
    """Holding, and moves of a ninth of the way, over one bar: their rewards are those of the decision process."""
    trainer = FinFlowTrainer(tiny())
    run = trainer._begin()
    assert run.state.learner is not None
    process, policy = trainer.training_data.learning.process, run.state.learner.policy
    market = RolloutMarket(process, MarketTensors.of(process, CPU), RewardUnits.of(process, 0.01, "equal-weight", CPU))
    bars = np.arange(process.first_bar, process.first_bar + 30)
    measured = measure_returns(market, policy, bars, run.config, 9, DECISIONS)
    n_weights = process.n_weights
    held = measured.portfolios[:, :n_weights]
    torch.testing.assert_close(measured.actions[:, 0], held)
    reached = held.unsqueeze(1) + (measured.actions[:, 1:] - held.unsqueeze(1)) / FAMILY_RATE
    assert reached.min() > -1e-5  # a portfolio lies at the end of the way
    torch.testing.assert_close(reached.sum(dim=-1), torch.ones(30, run.config.bcell.rollouts.actions - 1))
    rng = np.random.default_rng(np.random.SeedSequence([run.config.train.seed, 81, 9]))
    weights, _ = draw_coverage(rng, 30, n_weights)
    for place in range(run.config.bcell.rollouts.actions):
        step = process.step(process.start(bars, weights), measured.actions[:, place].double().numpy())
        rewards = market.units.scaled(torch.from_numpy(step.reward).float(), torch.from_numpy(bars))
        torch.testing.assert_close(measured.returns[:, place], rewards, rtol=1e-4, atol=1e-5)


def test_sigma_a_is_a_number_of_the_market_alone(tiny: Callable[..., Config]) -> None:
    """In twice the unit of rewards it is half as large, and no policy changes it."""
    trainer = FinFlowTrainer(tiny())
    run = trainer._begin()
    assert run.state.learner is not None
    process, policy = trainer.training_data.learning.process, run.state.learner.policy
    bars = [process.decision_bars(trainer.training_data.split.train)]
    found = []
    for scale in (0.01, 0.02):
        units = RewardUnits.of(process, scale, "equal-weight", CPU)
        market = RolloutMarket(process, MarketTensors.of(process, CPU), units)
        found.append(measure_decision_scale(market, policy, run.config, bars))
        torch.nn.init.normal_(policy.gate.weight, generator=torch.Generator().manual_seed(1))
    assert 0.01 < found[0] < 0.3  # a day's deviation is near 1
    assert found[1] == pytest.approx(0.5 * found[0], rel=1e-4)


def test_both_phases_learn_in_the_same_sigma_a(tiny: Callable[..., Config]) -> None:
    trainer = FinFlowTrainer(tiny())
    trainer.train_iql()
    run = trainer._begin()
    assert run.state.learner is not None
    offline = run.state.learner.advantage_scale
    trainer.finetune()
    assert offline == trainer.agent.advantage_scale != 1.0
    rows = [json.loads(line) for line in (trainer.run_folder / "metrics.jsonl").read_text().splitlines()]
    (row,) = {row["advantage_scale"] for row in rows if "advantage_scale" in row}
    assert row == pytest.approx(offline)
