"""Pairs as tensors: the decisions of all segments one after another, each pair's two of one length."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.errors import FinflowError
from finflow.preferences.pairs import PairFile, PortfolioPath, SegmentMarket, cut, simulate_strategies
from finflow.preferences.preference_reward import OutcomeUnits, RewardModel, ScoredDecisions

SMALLEST_UNIT = 1e-8
PAIRS_AT_ONCE = 512
Rows = NDArray[np.int64]


class PairTensors(NamedTuple):
    """Pairs of segments that a model reads; features are those known to the decision that fills at a bar."""

    assets: Tensor  # (bars, assets, F + 1)
    market: Tensor  # (bars, M)
    bars: Tensor  # (decisions,)
    decisions: ScoredDecisions  # (decisions, ...)
    offsets: NDArray[np.int64]  # (2, pairs), first decision of the two segments
    lengths: NDArray[np.int64]  # (pairs,), decisions of either
    targets: Tensor  # (pairs,)
    chances: Tensor  # (pairs,), of the judge; NaN where unknown
    days: NDArray[np.datetime64]  # (2, pairs), first day of the earlier, last day of the later segment

    def __len__(self) -> int:
        return len(self.lengths)

    def units(self, chosen: Rows) -> OutcomeUnits:
        """Root mean squares of the outcomes of the segments of some pairs."""
        rows = self.decisions_of(chosen)
        outcomes = (self.decisions.log_return, self.decisions.turnover, self.decisions.cost)
        return OutcomeUnits(*(max(float(one[rows].square().mean().sqrt()), SMALLEST_UNIT) for one in outcomes))

    def decisions_of(self, chosen: Rows) -> Tensor:
        """Numbers of the decisions of some pairs: of the first segments, one after another, then of the second."""
        lengths, starts = np.tile(self.lengths[chosen], 2), self.offsets[:, chosen].reshape(-1)
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return torch.from_numpy(np.repeat(starts, lengths) + within)

    def owners_of(self, chosen: Rows) -> Tensor:
        """Numbers of the segments that these decisions belong to: first segments, then second ones."""
        return torch.from_numpy(np.repeat(np.arange(2 * len(chosen)), np.tile(self.lengths[chosen], 2)))

    def scores(self, model: RewardModel, chosen: Rows) -> Tensor:
        """Scores of the two segments of some pairs before calibration, (2, members, pairs)."""
        rows, owner = self.decisions_of(chosen), self.owners_of(chosen)
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
        rows, owner = self.decisions_of(chosen), self.owners_of(chosen)
        found = model.outcomes(ScoredDecisions(*(column[rows] for column in self.decisions))).double()
        return found.new_zeros(2 * len(chosen), found.shape[1]).index_add(0, owner, found).view(2, len(chosen), -1)

    def all_scores(self, model: RewardModel, chosen: Rows) -> Tensor:
        """The same without gradients, some pairs at a time."""
        with torch.no_grad():
            parts = [
                self.scores(model, chosen[start : start + PAIRS_AT_ONCE])
                for start in range(0, len(chosen), PAIRS_AT_ONCE)
            ]
        return torch.cat(parts, dim=2)


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
        if len(first) != len(second):
            raise FinflowError(
                f"{place}: the segments have {len(first)} and {len(second)} holding periods, not as many"
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
    days = np.array(
        [(min(a.dates[0], b.dates[0]), max(a.dates[-1], b.dates[-1])) for a, b in cuts], dtype="datetime64[D]"
    )
    return PairTensors(
        torch.from_numpy(assets),
        torch.from_numpy(features.astype(np.float32)),
        torch.from_numpy(fills.astype(np.int64)),
        ScoredDecisions(joined("held"), joined("filled"), log_return, joined("turnover"), joined("costs")),
        starts.reshape(2, -1),
        lengths,
        torch.tensor([pair.target for pair in pairs]),
        torch.tensor([float("nan") if pair.chance is None else pair.chance for pair in pairs]),
        days.T,
    )
