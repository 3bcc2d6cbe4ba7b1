"""Rewards as learners see them: in excess of what nobody's action changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from finflow.config import Config
from finflow.evaluation.backtest import run_backtests
from finflow.strategies.classical import EqualWeight
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.training_data import TrainingData, prepare

CPU = torch.device("cpu")


@pytest.fixture
def training_data(tiny: Callable[..., Config]) -> TrainingData:
    """A small market, without costs, log return alone."""
    free = {"env__commission_bps": 0.0, "env__slippage_bps": 0.0}
    alone = {"objectives__sharpe_beta": 0.0, "objectives__lambda_turn": 0.0, "objectives__lambda_cvar": 0.0}
    return prepare(tiny(**free, **alone, env__execution_lag=0))


def test_equal_weight_itself_earns_nothing(training_data: TrainingData) -> None:
    """At lag 0 and without costs equal weight is restored at every bar: its reward is the reference."""
    run = run_backtests(training_data.process, training_data.split.validation, [EqualWeight()])[0]
    bars = training_data.process.decision_bars(training_data.split.validation)
    units = RewardUnits.of(training_data.process, 0.01, "equal-weight", CPU)
    found = units.scaled(torch.from_numpy(run.rewards), torch.arange(bars.start, bars.start + len(run.rewards)))
    np.testing.assert_allclose(found.numpy(), 0.0, atol=1e-5)  # float32 of returns over 0.01


def test_differences_between_actions_stay_what_they_were(training_data: TrainingData) -> None:
    generator = torch.Generator().manual_seed(0)
    bars = torch.randint(300, 400, (50,), generator=generator)
    one, other = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    units = RewardUnits.of(training_data.process, 0.5, "equal-weight", CPU)
    apart = units.scaled(one, bars) - units.scaled(other, bars)
    torch.testing.assert_close(apart, (one - other) / 0.5)


def test_without_a_reference_rewards_are_scaled_alone(training_data: TrainingData) -> None:
    units = RewardUnits.of(training_data.process, 0.5, "none", CPU)
    rewards = torch.tensor([1.0, -2.0])
    torch.testing.assert_close(units.scaled(rewards, torch.tensor([300, 301])), 2.0 * rewards)
