"""Reasons of a decision: gate, experts, the features that moved the aim, and the changes that would alter it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.networks.decision import Decision, acted_portfolio
from finflow.trading.decision_page import Alternative, FeatureMove, Reasons
from finflow.trading.live_market import LiveMarket
from finflow.training.judging.agent_strategy import Agents
from finflow.training.judging.explainer import (
    ExactDecision,
    aim_of,
    decide,
    in_double,
    integrated_gradients,
    mean_of,
    states_at,
)

FloatArray = NDArray[np.float64]

POINTS = 17  # values of a feature that are tried over its range in training
HALVINGS = 16  # bisections between two of them
SHOWN = 5  # alternatives that are kept
_NOTHING = 1e-9  # change of a weight that is rounding
_CLIP = 5.0


class Reasoning(ExactDecision):
    """Reasons of what some agents decide together, by the mean of their portfolios.

    ``portfolio`` (K + 3,) has the weights held and the state of the reward, as observed.
    """

    def __init__(self, agents: Agents, market: LiveMarket, portfolio: FloatArray) -> None:
        self.acting, self.band = agents.config.acting, agents.config.env.no_trade_band
        self.market, self.portfolio = market, portfolio
        policies = [in_double(policy) for policy in agents.policies]
        super().__init__(policies, states_at(market.process, market.known, portfolio))
        self.assets = (*market.panel.assets, "cash")
        self.target = mean_of(self._acted(decision)[0] for decision in self.decisions)

    def reasons(self) -> Reasons:
        change, moves = self._moves()
        question, alternatives = self._alternatives()
        return Reasons(
            holds=self.holds,
            gate=self.gate,
            experts={name: dict(zip(self.assets, portfolio, strict=True)) for name, portfolio in self.experts.items()},
            aim_change=change,
            features=moves,
            question=question,
            alternatives=alternatives,
        )

    def _moves(self) -> tuple[float, dict[str, FeatureMove]]:
        market, known = self.market, self.market.known
        if known - 1 < market.features.first_bar:
            return float("nan"), {}
        before = states_at(market.process, known - 1, self.portfolio)
        before = States(  # what is listed, and the portfolio, are those of today
            torch.cat([before.assets[:, :, :-1], self.states.assets[:, :, -1:]], dim=-1),
            before.market,
            self.states.portfolio,
            self.states.complete,
        )
        aim_before = mean_of(aim_of(decide(policy, before))[0] for policy in self.policies)
        moved = self.aim - aim_before
        direction = 0.5 * moved.sign().unsqueeze(0)
        shares = [
            integrated_gradients(policy, self.states, direction, since=before, read=aim_of) for policy in self.policies
        ]
        of_assets = mean_of(one.assets[0].sum(dim=0) for one in shares)
        of_market = mean_of(one.market[0] for one in shares)
        listed = self.states.listed[0]
        count = max(int(listed.sum()), 1)
        means = [(one.assets[0, :, :-1] * listed.unsqueeze(1)).sum(dim=0) / count for one in (before, self.states)]
        moves = {
            name: FeatureMove(float(means[0][n]), float(means[1][n]), float(of_assets[n]))
            for n, name in enumerate(market.features.asset_names)
        }
        moves |= {
            name: FeatureMove(float(before.market[0, n]), float(self.states.market[0, n]), float(of_market[n]))
            for n, name in enumerate(market.features.market_names)
        }
        return 0.5 * float(moved.abs().sum()), dict(sorted(moves.items(), key=lambda one: -abs(one[1].part)))

    def _alternatives(self) -> tuple[str, list[Alternative]]:
        move = self.target - self.held
        asset = int(move[:-1].abs().argmax())
        name, size = self.assets[asset], float(move[asset])
        code = int(self._codes(self.target.unsqueeze(0), asset)[0])
        question = _WORDS[code].format(name) if abs(size) > _NOTHING else "nothing is traded"
        searched = list(self._searched(asset))
        grids = [np.linspace(one.low, one.high, POINTS) for one in searched]
        rows = [(one, value) for one, grid in zip(searched, grids, strict=True) for value in grid.tolist()]
        codes = self._outcomes(rows, asset).reshape(-1, POINTS)
        found, nearest = [], []
        for one, grid, outcomes in zip(searched, grids, codes, strict=True):
            other = grid[outcomes != code]
            if other.size:
                found.append(one)
                nearest.append(float(other[np.abs(other - one.now).argmin()]))
        if not found:
            return question, []
        inner, outer = np.array([one.now for one in found]), np.array(nearest)
        for _ in range(HALVINGS):
            middle = 0.5 * (inner + outer)
            changed = self._outcomes(list(zip(found, middle.tolist(), strict=True)), asset) != code
            outer, inner = np.where(changed, middle, outer), np.where(changed, inner, middle)
        values = outer.tolist()
        after = self._outcomes(list(zip(found, values, strict=True)), asset).tolist()
        alternatives = [
            Alternative(one.name, one.now, value, abs(value - one.now), _WORDS[outcome].format(name))
            for one, value, outcome in zip(found, values, after, strict=True)
        ]
        return question, sorted(alternatives, key=lambda one: (one.change, one.feature))[:SHOWN]

    def _searched(self, asset: int) -> Iterable[_Searched]:
        """Features that may change: those of the market, and of the asset traded most."""
        features, ranges = self.market.features, self.market.ranges
        if bool(self.states.listed[0, asset]):
            for column, feature in enumerate(features.asset_names):
                now, seen = float(self.states.assets[0, asset, column]), ranges.assets_seen[column]
                yield _Searched(f"{self.assets[asset]}:{feature}", asset, column, now, *np.clip(seen, -_CLIP, _CLIP))
        for column, feature in enumerate(features.market_names):
            now, seen = float(self.states.market[0, column]), ranges.market_seen[column]
            yield _Searched(feature, None, column, now, *np.clip(seen, -_CLIP, _CLIP))

    def _outcomes(self, rows: Sequence[tuple[_Searched, float]], traded: int) -> NDArray[np.int64]:
        """Decisions on an asset (rows,) with one feature at another value; see `_codes`."""
        count = len(rows)
        assets = self.states.assets.repeat(count, 1, 1)
        market = self.states.market.repeat(count, 1)
        for row, (one, value) in enumerate(rows):
            if one.asset is None:
                market[row, one.column] = value
            else:
                assets[row, one.asset, one.column] = value
        states = States(assets, market, self.states.portfolio.repeat(count, 1), self.states.complete)
        return self._codes(mean_of(self._acted(decide(policy, states)) for policy in self.policies), traded)

    def _acted(self, decision: Decision) -> Tensor:
        return acted_portfolio(decision.distribution, self.acting, self.market.panel.dates[self.market.known])

    def _codes(self, targets: Tensor, asset: int) -> NDArray[np.int64]:
        """Decisions on an asset: 1 to buy it, -1 to sell it, 0 where the no-trade band stops all orders."""
        moves = targets - self.held
        trades = moves.abs().amax(dim=-1) > max(self.band, _NOTHING)
        codes: NDArray[np.int64] = (moves[:, asset].sign() * trades).long().numpy()
        return codes


_WORDS: Mapping[int, str] = {1: "{} is bought", -1: "{} is sold", 0: "nothing is traded"}


@dataclass(frozen=True)
class _Searched:
    """A feature that may change, of an asset or of the market, and the range over which it is searched."""

    name: str
    asset: int | None
    column: int
    now: float
    low: float
    high: float
