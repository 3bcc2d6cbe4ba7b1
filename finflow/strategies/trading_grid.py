"""Dynamic programming under proportional costs: the best portfolio when trading costs something.

Two assets and cash, a law that is Markov in one number (its belief), lag 1. Before decision t the state is the belief
after bar t - 1 and the weights w right after the last fill, at that bar's prices. The target a is stated at the same
prices; both drift through bar t, their difference is traded, and what was filled earns bar t + 1. With b' the belief
after bar t, w' the weights after drifting a through it, and G(w, b) = E[log growth of w over the next bar | b]:

    V(w, b) + gain = max_a { C(w, a) + E[G(w', b') + V(w', b') | b] }

C is the expected log of the ledger's wealth factor for the trade, after bar t moved both sides. It depends on the
belief so little (volatility squared times a cost) that it is taken in the middle one. Weights live on
a grid of (share in risky assets, the first asset's share of those), values between nodes come from quadratic
interpolation: a linear one acts as if weights moved at random, and charges for trading it away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from finflow.market.laws import Law

__all__ = ["TradingRule", "interpolation", "proportional_cost", "solve_with_costs"]

FloatArray = NDArray[np.float64]
TradingCost = Callable[[FloatArray, FloatArray], FloatArray]
"""Log wealth factor (0 or less) of trades from weights (..., K) to weights (..., K), which broadcast."""

_TOLERANCE = 1e-8
_MOST_SWEEPS = 20_000
_EVALUATIONS = 10
"""Sweeps under one choice of targets between two searches for a better one."""
_NO_CASH = 1e-9


def proportional_cost(rate: float) -> TradingCost:
    """The ledger's cost of a trade at a proportional rate, in closed form.

    ``mu = 1 - rate * sum |mu a - w|`` is linear in mu once the signs of the trades are known. They are taken from
    a - w, which errs only for trades so small (under rate * a) that the error is below rate squared (a test).
    """

    def cost(before: FloatArray, target: FloatArray) -> FloatArray:
        held, wanted = before[..., :-1], target[..., :-1]
        sign = np.sign(wanted - held)
        paid: FloatArray = np.log1p(rate * (sign * held).sum(axis=-1)) - np.log1p(rate * (sign * wanted).sum(axis=-1))
        return paid

    return cost


def interpolation(nodes: FloatArray, values: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
    """Quadratic Lagrange interpolation on ascending nodes; values beyond the ends count as the ends.

    Returns
    -------
    index : int array (*values.shape, 3), or (..., 1) where there is one node
    share : float64 of the same shape, summing to one
    """
    if len(nodes) == 1:
        return np.zeros((*values.shape, 1), dtype=np.int64), np.ones((*values.shape, 1))
    values = np.clip(values, nodes[0], nodes[-1])
    middles = 0.5 * (nodes[1:] + nodes[:-1])
    center = np.clip(np.searchsorted(middles, values), 1, len(nodes) - 2)
    index = np.stack([center - 1, center, center + 1], axis=-1)
    left, mid, right = (nodes[index[..., i]] for i in range(3))
    share = np.stack(
        [
            (values - mid) * (values - right) / ((left - mid) * (left - right)),
            (values - left) * (values - right) / ((mid - left) * (mid - right)),
            (values - left) * (values - mid) / ((right - left) * (right - mid)),
        ],
        axis=-1,
    )
    return index, share


@dataclass(frozen=True, eq=False)
class _Grid:
    """Nodes of weights: share in risky assets by the first asset's share of those."""

    invested: FloatArray
    first: FloatArray

    @property
    def weights(self) -> FloatArray:
        """(nodes, 3), cash last."""
        invested, first = (grid.ravel() for grid in np.meshgrid(self.invested, self.first, indexing="ij"))
        return np.stack([invested * first, invested * (1.0 - first), 1.0 - invested], axis=1)

    def between(self, weights: FloatArray) -> tuple[NDArray[np.int64], FloatArray]:
        """Nodes and their shares for weights (..., 3), each of shape (..., up to 9)."""
        invested = weights[..., 0] + weights[..., 1]
        first = np.where(invested > _NO_CASH, weights[..., 0] / np.maximum(invested, _NO_CASH), 0.5)
        rows, row_share = interpolation(self.invested, invested)
        columns, column_share = interpolation(self.first, first)
        index = rows[..., :, None] * len(self.first) + columns[..., None, :]
        share = row_share[..., :, None] * column_share[..., None, :]
        return index.reshape(*weights.shape[:-1], -1), share.reshape(*weights.shape[:-1], -1)


