"""Whole lots for a target: the affordable plan that comes nearest to it in money, by integer programming.

For each asset the number of lots traded is chosen so that

    sum_i |p_i n_i - v_i| + cost(n)

is least, where ``n_i`` are the shares held afterwards, ``p_i`` prices, ``v_i`` the money that the target has in the
asset after costs, and the plan leaves at least the reserve in cash once its costs are paid. Costs are those of the
ledger's models. They are convex in the size of a trade, but for a minimum commission, which is due with the first lot:
so a mixed-integer linear program with tangents to the costs and a switch for each trade has them from below, and
tangents are added where a solution trades until it prices itself exactly.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finflow.errors import FinflowError
from finflow.ledger.costs import CostModel, MarketState

FloatArray = NDArray[np.float64]

ROUNDS = 25
"""Rounds of tangents; with proportional costs the first is exact."""
NODES = 1_000
"""Nodes of the search tree at most; with many assets the best plan so far is taken."""
_EXACT = 1e-7
"""Largest error of a plan's costs, as a share of the account."""
_SOLVER_ERROR = 4
"""Status of `milp` where it failed."""
_NUDGE = 1e-4
"""Relative distance over which the slope of a cost is measured."""


@dataclass(frozen=True)
class Account:
    """An account before its orders."""

    shares: FloatArray  # (assets,)
    prices: FloatArray  # (assets,), in money; those of assets that cannot be traded are not used
    cash: float  # in money

    @property
    def wealth(self) -> float:
        return float(np.nansum(self.shares * self.prices)) + self.cash


@dataclass(frozen=True)
class Plan:
    """Orders that lead to a target."""

    trades: FloatArray  # (assets,), shares bought, negative where sold
    costs: FloatArray  # (assets,), of each trade in money
    cash: float  # left after trades and costs, in money
    distance: float  # sum over the assets of the absolute difference from the target, in money

    @property
    def cost(self) -> float:
        return float(self.costs.sum())


@dataclass(frozen=True)
class LotRules:
    """Rules of orders: shares of a lot (0 for any fraction) and money that stays in cash."""

    lot: float
    reserve: float = 0.0


def price_plan(
    account: Account, trades: FloatArray, wanted: FloatArray, costs: CostModel, market: MarketState | None = None
) -> Plan:
    """Price trades in shares (assets,) towards ``wanted`` money (assets,) on the ledger's cost models."""
    prices = np.nan_to_num(account.prices)
    wealth = account.wealth
    paid = costs.by_asset((trades * prices / wealth)[None], np.array([wealth]), market)[0] * wealth
    left = account.cash - float((trades * prices).sum()) - float(paid.sum())
    distance = float(np.abs((account.shares + trades) * prices - wanted).sum())
    return Plan(trades, paid, left, distance)


def round_orders(
    account: Account,
    wanted: FloatArray,
    rules: LotRules,
    costs: CostModel,
    market: MarketState | None = None,
) -> Plan:
    """Find the affordable orders in whole lots that come nearest to ``wanted`` money (assets,), after costs.

    Without any order where none can be afforded; `FinflowError` if the solver gives up.
    """
    tradable = np.isfinite(account.prices)
    if rules.lot == 0.0:
        trades = np.where(tradable, wanted / np.where(tradable, account.prices, 1.0) - account.shares, 0.0)
        plan = price_plan(account, trades, wanted, costs, market)
        if plan.cash >= rules.reserve - _EXACT * account.wealth:
            return plan
    return _Program(account, wanted, rules, costs, market, tradable).solve()


