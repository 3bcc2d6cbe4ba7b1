"""Expected growth of a policy on the ledger, over paths that are drawn of a price process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from finflow.ledger.accounting import drift, settle
from finflow.ledger.costs import CostModel, MarketState
from finflow.market.synthetic.price_processes import PriceProcess
from finflow.strategies.optimal.optimal_policy import expected_growth

FloatArray = NDArray[np.float64]
Targets = Callable[[FloatArray, FloatArray], FloatArray]
PATHS = 60


def draw_paths(process: PriceProcess, seed: int, bars: int) -> tuple[FloatArray, FloatArray]:
    """Beliefs (paths, bars) and gross growth (paths, bars - 1, K)."""
    rng = np.random.default_rng(seed)
    drawn = np.stack([process.draw(rng, bars) for _ in range(PATHS)])
    growth = np.exp(np.diff(drawn, axis=1))
    beliefs = np.stack([process.filtered(path) for path in drawn])
    return beliefs, np.concatenate([growth, np.ones_like(growth[..., :1])], 2)


def earned_growth(
    process: PriceProcess, paths: tuple[FloatArray, FloatArray], targets: Targets, costs: CostModel, settling: int
) -> FloatArray:
    """Expected log growth a bar of every path, each decision knowing bars up to one before its fill.

    Wealth is always as large as a day's volume; the first ``settling`` bars are left out.
    """
    (beliefs, growth), assets = paths, process.n_assets
    volume = MarketState(np.ones((PATHS, assets)), np.ones((PATHS, assets)))
    weights = np.tile([*[1.0 / assets] * assets, 0.0], (PATHS, 1))
    held, paid = [], []
    for bar in range(beliefs.shape[1] - 2):
        before, target = (drift(each, growth[:, bar]) for each in (weights, targets(beliefs[:, bar], weights)))
        fill = settle(before, target, costs, np.ones(PATHS), volume)
        weights = np.asarray(fill.weights)
        held.append(weights)
        paid.append(np.log(fill.wealth_factor))
    grown = expected_growth(process, np.concatenate(held[settling:]), beliefs[:, settling + 1 : -1].T.ravel())
    return np.mean(paid[settling:], axis=0) + grown.reshape(-1, PATHS).mean(axis=0)
