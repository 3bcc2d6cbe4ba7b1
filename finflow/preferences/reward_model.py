"""Reward model: the score of one decision and what its bar brought; a segment's score is the sum over its decisions.

A score that is a sum can be paid as a reward of every decision. The market is read by the agent's own encoder and
portfolios by its head, as critics do it; beside them the model sees the return, the turnover and the cost. Outcomes are
read linearly as well, and all else begins at zero: utilities such as mean less variance are linear in them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from finflow.agent.batch import States
from finflow.agent.networks.critic import NetworkShape
from finflow.agent.networks.layers import (
    Encoding,
    EnsembleLinear,
    EnsembleReadout,
    HeadInputs,
    MarketEncoder,
    PortfolioHead,
    portfolio_width,
)

N_OUTCOMES = 5  # return, its square, its fall below zero, turnover, cost; each in units of the training pairs
REWARD_STATE = 3  # of an observed portfolio, which a preference is not about


class ScoredDecisions(NamedTuple):
    """A batch of decisions as the model reads them.

    Attributes
    ----------
    held, filled : Tensor, (batch, K)
        Weights before the trade and right after it.
    log_return, turnover, cost : Tensor, (batch,)
    """

    held: Tensor
    filled: Tensor
    log_return: Tensor
    turnover: Tensor
    cost: Tensor


class OutcomeUnits(NamedTuple):
    """Root mean squares of the outcomes of decisions, in the pairs that are learned from."""

    log_return: float
    turnover: float
    cost: float


class RewardModel(nn.Module):
    """An ensemble of reward models in one batched call; independent parameters throughout."""

    temperature: Tensor
    mistakes: Tensor

    def __init__(self, shape: NetworkShape, members: int, units: OutcomeUnits, generator: Generator) -> None:
        super().__init__()
        width = portfolio_width(shape.hidden)
        self.shape, self.members, self.units = shape, members, units
        self.encoder = MarketEncoder(members, shape.n_asset_features, shape.n_market_features, shape.hidden, generator)
        self.head = PortfolioHead(members, shape.hidden, generator)
        self.outcome = EnsembleLinear(members, N_OUTCOMES, width, generator)
        self.from_portfolio = EnsembleReadout(members, width, generator, scale=0.0)
        self.from_outcome = EnsembleReadout(members, width, generator, scale=0.0)
        self.direct = EnsembleReadout(members, N_OUTCOMES, generator, scale=0.1)
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("mistakes", torch.zeros(()))

    def encode(self, assets: Tensor, market: Tensor) -> Encoding:
        """Encode markets, ``assets`` (groups, assets, F + 1) and ``market`` (groups, M)."""
        return self.encoder(states_holding(assets, market, assets.new_zeros(len(market), assets.shape[1] + 1)))  # type: ignore[no-any-return]

    def score(self, encoding: Encoding, assets: Tensor, market: Tensor, decisions: ScoredDecisions) -> Tensor:
        """Scores of decisions in encoded markets, one a decision, (members, batch), in log odds before calibration."""
        states = states_holding(assets, market, decisions.held)
        hidden = self.head(encoding.state, HeadInputs.of(encoding, states, decisions.filled.unsqueeze(1)))
        facts = self.outcomes(decisions)
        rows = self.outcome(facts).relu().unsqueeze(2)
        direct = facts.expand(self.members, -1, -1).unsqueeze(2)
        score: Tensor = self.from_portfolio(hidden) + self.from_outcome(rows) + self.direct(direct)
        return score.squeeze(2)

    def forward(self, assets: Tensor, market: Tensor, decisions: ScoredDecisions) -> Tensor:
        """Calibrated scores of decisions, (members, batch): log odds a decision."""
        scores = self.score(self.encode(assets, market), assets, market, decisions)
        return scores / self.temperature

    def outcomes(self, decisions: ScoredDecisions) -> Tensor:
        """Outcomes in units of the training pairs, (batch, 5)."""
        gain = decisions.log_return / self.units.log_return
        traded = (decisions.turnover / self.units.turnover, decisions.cost / self.units.cost)
        return torch.stack([gain, gain.square(), (-gain).relu(), *traded], dim=-1)


def states_holding(assets: Tensor, market: Tensor, held: Tensor) -> States:
    """States that hold some weights, (batch, K); the state of the built-in reward is left out."""
    portfolio = torch.cat([held, held.new_zeros(len(held), REWARD_STATE)], dim=-1)
    return States(assets, market, portfolio)
