"""Reward model: the score of one decision and what its bar brought, its file, and the score as a reward.

A segment's score is the sum over its decisions: so it can be paid as a reward of every decision. Outcomes are read
linearly as well, and all else begins at zero: utilities such as mean less variance are linear in them.
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
from finflow.arrays import DateArray, IntArray
from finflow.env.reward_context import RewardContext
from finflow.errors import CheckpointError, ConfigError, FinflowError, refuse
from finflow.preferences.pairs import PairFile, PortfolioPath, SegmentMarket, cut, simulate_strategies
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
        return self.score(self.encode(assets, market), assets, market, decisions) / self.temperature

    def outcomes(self, decisions: ScoredDecisions) -> Tensor:
        """Outcomes in units of the training pairs, (batch, 5)."""
        gain = decisions.log_return / self.units.log_return
        traded = (decisions.turnover / self.units.turnover, decisions.cost / self.units.cost)
        return torch.stack([gain, gain.square(), (-gain).relu(), *traded], dim=-1)


def states_holding(assets: Tensor, market: Tensor, held: Tensor) -> States:
    """States that hold some weights, (batch, K); the state of the built-in reward is left out."""
    return States(assets, market, torch.cat([held, held.new_zeros(len(held), REWARD_STATE)], dim=-1))


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
    refuse(
        state.get("kind") != KIND, f"{path} holds no reward model; make one with --mode prefer --learn", CheckpointError
    )
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
        refuse(
            found != read,
            f"the reward model {self.path} reads {read[0]} features of assets and {read[1]} of the market, and "
            f"this market has {found[0]} and {found[1]}: learn it with the same features",
            ConfigError,
        )
        seen = (context.weights, context.filled, context.log_return, context.turnover, context.cost)
        score = model.to(assets.device)(assets, market, ScoredDecisions(*(_tensor(one) for one in seen))).mean(dim=0)
        return score.double().numpy() if isinstance(context.weights, np.ndarray) else score


def _tensor(values: Any) -> Tensor:
    """In single precision; of a tensor, with its gradients."""
    return torch.as_tensor(values).float()


SMALLEST_UNIT = 1e-8
PAIRS_AT_ONCE = 512
Rows = IntArray


class PairTensors(NamedTuple):
    """Pairs of segments that a model reads; features are those known to the decision that fills at a bar."""

    assets: Tensor  # (bars, assets, F + 1)
    market: Tensor  # (bars, M)
    bars: Tensor  # (decisions,)
    decisions: ScoredDecisions  # (decisions, ...)
    offsets: IntArray  # (2, pairs), first decision of the two segments
    lengths: IntArray  # (pairs,), decisions of either
    targets: Tensor  # (pairs,)
    chances: Tensor  # (pairs,), of the judge; NaN where unknown
    days: DateArray  # (2, pairs), first day of the earlier, last day of the later segment

    def __len__(self) -> int:
        return len(self.lengths)

    def units(self, chosen: Rows) -> OutcomeUnits:
        """Root mean squares of the outcomes of the segments of some pairs."""
        rows, _ = self.decisions_of(chosen)
        outcomes = (self.decisions.log_return, self.decisions.turnover, self.decisions.cost)
        return OutcomeUnits(*(max(float(one[rows].square().mean().sqrt()), SMALLEST_UNIT) for one in outcomes))

    def decisions_of(self, chosen: Rows) -> tuple[Tensor, Tensor]:
        """Numbers of the decisions of some pairs, and of their segments: the first ones in order, then the second."""
        lengths, starts = np.tile(self.lengths[chosen], 2), self.offsets[:, chosen].reshape(-1)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        owners = np.repeat(np.arange(2 * len(chosen)), lengths)
        return torch.from_numpy(np.repeat(starts, lengths) + within), torch.from_numpy(owners)

    def scores(self, model: RewardModel, chosen: Rows) -> Tensor:
        """Scores of the two segments of some pairs before calibration, (2, members, pairs)."""
        rows, owner = self.decisions_of(chosen)
        bars, place = torch.unique(self.bars[rows], return_inverse=True)
        assets, market = self.assets[bars], self.market[bars]
        encoding = model.encode(assets, market)
        spread = type(encoding)(encoding.assets[:, place], encoding.state[:, place])
        decisions = ScoredDecisions(*(column[rows] for column in self.decisions))
        found = model.score(spread, assets[place], market[place], decisions)
        total = found.new_zeros(model.members, 2 * len(chosen)).index_add(1, owner, found)
        return total.view(model.members, 2, -1).transpose(0, 1)

    def outcomes(self, model: RewardModel, chosen: Rows) -> Tensor:
        """Sums of the outcomes of the two segments of some pairs, (2, pairs, outcomes), in double precision."""
        rows, owner = self.decisions_of(chosen)
        found = model.outcomes(ScoredDecisions(*(column[rows] for column in self.decisions))).double()
        return found.new_zeros(2 * len(chosen), found.shape[1]).index_add(0, owner, found).view(2, len(chosen), -1)

    @torch.no_grad()
    def all_scores(self, model: RewardModel, chosen: Rows) -> Tensor:
        """The same without gradients, some pairs at a time."""
        starts = range(0, len(chosen), PAIRS_AT_ONCE)
        return torch.cat([self.scores(model, chosen[start : start + PAIRS_AT_ONCE]) for start in starts], dim=2)


def pair_tensors(market: SegmentMarket, file: PairFile) -> PairTensors:
    """Look up the segments of pairs.

    Raises FinflowError for an unknown strategy, and with the place of the pair for dates outside and segments of
    different lengths.
    """
    pairs = file.pairs
    segments = [one for pair in pairs for one in (pair.first, pair.second)]
    paths = simulate_strategies(market, dict.fromkeys(one.strategy for one in segments))
    cuts: list[tuple[PortfolioPath, PortfolioPath]] = []
    for pair, place in zip(pairs, file.places, strict=True):
        try:
            first, second = (cut(paths[one.strategy], one) for one in (pair.first, pair.second))
        except FinflowError as error:
            raise FinflowError(f"{place}: {error}") from None
        refuse(
            len(first) != len(second),
            f"{place}: the segments have {len(first)} and {len(second)} holding periods, not as many",
        )
        cuts.append((first, second))
    lengths = np.array([len(first) for first, _ in cuts], dtype=np.int64)
    starts = np.cumsum(np.tile(lengths, 2)) - np.tile(lengths, 2)
    whole = [one for side in zip(*cuts, strict=True) for one in side]

    def joined(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(path, name) for path in whole])).float()

    log_return = torch.log1p(joined("returns").clamp(min=-1.0 + 1e-6))
    process = market.process
    fills = np.searchsorted(process.panel.dates, np.concatenate([one.dates for one in whole])) - 1
    known = slice(0, len(process.asset_features) - process.lag)
    assets = np.concatenate([process.asset_features[: process.lag], process.asset_features[known]])
    features = np.concatenate([process.market_features[: process.lag], process.market_features[known]])
    days = [(min(a.dates[0], b.dates[0]), max(a.dates[-1], b.dates[-1])) for a, b in cuts]
    return PairTensors(
        torch.from_numpy(assets),
        torch.from_numpy(features.astype(np.float32)),
        torch.from_numpy(fills.astype(np.int64)),
        ScoredDecisions(joined("held"), joined("filled"), log_return, joined("turnover"), joined("costs")),
        starts.reshape(2, -1),
        lengths,
        torch.tensor([pair.target for pair in pairs]),
        torch.tensor([float("nan") if pair.chance is None else pair.chance for pair in pairs]),
        np.array(days, dtype="datetime64[D]").T,
    )
