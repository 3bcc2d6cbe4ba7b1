"""Dynamic programming under costs: the best portfolio when trading costs something.

Up to four assets and cash, a price process that is Markov in one number (its belief), lag 1. Before decision t the
state is the belief after bar t - 1 and the weights w right after the last fill, at that bar's prices. The target a is
stated at the same prices; both drift through bar t, their difference is traded, and what was filled earns bar t + 1.
With b' the belief after bar t, w' the weights after drifting a through it, and
G(w, b) = E[log growth of w over the next bar | b]:

    V(w, b) + gain = max_a { C(w, a) + E[G(w', b') + V(w', b') | b] }

C is the expected log of the ledger's wealth factor for the trade, after bar t moved both sides. It depends on the
belief so little (volatility squared times a cost) that it is taken in the middle one. Weights lie on
a grid of (share in risky assets, the first asset's share of those, the second's share of what is then left, and so on),
values between nodes come from quadratic interpolation: a linear one acts as if weights moved at random, and charges
for trading it away. Targets are the nodes, equal weight, and what would be best if trading were free.

More assets have fewer nodes on each axis: three assets are solved in seconds, four in up to half a minute.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from finflow.arrays import FloatArray, IntArray
from finflow.market.sources.synthetic_market import PriceProcess

_TOLERANCE = 1e-8
_MOST_SWEEPS = 20_000
_EVALUATIONS = 10  # sweeps under one choice of targets between two searches for a better one
_LARGEST_CHUNK = 1_000_000  # entries of the transition matrix that are made at a time, to bound memory
_NO_HOLDING = 1e-9


def trading_cost(rate: float, before: FloatArray, target: FloatArray) -> FloatArray:
    """Log wealth factor (0 or less) of trades from weights (..., K) to weights (..., K), which broadcast.

    The ledger's ``mu = 1 - rate * sum |mu a - w|`` is linear in mu once the signs of the trades are known. They are
    taken from a - w, which errs only for trades so small (under rate * a) that the error is below rate squared.
    """
    sold, bought = np.ones(()), np.ones(())
    for asset in range(before.shape[-1] - 1):  # a loop: sums over a last axis this short are slow
        held, wanted = before[..., asset], target[..., asset]
        sign = rate * np.sign(wanted - held)
        sold, bought = sold + sign * held, bought + sign * wanted
    return np.asarray(np.log(sold / bought))


def gross_growth(returns: FloatArray, cash: float) -> FloatArray:
    """Gross growth (n, K), cash last, from log returns (n, assets) and the log return of cash."""
    return np.asarray(np.exp(np.column_stack([returns, np.full(len(returns), cash)])))


def interpolation(nodes: FloatArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
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


class _Grid:
    """Nodes of weights of two to four assets: the product of the axes, each portfolio once; fewer for more beliefs.

    Axes are the share in risky assets, then each asset's share of what those before it leave. Without cash only fully
    invested portfolios are searched.
    """

    def __init__(self, n_assets: int, with_cash: bool, n_beliefs: int) -> None:
        some, shares = ({2: 61, 3: 21, 4: 13}, {2: 11, 3: 7, 4: 5}) if with_cash else ({}, {2: 61, 3: 15, 4: 7})
        if with_cash and n_beliefs > 1:
            some = {2: 25, 3: 9, 4: 7}
        share = np.linspace(0.0, 1.0, shares[n_assets])
        self.axes = (np.linspace(0.0, 1.0, some[n_assets]) if some else np.ones(1), *[share] * (n_assets - 1))
        invested, *parts = (grid.ravel() for grid in np.meshgrid(*self.axes, indexing="ij"))
        columns, left = [], invested
        for part in parts:
            columns.append(left * part)
            left = left * (1.0 - part)
        every = np.stack([*columns, left, 1.0 - invested], axis=1)
        _, first, place = np.unique(np.round(every, 12), axis=0, return_index=True, return_inverse=True)
        self.weights: FloatArray = every[first]
        self._place: IntArray = place.ravel()

    def between(self, weights: FloatArray) -> tuple[IntArray, FloatArray]:
        """Nodes and their shares for weights (..., K), each of shape (..., up to 3 to the number of axes)."""
        left = weights[..., :-1].sum(axis=-1)
        index, share = interpolation(self.axes[0], left)
        for asset, axis in enumerate(self.axes[1:]):
            held = weights[..., asset]
            part = np.where(left > _NO_HOLDING, held / np.maximum(left, _NO_HOLDING), 0.5)
            next_index, next_share = interpolation(axis, part)
            index = (index[..., :, None] * len(axis) + next_index[..., None, :]).reshape(*part.shape, -1)
            share = (share[..., :, None] * next_share[..., None, :]).reshape(*part.shape, -1)
            left = left - held
        return self._place[index], share


@dataclass(frozen=True, eq=False)
class TradingRule:
    """Targets from belief and weights held: the best of those considered, or no trade where that is better."""

    beliefs: FloatArray
    candidates: FloatArray  # (T, K), weights that may be targets; the grid's nodes first
    values: FloatArray  # (T, B), expected log growth to come of who holds a candidate, before the cost of trading to it
    grid: _Grid
    rate: float

    def targets(self, beliefs: FloatArray, weights: FloatArray) -> FloatArray:
        """Targets (batch, K) for beliefs (batch,) and weights held (batch, K)."""
        index, share = interpolation(self.beliefs, beliefs)
        values = (self.values[:, index] * share).sum(axis=2).T
        after_cost = values + trading_cost(self.rate, weights[:, None, :], self.candidates)
        best = after_cost.argmax(axis=1)
        rows = np.arange(len(values))
        near, near_share = self.grid.between(weights)
        held = (values[rows[:, None], near] * near_share).sum(axis=1)
        if len(self.grid.axes[0]) == 1:  # cash is never best: what is not invested cannot be judged by the grid
            held = np.where(weights[:, -1] > 1e-6, -np.inf, held)
        hold = held >= after_cost[rows, best]
        return np.where(hold[:, None], weights, self.candidates[best])


def solve_with_costs(
    process: PriceProcess, rate: float, cash: float, with_cash: bool, extra_targets: FloatArray
) -> tuple[TradingRule, float]:
    """Solve the program above by relative value iteration.

    Parameters
    ----------
    rate : float
        Cost of a trade as a share of what is traded.
    cash : float
        Log return of cash over a bar.
    with_cash : bool
        False restricts the search to fully invested portfolios.
    extra_targets : float64 (n, K)
        Portfolios to consider as targets in addition to the nodes of the grid.

    Returns
    -------
    tuple
        The rule, and its expected log growth a bar, costs paid.
    """
    beliefs = process.beliefs
    grid = _Grid(process.n_assets, with_cash, len(beliefs))
    nodes = grid.weights
    candidates = np.concatenate([nodes, extra_targets])
    ahead, earned = _moves(process, grid, candidates, cash)
    costs = _expected_cost(process, nodes, candidates, rate, cash)
    value, paid = np.zeros((2, len(nodes), len(beliefs)))
    columns = np.arange(len(beliefs))
    choice = np.zeros(value.shape, dtype=np.int64)
    for sweep in range(_MOST_SWEEPS):
        values = earned + (ahead @ value.ravel()).reshape(earned.shape)
        searching = sweep % _EVALUATIONS == 0
        if searching:
            for column in columns:
                choice[:, column] = (costs + values[:, column]).argmax(axis=1)
            paid = np.take_along_axis(costs, choice, axis=1)
        renewed = paid + values[choice, columns]
        change = renewed - value
        value = renewed - renewed[0, 0]
        if searching and np.ptp(change) < _TOLERANCE:
            return TradingRule(beliefs, candidates, values, grid, rate), float(0.5 * (change.max() + change.min()))
    raise RuntimeError(f"value iteration has not settled after {_MOST_SWEEPS} sweeps")


def _expected_cost(
    process: PriceProcess, nodes: FloatArray, candidates: FloatArray, rate: float, cash: float
) -> FloatArray:
    """C: log wealth factor of every trade (from, to), once bar t has moved both sides; in the middle belief."""
    probability, returns, _ = process.scenarios(float(process.beliefs[len(process.beliefs) // 2]))
    expected = np.zeros((len(nodes), len(candidates)))
    for chance, move in zip(probability, returns, strict=True):
        factors = np.exp(np.append(move, cash))
        before, target = (each * factors / (each @ factors)[:, None] for each in (nodes, candidates))
        expected += chance * trading_cost(rate, before[:, None, :], target)
    return expected


def _moves(
    process: PriceProcess, grid: _Grid, candidates: FloatArray, cash: float
) -> tuple[scipy.sparse.csr_matrix, FloatArray]:
    """Drift of each target: rows (candidate, belief), columns (node, belief); and E[G] there, of the same rows."""
    beliefs = process.beliefs
    n_nodes, n_beliefs = len(grid.weights), len(beliefs)
    held = np.empty((n_nodes, n_beliefs))
    blocks = []
    for column, belief in enumerate(beliefs):
        probability, returns, after = process.scenarios(float(belief))
        factors = gross_growth(returns, cash)
        held[:, column] = np.log(grid.weights @ factors.T) @ probability
        next_index, next_share = interpolation(beliefs, after)
        reached: Any = 0.0
        size = len(candidates) * 3 ** len(grid.axes) * next_index.shape[1]
        for part in np.array_split(np.arange(len(probability)), -(-len(probability) * size // _LARGEST_CHUNK)):
            grown = candidates[:, None, :] * factors[part]
            index, share = grid.between(grown / grown.sum(axis=2, keepdims=True))
            target = index[..., :, None] * n_beliefs + next_index[part][:, None, :]
            weight = (probability[part, None] * share)[..., None] * next_share[part][:, None, :]
            rows = np.repeat(np.arange(len(candidates)), weight[0].size)
            shape = (len(candidates), n_nodes * n_beliefs)
            reached = reached + scipy.sparse.csr_matrix((weight.ravel(), (rows, target.ravel())), shape=shape)
        blocks.append(reached)
    by_belief = scipy.sparse.vstack(blocks, format="csr")
    order = np.arange(len(candidates) * n_beliefs).reshape(n_beliefs, len(candidates)).T.ravel()
    ahead = scipy.sparse.csr_matrix(by_belief[order])
    return ahead, (ahead @ held.ravel()).reshape(len(candidates), n_beliefs)
