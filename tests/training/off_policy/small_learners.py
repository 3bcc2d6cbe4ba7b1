"""Learners on a small market, without a training around them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from finflow.agent.learners.bcell import BCell
from finflow.agent.learners.soft_actor_critic import UpdatePoint
from finflow.config import Config
from finflow.training.data.replay import CoveragePool, MarketTensors, Transitions
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.data.training_data import TrainingData, offline_data, prepare
from finflow.training.off_policy.group_update import Material
from finflow.training.off_policy.learners import Learners, with_mirrors

CPU = torch.device("cpu")
SCALE = 0.01  # a day's deviation
MIDDLE = UpdatePoint(update=5, total=10)


class Desk(NamedTuple):
    """Learners with all that they learn from."""

    learners: Learners
    market: RolloutMarket
    material: Material
    data: TrainingData
    config: Config


def market_of(training_data: TrainingData, scale: float = SCALE) -> RolloutMarket:
    """The market of a training, with rewards in a unit of one's choice."""
    process = training_data.learning
    return RolloutMarket(process, MarketTensors.of(process, CPU), RewardUnits.of(process, scale, "equal-weight", CPU))


def desk_of(config: Config) -> Desk:
    """Learners with initial weights, sigma_A a twentieth of a day's deviation, and the behaviour's data."""
    training_data = prepare(config)
    weights = torch.Generator().manual_seed(1)
    agent = BCell(training_data.shape, config.bcell, weights, CPU, blocks=config.out_of_fold.blocks)
    learners = Learners(config, training_data, agent, CPU)
    for one in learners.everyone:
        one.agent.advantage_scale = 0.05
    market = with_mirrors(market_of(training_data), learners, config)
    dataset = offline_data(config, training_data).dataset
    for one in learners.everyone:
        one.behaviour = Transitions.of(dataset, CPU)
    pool = CoveragePool(config.train.seed, market.tensors.n_weights, CPU)
    return Desk(learners, market, Material(market, pool, config), training_data, config)
