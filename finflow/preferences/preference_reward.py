"""Reward model: the score of one decision and what its bar brought, its file, and the score as a reward.

A segment's score is the sum over its decisions: so it can be paid as a reward of every decision. The market is read by
the agent's own encoder and portfolios by its head, as critics do it; beside them the model sees the return, the
turnover and the cost. Outcomes are read linearly as well, and all else begins at zero: utilities such as mean less
variance are linear in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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
from finflow.env.reward_context import RewardContext
from finflow.errors import CheckpointError, ConfigError
from finflow.tensor_file import read_tensors, write_tensors

N_OUTCOMES = 5  # return, its square, its fall below zero, turnover, cost; each in units of the training pairs
REWARD_STATE = 3  # of an observed portfolio, which a preference is not about


class ScoredDecisions(NamedTuple):
    """A batch of decisions as the model reads them."""

    held: Tensor  # (batch, K), weights before the trade
    filled: Tensor  # and right after it
    log_return: Tensor  # (batch,)
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


KIND = "finflow reward model"


def save_model(path: Path, model: RewardModel, report: dict[str, Any], features: Sequence[str]) -> None:
    """Write a reward model and its report as one file, atomically; equal models make equal bytes.

    Raises OutputError if the file cannot be written.
    """
    state = {
        "kind": KIND,
        "shape": model.shape._asdict(),
        "units": model.units._asdict(),
        "members": model.members,
        "features": list(features),
        "report": report,
    }
    write_tensors(path, model.state_dict(), state)


def load_model(path: Path) -> RewardModel:
    """Read and verify a file written by `save_model`.

    Raises CheckpointError if it is missing, damaged, or holds something else.
    """
    tensors, state = read_tensors(path)
    if state.get("kind") != KIND:
        raise CheckpointError(f"{path} holds no reward model; make one with --mode prefer --learn")
    try:
        shape, units = NetworkShape.from_facts(state["shape"]), OutcomeUnits(**state["units"])
        model = RewardModel(shape, int(state["members"]), units, torch.Generator())
        model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise CheckpointError(f"{path} holds a reward model of another finflow ({type(error).__name__})") from None
    return model.eval().requires_grad_(False)


PREFERENCE = "preference"  # its name in the configuration


class PreferenceReward:
    """Reward of one decision by a reward model from a file: a segment's rewards sum to its score.

    A training learns from it as ``objectives.reward=preference`` with ``objectives.preference.model=FILE``. Several
    models in one sum are rewards of a user's own: ``Desk = PreferenceReward("model.safetensors")``, ``module:Desk``.

    Raises CheckpointError if the file is missing, damaged, or holds no reward model of `--mode prefer --learn`.
    """

    horizon = 1
    differentiable = True

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._model = load_model(self.path)

    def __call__(self, context: RewardContext) -> Any:
        """Score of each decision, (batch,): the mean of the ensemble.

        Raises ConfigError if the market has other features than the model reads.
        """
        observation, model = context.observation, self._model
        assets, market = (_tensor(observation[name]) for name in ("assets", "market"))
        found, read = (assets.shape[2], market.shape[1]), (model.shape.n_asset_features, model.shape.n_market_features)
        if found != read:
            raise ConfigError(
                f"the reward model {self.path} reads {read[0]} features of assets and {read[1]} of the market, and "
                f"this market has {found[0]} and {found[1]}: learn it with the same features"
            )
        seen = (context.weights, context.filled, context.log_return, context.turnover, context.cost)
        scores = model.to(assets.device)(assets, market, ScoredDecisions(*(_tensor(one) for one in seen)))
        score = scores.mean(dim=0)
        return score.double().numpy() if isinstance(context.weights, np.ndarray) else score


def _tensor(values: Any) -> Tensor:
    """In single precision; of a tensor, with its gradients."""
    return torch.as_tensor(values).float()