@dataclass(frozen=True, eq=False)
class TradingRule:
    """Targets from belief and weights held: the best node of the grid, or no trade where that is better.

    Attributes
    ----------
    beliefs : float64 (B,)
    nodes : float64 (S, 3)
        Weights that may be targets.
    worth : float64 (S, B)
        What holding a node is worth, before the cost of getting there.
    """

    beliefs: FloatArray
    nodes: FloatArray
    worth: FloatArray
    grid: _Grid
    cost: TradingCost

    def targets(self, beliefs: FloatArray, weights: FloatArray) -> FloatArray:
        """Targets (batch, 3) for beliefs (batch,) and weights held (batch, 3)."""
        index, share = interpolation(self.beliefs, beliefs)
        worth = (self.worth[:, index] * share).sum(axis=2).T
        after_cost = worth + self.cost(weights[:, None, :], self.nodes)
        best = after_cost.argmax(axis=1)
        rows = np.arange(len(worth))
        near, near_share = self.grid.between(weights)
        held = (worth[rows[:, None], near] * near_share).sum(axis=1)
        if len(self.grid.invested) == 1:  # cash is never best: what is not invested cannot be judged by the grid
            held = np.where(weights[:, 2] > 1e-6, -np.inf, held)
        hold = held >= after_cost[rows, best]
        return np.where(hold[:, None], weights, self.nodes[best])


def solve_with_costs(law: Law, cost: TradingCost, cash: float, with_cash: bool) -> tuple[TradingRule, float]:
    """Solve the program above by relative value iteration.

    Parameters
    ----------
    law : Law
        Of two assets.
    cost : callable
        Log wealth factor of a trade.
    cash : float
        Log return of cash over a bar.
    with_cash : bool
        False restricts the search to fully invested portfolios, for markets where cash is never best.

    Returns
    -------
    rule : TradingRule
    gain : float
        Expected log growth a bar, costs paid.
    """
    beliefs = law.beliefs
    fine = len(beliefs) == 1 or not with_cash
    grid = _Grid(
        invested=np.linspace(0.0, 1.0, 61 if fine else 25) if with_cash else np.ones(1),
        first=np.linspace(0.0, 1.0, 11 if with_cash else 61),
    )
    nodes = grid.weights
    ahead, growth = _moves(law, grid, nodes, cash)
    n_nodes, n_beliefs = growth.shape
    costs = _expected_cost(law, nodes, cost, cash)
    value = np.zeros_like(growth)
    columns = np.arange(n_beliefs)
    choice = np.zeros((n_nodes, n_beliefs), dtype=np.int64)
    paid = np.zeros_like(growth)
    for sweep in range(_MOST_SWEEPS):
        worth = (ahead @ (growth + value).ravel()).reshape(n_nodes, n_beliefs)
        searching = sweep % _EVALUATIONS == 0
        if searching:
            for column in range(n_beliefs):
                choice[:, column] = (costs + worth[:, column]).argmax(axis=1)
            paid = np.take_along_axis(costs, choice, axis=1)
        renewed = paid + worth[choice, columns]
        change = renewed - value
        value = renewed - renewed[0, 0]
        if searching and np.ptp(change) < _TOLERANCE:
            return TradingRule(beliefs, nodes, worth, grid, cost), float(0.5 * (change.max() + change.min()))
    raise RuntimeError(f"value iteration has not settled after {_MOST_SWEEPS} sweeps")


def _expected_cost(law: Law, nodes: FloatArray, cost: TradingCost, cash: float) -> FloatArray:
    """C: log wealth factor of every trade (from, to), once bar t has moved both sides; in the middle belief."""
    probability, returns, _ = law.scenarios(float(law.beliefs[len(law.beliefs) // 2]))
    expected = np.zeros((len(nodes), len(nodes)))
    for chance, move in zip(probability, returns, strict=True):
        grown = nodes * np.exp(np.append(move, cash))
        drifted = grown / grown.sum(axis=1, keepdims=True)
        expected += chance * cost(drifted[:, None, :], drifted)
    return expected


def _moves(law: Law, grid: _Grid, nodes: FloatArray, cash: float) -> tuple[csr_matrix, FloatArray]:
    """Where a target in each belief drifts to, as a matrix over (node, belief), and G at every (node, belief)."""
    beliefs = law.beliefs
    n_nodes, n_beliefs = len(nodes), len(beliefs)
    expected = np.empty((n_nodes, n_beliefs))
    parts: list[tuple[FloatArray, NDArray[np.int64], NDArray[np.int64]]] = []
    for column, belief in enumerate(beliefs):
        probability, returns, after = law.scenarios(float(belief))
        factors = np.exp(np.column_stack([returns, np.full(len(returns), cash)]))
        grown = nodes[:, None, :] * factors
        total = grown.sum(axis=2, keepdims=True)
        expected[:, column] = np.log(total[..., 0]) @ probability
        index, share = grid.between(grown / total)
        next_index, next_share = interpolation(beliefs, after)
        target = index[..., :, None] * n_beliefs + next_index[None, :, None, :]
        weight = share[..., :, None] * next_share[None, :, None, :] * probability[None, :, None, None]
        source = np.broadcast_to((np.arange(n_nodes) * n_beliefs + column)[:, None, None, None], target.shape)
        parts.append((weight.ravel(), source.ravel(), target.ravel()))
    weight, source, target = (np.concatenate([part[i] for part in parts]) for i in range(3))
    size = n_nodes * n_beliefs
    return csr_matrix((weight, (source, target)), shape=(size, size)), expected