class _Program:
    """The mixed-integer program of one account.

    Variables of each asset, side by side: lots bought, lots sold, distance from the target, cost and the switch of the
    trade; money in units of the account's wealth.
    """

    def __init__(
        self,
        account: Account,
        wanted: FloatArray,
        rules: LotRules,
        costs: CostModel,
        market: MarketState | None,
        tradable: NDArray[np.bool_],
    ) -> None:
        self.account, self.wanted, self.rules, self.costs, self.market = account, wanted, rules, costs, market
        self.n, self.wealth = len(wanted), account.wealth
        prices = np.where(tradable, account.prices, 0.0)
        self.whole = rules.lot > 0.0
        self.lot = rules.lot or 1.0
        self.unit = prices * self.lot / self.wealth  # of a lot, as a share of wealth
        self.held = account.shares * prices / self.wealth
        self.target = wanted / self.wealth
        most = np.where(tradable, 1.0 / np.maximum(self.unit, 1e-300), 0.0)
        sold = np.where(tradable, account.shares / self.lot, 0.0)
        if self.whole:
            most, sold = np.floor(most), np.floor(sold * (1.0 + 1e-12) + 1e-9)
        self.most, self.sold = most, sold
        self.tangents: list[tuple[int, float, float]] = []  # asset, slope and intercept, in shares of wealth

    def solve(self) -> Plan:
        """Solve, add tangents where the solution trades, and solve again until its costs are exact."""
        for asset in range(self.n):
            for size in (self._smallest(asset), abs(self.target[asset] - self.held[asset]), 0.25):
                self._add_tangent(asset, size)
        least = self.rules.reserve / self.wealth
        for _ in range(ROUNDS):
            lots = self._lots(least)
            if lots is None:
                return self._plan(np.zeros(self.n))
            plan = self._plan(lots)
            estimated = self._costs_by_tangents(np.abs(lots) * self.unit)
            wrong = np.flatnonzero(plan.costs / self.wealth - estimated > _EXACT / self.n)
            short = (self.rules.reserve - plan.cash) / self.wealth
            if not wrong.size and short <= 0.0:
                return plan
            if not wrong.size:  # by less than the solver's tolerance
                least += short + _EXACT
            for asset in wrong.tolist():
                self._add_tangent(asset, float(abs(lots[asset]) * self.unit[asset]))
        raise FinflowError(
            "no orders in whole lots were found: the costs under env.costs rise too steeply for this account; set "
            "trading.lot=0 for fractional shares"
        )

    def _lots(self, least: float) -> FloatArray | None:
        """Signed lots of the best solution for the tangents so far; None where not even holding can be afforded."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        n, unit = self.n, self.unit
        buy, sell, distance, paid, switch = (np.arange(n) + part * n for part in range(5))
        rows: list[tuple[dict[int, float], float, float]] = []
        for i in range(n):
            rows += [
                ({buy[i]: unit[i], sell[i]: -unit[i], distance[i]: -1.0}, -np.inf, self.target[i] - self.held[i]),
                ({buy[i]: unit[i], sell[i]: -unit[i], distance[i]: 1.0}, self.target[i] - self.held[i], np.inf),
                ({buy[i]: 1.0, switch[i]: -self.most[i]}, -np.inf, 0.0),
                ({sell[i]: 1.0, switch[i]: -self.sold[i]}, -np.inf, 0.0),
            ]
        for asset, slope, intercept in self.tangents:
            size = -slope * unit[asset]
            row = {paid[asset]: 1.0, buy[asset]: size, sell[asset]: size, switch[asset]: -intercept}
            rows.append((row, 0.0, np.inf))
        spent = {**dict(zip(buy, unit, strict=True)), **dict(zip(sell, -unit, strict=True)), **dict.fromkeys(paid, 1.0)}
        rows.append((spent, -np.inf, self.account.cash / self.wealth - least))
        cells = [(value, number, column) for number, (row, _, _) in enumerate(rows) for column, value in row.items()]
        values, numbers, columns = zip(*cells, strict=True)
        matrix = csr_array((values, (numbers, columns)), shape=(len(rows), 5 * n))
        integral = np.zeros(5 * n)
        minimum = any(intercept > 0.0 for _, _, intercept in self.tangents)
        integral[switch] = float(minimum)
        if self.whole:
            integral[buy] = integral[sell] = 1.0
        goal = np.zeros(5 * n)
        goal[distance] = goal[paid] = 1.0
        bottom = np.zeros(5 * n)
        bottom[switch] = float(not minimum)  # no cost begins with a first lot: nothing to switch
        top = np.concatenate([self.most, self.sold, np.full(2 * n, np.inf), np.ones(n)])
        for presolve in (True, False):  # of some programs the solver's own simplifications make an error
            with _silent():
                solution = milp(
                    goal,
                    integrality=integral,
                    bounds=Bounds(bottom, top),
                    constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
                    options={"mip_rel_gap": 1e-6, "node_limit": NODES, "presolve": presolve},
                )
            if solution.status != _SOLVER_ERROR:
                break
        if solution.x is None:
            return None
        lots: FloatArray = solution.x[buy] - solution.x[sell]
        return np.round(lots) if self.whole else np.where(np.abs(lots * unit) > _EXACT, lots, 0.0)

    def _plan(self, lots: FloatArray) -> Plan:
        return price_plan(self.account, lots * self.lot, self.wanted, self.costs, self.market)

    def _smallest(self, asset: int) -> float:
        return float(self.unit[asset]) if self.whole else 1e-6

    def _cost(self, asset: int, size: float) -> float:
        """Cost of a trade in one asset, as a share of wealth."""
        trades = np.zeros((1, self.n))
        trades[0, asset] = size
        return float(self.costs.by_asset(trades, np.array([self.wealth]), self.market)[0, asset])

    def _add_tangent(self, asset: int, size: float) -> None:
        """Add the tangent to the cost of a trade of some size, in front of its first lot where a minimum is due."""
        if not math.isfinite(size) or size <= 1e-9 or self.unit[asset] <= 0.0:
            return
        here = self._cost(asset, size)
        slope = (self._cost(asset, size * (1.0 + _NUDGE)) - here) / (size * _NUDGE)
        intercept = here - slope * size
        first = self._smallest(asset)
        below = min(self._cost(asset, first) - slope * first, intercept)  # where a minimum makes it no tangent
        tangent = (asset, slope, below if intercept > 0.0 else intercept)
        if not any(asset == one and np.allclose(tangent[1:], others, 1e-9, 1e-13) for one, *others in self.tangents):
            self.tangents.append(tangent)

    def _costs_by_tangents(self, sizes: FloatArray) -> FloatArray:
        """Lower bounds on the costs of trades by the tangents."""
        costs = np.zeros(self.n)
        for asset, slope, intercept in self.tangents:
            if sizes[asset] > 1e-12:
                costs[asset] = max(costs[asset], slope * sizes[asset] + intercept)
        return costs


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what the solver prints, past Python, off the standard output."""
    sys.stdout.flush()
    try:
        kept = os.dup(1)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
