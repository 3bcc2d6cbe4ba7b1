"""Ceiling of what an agent can reach by its features: its encoder fitted to the belief of the market's own law.

The optimal policy of a synthetic market is a function of the law's belief and of the weights held. Features let through
a part of the belief only. Here the encoder of the critics is fitted to the belief itself, on the training window, by
squared error; the optimal rule then acts on what it guesses. No learner from rewards has so clean a target.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor, nn

from finflow.agent.batch import States, states_of
from finflow.agent.gradient_steps import cosine, gradient_step, make_optimiser, set_learning_rate
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.layers import EnsembleReadout, MarketEncoder, asset_width
from finflow.evaluation.backtest import run_backtests
from finflow.strategies.dynamic_programming import TradingRule
from finflow.strategies.optimal_policy import TargetRule, optimum_of
from finflow.strategies.strategy import Information
from finflow.training.data.replay import MarketTensors
from finflow.training.data.training_data import TrainingData
from scripts.evidence.optimality import judge_of, window_of

UPDATES = 1500
BATCH = 512
LEARNING_RATE = 3e-3
CPU = torch.device("cpu")


class BeliefEncoder(nn.Module):
    """Guess of the belief from the features of all assets and of the market, as encoded for a critic.

    Parameters
    ----------
    n_assets : int
        Which asset a number is of is known here, as it is to the law.
    """

    def __init__(self, shape: NetworkShape, n_assets: int, generator: Generator) -> None:
        super().__init__()
        self.encoder = MarketEncoder(1, shape.n_asset_features, shape.n_market_features, shape.hidden, generator)
        width = asset_width(shape.hidden)
        self.of_assets = EnsembleReadout(1, n_assets * width, generator)
        self.of_state = EnsembleReadout(1, shape.hidden, generator)

    def forward(self, states: States) -> Tensor:
        """Belief, standardised, (groups,)."""
        encoded = self.encoder(states)
        assets = self.of_assets(encoded.assets.flatten(2).unsqueeze(2))
        guess: Tensor = (assets + self.of_state(encoded.state.unsqueeze(2)))[0, :, 0]
        return guess


class GuessedBelief(NamedTuple):
    """Strategy that applies the optimal rule to a guessed belief."""

    encoder: BeliefEncoder
    rule: TargetRule | TradingRule
    centre: float
    scale: float
    name: str = "guessed belief"

    def decide(self, information: Information) -> NDArray[np.float64]:
        """Target of the rule, (K,)."""
        if information.observation is None:
            raise ValueError("the guess needs the environment's observation")
        with torch.no_grad():
            guess = self.encoder(states_of(information.observation, CPU)).double().numpy()
        target: NDArray[np.float64] = self.rule.targets(
            self.centre + self.scale * guess, information.portfolio[None, :]
        )[0]
        return target


def ceiling_of(training_data: TrainingData, seed: int, updates: int = UPDATES, test: bool = False) -> float:
    """Score of the optimal rule by a belief that the encoder guesses, on the validation or the test window."""
    config, process = training_data.config, training_data.process
    best = optimum_of(config.market, config.env).policy
    tensors = MarketTensors.of(process, CPU)
    decisions = process.decision_bars(training_data.split.train)
    bars = np.arange(decisions.start, decisions.stop)
    beliefs = best.process.filtered(np.log(process.panel.close[: bars[-1]]))[bars - process.lag]
    centre, scale = float(beliefs.mean()), float(beliefs.std()) or 1.0
    wanted = torch.from_numpy((beliefs - centre) / scale).float()
    generator = Generator().manual_seed(seed)
    encoder = BeliefEncoder(training_data.shape, process.n_weights - 1, generator)
    optimiser = make_optimiser(encoder, LEARNING_RATE)
    blank = torch.zeros(BATCH, process.portfolio_size)
    for done in range(updates):
        set_learning_rate(optimiser, cosine(LEARNING_RATE, done / updates))
        rows = torch.randint(len(bars), (BATCH,), generator=generator)
        guess = encoder(tensors.states(torch.from_numpy(bars)[rows], blank))
        gradient_step((guess - wanted[rows]).square().mean(), optimiser, 10.0)
    played = run_backtests(*window_of(training_data, test), [GuessedBelief(encoder, best.rule, centre, scale)])
    return judge_of(training_data, test)(played[0])
