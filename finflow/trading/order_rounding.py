"""Whole lots for a target: the affordable plan that comes nearest to it in money, by integer programming.

What is minimised: docs/guide/decide.md, Orders in whole lots. Costs are those of the ledger's models. They are convex
in the size of a trade, but for a minimum commission, which is due with the first lot: so a mixed-integer linear program
with tangents to the costs and a switch for each trade has them from below, and tangents are added where a solution
trades until it prices itself exactly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finflow.arrays import FloatArray
from finflow.errors import FinflowError
from finflow.ledger.costs import CostModel, MarketState

ROUNDS = 25  # of tangents; with proportional costs the first is exact
NODES = 1_000  # of the search tree at most; with many assets the best plan so far is taken
_EXACT = 1e-7  # largest error of a plan's costs, as a share of the account
_SOLVER_ERROR = 4  # status of `milp` where it failed
_NUDGE = 1e-4  # relative distance over which the slope of a cost is measured


@dataclass(frozen=True)
class Account:
    """Shares (assets,), their prices (assets,), NaN where an asset cannot be traded, and cash, in money."""

    shares: FloatArray
    prices: FloatArray
    cash: float

    @property
    def wealth(self) -> float:
        """Value of all shares, and cash, in money."""
        return float(np.nansum(self.shares * self.prices)) + self.cash


@dataclass(frozen=True)
class Plan:
    """Orders that lead to a target, all but the trades in money."""

    trades: FloatArray  # (assets,), shares bought, negative where sold
    costs: FloatArray  # (assets,)
    cash: float  # left after trades and costs
    distance: float  # sum over the assets of the absolute difference from the target

    @property
    def cost(self) -> float:
        """Of all trades, in money."""
        return float(self.costs.sum())


def price_plan(
    account: Account, trades: FloatArray, wanted: FloatArray, costs: CostModel, market: MarketState | None = None
) -> Plan:
    """Price trades (assets,), in shares, on the ledger's cost models; ``wanted`` (assets,) is the target in money."""
    prices, wealth = np.nan_to_num(account.prices), account.wealth
    paid = costs.by_asset((trades * prices / wealth)[None], np.array([wealth]), market)[0] * wealth
    left = account.cash - float((trades * prices).sum()) - float(paid.sum())
    return Plan(trades, paid, left, float(np.abs((account.shares + trades) * prices - wanted).sum()))


def round_orders(
    account: Account,
    wanted: FloatArray,
    lot: float,
    reserve: float,
    costs: CostModel,
    market: MarketState | None = None,
) -> Plan:
    """Find the affordable orders in whole lots that come nearest to a target; none where none can be afforded.

    Parameters
    ----------
    wanted : float64 array, (assets,)
        Money in each asset at the target, after costs.
    lot : float
        Shares of a lot; 0 for any fraction.
    reserve : float
        Money that stays in cash.

    Raises FinflowError if the solver gives up.
    """
    tradable = np.isfinite(account.prices)
    if lot == 0.0:
        trades = np.where(tradable, wanted / np.where(tradable, account.prices, 1.0) - account.shares, 0.0)
        plan = price_plan(account, trades, wanted, costs, market)
        if plan.cash >= reserve - _EXACT * account.wealth:
            return plan
    return _Program(account, wanted, lot, reserve, costs, market).solve()


