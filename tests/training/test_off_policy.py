"""Fitted Q evaluation, where the value is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from finflow.training.data.replay import MarketTensors, Transitions
from finflow.training.data.reward_normalizer import RewardNormalizer, RewardNormalizerConfig
from finflow.training.data.rewards import RewardUnits
from finflow.training.phases.pretrain import fitted_q_value
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make


@pytest.mark.parametrize(("gamma", "normalised"), [(0.1, False), (0.5, False), (0.5, True)])
def test_a_constant_reward_is_worth_itself(tiny: Make, gamma: float, normalised: bool) -> None:
    """(1 - gamma) Q is the reward of every decision, whatever the policy does; targets are followed to within 1 %."""
    config = tiny(offline__evaluation_updates=300, bcell__tau=0.05, bcell__critic_lr=0.01, bcell__gamma=gamma)
    trainer = FinFlowTrainer(config)
    run = trainer._begin()
    dataset = dataclasses.replace(trainer._data(), reward=np.full(len(trainer._data()), 0.004, dtype=np.float32))
    store, market = Transitions.of(dataset, run.device), MarketTensors.of(run.training_data.process, run.device)
    learner = run.state.learner
    assert learner is not None
    units = RewardUnits.of(run.training_data.process, 0.002, "none", run.device)
    if normalised:  # in units of rewards whose mean is 1.5 and whose deviation is 3
        units = units._replace(normalizer=RewardNormalizer(RewardNormalizerConfig(warmup=2)))
        units.normalizer.update([-1.5, 4.5])
    value = fitted_q_value(learner, store, market, units, config)
    assert value == pytest.approx(0.004, rel=0.02)  # seen: within 0.5 %
