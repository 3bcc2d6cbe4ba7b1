"""Wealth of online portfolio selection on the sets of its papers: finflow's rules and ledger, without costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.config import EnvConfig, ObjectivesConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import Moments
from finflow.evaluation.backtest import run_backtests
from finflow.market.features.feature_set import Features
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import BuyAndHold
from finflow.strategies.online_selection import ConstantRebalanced, MeanReversion, PassiveAggressiveMeanReversion
from finflow.strategies.strategy import Information, Strategy
from scripts.replicate.comparison import Comparison
from scripts.replicate.published import WEALTH
from scripts.replicate.relative_sets import SIZES

FloatArray = NDArray[np.float64]

TOOLBOX_OPENING = "olmar, opening of the toolbox"


class ToolboxOpening(MeanReversion):
    """OLMAR with the opening of the authors' toolbox.

    Even until two relatives are known, then, while no more relatives are known than the window has prices, the last
    relative stands in for the prediction. finflow averages the prices that it knows instead.
    """

    name = TOOLBOX_OPENING

    def update(self, weights: FloatArray, prices: FloatArray) -> FloatArray:
        return weights if len(prices) < 3 else super().update(weights, prices)

    def predict(self, prices: FloatArray) -> FloatArray:
        if len(prices) - 1 > self.window:
            return super().predict(prices)
        last: FloatArray = prices[-1] / prices[-2]
        return last

    def newest(self, prices: FloatArray) -> FloatArray:
        return prices


class _FromFirstPrice:
    """A rule that is not shown the bar before the first, which the ledger needs to begin with."""

    def __init__(self, strategy: Strategy) -> None:
        self.name, self._strategy = strategy.name, strategy

    def decide(self, information: Information) -> FloatArray:
        return self._strategy.decide(replace(information, prices=information.prices[1:]))


_RULES: Mapping[str, tuple[type[Strategy], ...]] = {
    "pamr": (PassiveAggressiveMeanReversion,),
    "olmar": (MeanReversion, ToolboxOpening),
}
_PLAIN: tuple[type[Strategy], ...] = (BuyAndHold, ConstantRebalanced)


def compare_wealth(rule: str, sets: Mapping[str, FloatArray]) -> list[Comparison]:
    """Wealth of a rule, and of holding and of rebalancing evenly, on every set.

    Parameters
    ----------
    sets : mapping
        Name -> prices, (rows + 1, assets).
    """
    rows = []
    for name, prices in sets.items():
        same = SIZES.get(name) == (len(prices) - 1, prices.shape[1])
        for what, value in final_wealth(prices, [made() for made in (*_PLAIN, *_RULES[rule])]).items():
            published, source = WEALTH.get((name, what), (None, "")) if same else (None, "")
            rows.append(Comparison(name, what, value, published, source, _said(name, what, same)))
    return rows


def final_wealth(prices: FloatArray, strategies: Sequence[Strategy]) -> dict[str, float]:
    """Wealth at the end, of 1 invested, without costs: each decision fills at the close that it has just seen.

    Parameters
    ----------
    prices : float64 (bars, assets)
    """
    process = _process(np.vstack([prices[:1], prices]))
    runs = run_backtests(process, range(len(prices) + 1), [_FromFirstPrice(strategy) for strategy in strategies])
    return {run.name: float(np.exp(np.log1p(run.returns).sum())) for run in runs}


def _process(prices: FloatArray) -> DecisionProcess:
    """The ledger over prices on business days that stand for the unknown dates, without costs and features."""
    bars, assets = prices.shape
    panel = MarketPanel(
        dates=pd.bdate_range("1970-01-01", periods=bars).to_numpy(dtype="datetime64[D]"),
        assets=tuple(f"A{number}" for number in range(1, assets + 1)),
        close=prices,
    )
    features = Features(
        assets=np.zeros((bars, assets, 1), dtype=np.float32),
        market=np.zeros((bars, 1), dtype=np.float32),
        asset_names=("none",),
        market_names=("none",),
        lenses={},
        first_bar=0,
    )
    env = EnvConfig(execution_lag=0, commission_bps=0.0, slippage_bps=0.0)
    return DecisionProcess(panel, features, env, ObjectivesConfig(), Moments(4e-4, 1e-4))


def _said(name: str, what: str, same: bool) -> str:
    if not same:
        return "another set than the papers'" if name in SIZES else "no set of the papers by its name"
    if what == "olmar" and (name, what) in WEALTH:
        return "the opening: finflow averages the prices known, the toolbox stays even and then takes the last relative"
    return ""