class _Program:
    """The mixed-integer program of one account.

    Variables of each asset, side by side: lots bought, lots sold, distance from the target, cost and the switch of the
    trade; money in units of the account's wealth.
    """

    def __init__(
        self,
        account: Account,
        wanted: FloatArray,
        lot: float,
        reserve: float,
        costs: CostModel,
        market: MarketState | None,
    ) -> None:
        self.account, self.wanted, self.reserve, self.costs, self.market = account, wanted, reserve, costs, market
        self.n, self.wealth, self.whole, self.lot = len(wanted), account.wealth, lot > 0.0, lot or 1.0
        tradable = np.isfinite(account.prices)
        prices = np.where(tradable, account.prices, 0.0)
        self.unit = prices * self.lot / self.wealth  # of a lot, as a share of wealth
        self.held, self.target = account.shares * prices / self.wealth, wanted / self.wealth
        self.most = np.where(tradable, 1.0 / np.maximum(self.unit, 1e-300), 0.0)
        self.sold = np.where(tradable, account.shares / self.lot, 0.0)
        if self.whole:
            self.most, self.sold = np.floor(self.most), np.floor(self.sold * (1.0 + 1e-12) + 1e-9)
        self.first = self.unit if self.whole else np.full(self.n, 1e-6)  # the smallest trade
        self.tangents: FloatArray = np.empty((0, 3))  # asset, slope and intercept, in shares of wealth

    def solve(self) -> Plan:
        """Solve, add tangents where the solution trades, and solve again until its costs are exact."""
        for sizes in (self.first, np.abs(self.target - self.held), np.full(self.n, 0.25)):
            self._add_tangents(sizes)
        least = self.reserve / self.wealth
        for _ in range(ROUNDS):
            lots = self._lots(least)
            if lots is None:
                return self._plan(np.zeros(self.n))
            plan, sizes, estimated = self._plan(lots), np.abs(lots) * self.unit, np.zeros(self.n)
            numbers, slopes, intercepts = self.tangents.T
            assets = numbers.astype(np.int64)
            traded = sizes[assets]
            np.maximum.at(estimated, assets, np.where(traded > 1e-12, slopes * traded + intercepts, 0.0))
            wrong = plan.costs / self.wealth - estimated > _EXACT / self.n
            short = (self.reserve - plan.cash) / self.wealth
            if not wrong.any():
                if short <= 0.0:
                    return plan
                least += short + _EXACT  # by less than the solver's tolerance
            self._add_tangents(np.where(wrong, sizes, 0.0))
        raise FinflowError(
            "no orders in whole lots were found: the costs under env.costs rise too steeply for this account; set "
            "trading.lot=0 for fractional shares"
        )

    def _lots(self, least: float) -> FloatArray | None:
        """Signed lots of the best solution for the tangents so far; None where not even holding can be afforded."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import block_array, diags_array

        n, away, zero, infinite = self.n, self.target - self.held, np.zeros(self.n), np.full(self.n, np.inf)
        unit, one = diags_array(self.unit), diags_array(np.ones(n))
        assets, slopes, intercepts = self.tangents.T
        cost = np.eye(n)[assets.astype(np.int64)]
        size = -slopes[:, None] * cost * self.unit
        matrix = block_array(
            [
                [unit, -unit, -one, None, None],
                [unit, -unit, one, None, None],
                [one, None, None, None, -diags_array(self.most)],
                [None, one, None, None, -diags_array(self.sold)],
                [size, size, None, cost, -intercepts[:, None] * cost],
                [self.unit[None], -self.unit[None], None, np.ones((1, n)), None],
            ],
            format="csr",
        )
        low = np.concatenate([-infinite, away, -infinite, -infinite, 0.0 * slopes, [-np.inf]])
        spare = self.account.cash / self.wealth - least
        high = np.concatenate([away, infinite, zero, zero, np.full(len(slopes), np.inf), [spare]])
        minimum = bool((intercepts > 0.0).any())  # else no cost begins with a first lot: nothing to switch
        bottom = np.repeat([0.0, 0.0, 0.0, 0.0, float(not minimum)], n)
        top = np.concatenate([self.most, self.sold, infinite, infinite, np.ones(n)])
        for presolve in (True, False):  # of some programs the solver's own simplifications make an error
            with _silent():
                solution = milp(
                    np.repeat([0.0, 0.0, 1.0, 1.0, 0.0], n),
                    integrality=np.repeat([self.whole, self.whole, False, False, minimum], n),
                    bounds=Bounds(bottom, top),
                    constraints=LinearConstraint(matrix, low, high),
                    options={"mip_rel_gap": 1e-6, "node_limit": NODES, "presolve": presolve},
                )
            if solution.status != _SOLVER_ERROR:
                break
        if solution.x is None:
            return None
        lots: FloatArray = solution.x[:n] - solution.x[n : 2 * n]
        return np.round(lots) if self.whole else np.where(np.abs(lots * self.unit) > _EXACT, lots, 0.0)

    def _plan(self, lots: FloatArray) -> Plan:
        return price_plan(self.account, lots * self.lot, self.wanted, self.costs, self.market)

    def _costs(self, sizes: FloatArray) -> FloatArray:
        return np.asarray(self.costs.by_asset(sizes[None], np.array([self.wealth]), self.market)[0])

    def _add_tangents(self, sizes: FloatArray) -> None:
        """Add the tangents to the costs of trades of some sizes, in front of the first lot where a minimum is due."""
        chosen = np.isfinite(sizes) & (sizes > 1e-9) & (self.unit > 0.0)
        size = np.where(chosen, sizes, 1.0)
        here = self._costs(size)
        slope = (self._costs(size * (1.0 + _NUDGE)) - here) / (size * _NUDGE)
        intercept = here - slope * size
        # not above the cost of the first lot, where a minimum makes it no tangent
        below = np.minimum(self._costs(self.first) - slope * self.first, intercept)
        new = np.stack([np.arange(self.n), slope, np.where(intercept > 0.0, below, intercept)], axis=1)[chosen]
        tangents = np.concatenate([self.tangents, new])
        _, different = np.unique(tangents.round(12), axis=0, return_index=True)
        self.tangents = tangents[np.sort(different)]


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what the solver prints, past Python, off the standard output."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
