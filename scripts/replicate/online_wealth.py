"""Wealth of online portfolio selection on the sets of its papers: finflow's rules and ledger, without costs."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from finflow.arrays import FloatArray
from finflow.config import EnvConfig, ObjectivesConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import Moments
from finflow.errors import MarketError
from finflow.evaluation.backtest import run_backtests
from finflow.market.features.feature_set import Features
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import BuyAndHold
from finflow.strategies.online_selection import ConstantRebalanced, MeanReversion, PassiveAggressiveMeanReversion
from finflow.strategies.strategy import Information, Strategy
from scripts.replicate.comparison import WEALTH, Comparison

TOOLBOX_OPENING = "olmar, opening of the toolbox"
_PLAIN: tuple[type[Strategy], ...] = (BuyAndHold, ConstantRebalanced)
SIZES = {
    "nyse_o": (5651, 36),
    "nyse_n": (6431, 23),
    "tse": (1259, 88),
    "sp500": (1276, 25),
    "msci": (1043, 24),
    "djia": (507, 30),
}
"""Rows and assets of the sets of the papers."""
_INSIDE = "universal/data/"
_HINT = (
    "the wheel of universal-portfolios 0.4.17 has the six sets (pip download --no-deps universal-portfolios==0.4.17): "
    "name it, or a folder of its CSV files such as djia.csv, with --data"
)


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


def read_sets(path: Path | None) -> tuple[dict[str, FloatArray], str]:
    """Prices of every set that is there, and the origin in words with its hash.

    Parameters
    ----------
    path : Path, optional
        The wheel of universal-portfolios, or a folder of its CSV files.

    Returns
    -------
    sets : dict
        Name -> prices, (rows + 1, assets); they begin at 1.

    Raises
    ------
    MarketError
        If nothing is named, or what is there cannot be read.
    """
    if path is None:
        raise MarketError(f"there are no price relatives: {_HINT}")
    if path.is_file() and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            members = {Path(name).stem: name for name in archive.namelist() if name.startswith(_INSIDE)}
            found = {name: archive.read(members[name]) for name in SIZES if name in members}
    else:
        found = {name: (path / f"{name}.csv").read_bytes() for name in SIZES if (path / f"{name}.csv").is_file()}
    if not found:
        raise MarketError(f"{path} has none of {', '.join(f'{name}.csv' for name in SIZES)}: {_HINT}")
    sets = {name: _chained(content, f"{name}.csv of {path}") for name, content in found.items()}
    digest = hashlib.sha256(b"".join(found.values())).hexdigest()[:16]
    return sets, f"{path.name}, SHA-256 of the sets {digest}"


def _chained(content: bytes, where: str) -> FloatArray:
    """Prices that begin at 1, from a CSV file of prices that begin at the first relative."""
    try:
        prices = pd.read_csv(io.BytesIO(content)).to_numpy(dtype=np.float64)
    except ValueError as error:
        raise MarketError(f"{where} is no table of prices ({' '.join(str(error).split())[:100]})") from None
    wrong = np.argwhere(~(np.isfinite(prices) & (prices > 0.0)))
    if len(wrong):
        raise MarketError(f"{where}, row {wrong[0][0] + 1}: column {wrong[0][1] + 1} has no price above zero")
    return np.vstack([np.ones(prices.shape[1]), prices])
