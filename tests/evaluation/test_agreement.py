"""An independent backtester, given our share quantities, comes to our equity to the last digits that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bt
import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from finflow.config import EnvConfig, EvaluationConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.process_variants import with_costs
from finflow.evaluation.backtest import run_backtests
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import BuyAndHold, EqualWeight, named_strategy
from finflow.strategies.online_selection import MeanReversion
from finflow.strategies.strategy import Information, Strategy
from tests.evaluation.plain_processes import process_on

FloatArray = NDArray[np.float64]

BARS, ASSETS, FIRST, CAPITAL = 420, 6, 280, 1_000_000.0
RATE = 0.0015  # 10 bp of commission and 5 bp of slippage, the defaults
LAGS = pytest.mark.parametrize("lag", [0, 1])


class MonthlyMomentum:
    """The better half of the last half year, equally, on every 21st decision; held in between."""

    name = "monthly momentum"

    def decide(self, information: Information) -> FloatArray:
        if information.step % 21:
            return information.portfolio
        gained = information.prices[-1] / information.prices[-127]
        chosen = np.append(gained >= np.median(gained), False)
        return chosen / chosen.sum()


def made_process(lag: int) -> DecisionProcess:
    rng = np.random.default_rng(4)
    close = 50.0 * np.exp(np.cumsum(rng.normal(3e-4, 0.02, size=(BARS, ASSETS)), axis=0))
    panel = MarketPanel(
        dates=pd.bdate_range("2015-01-01", periods=BARS).to_numpy().astype("datetime64[D]"),
        assets=tuple("ABCDEF"),
        close=close,
    )
    return process_on(panel, execution_lag=lag, initial_capital=CAPITAL)


def played(strategy: Strategy, lag: int) -> tuple[pd.DataFrame, pd.DataFrame, FloatArray]:
    """Closing prices, the shares held after each fill, and equity after each fill."""
    process = made_process(lag)
    window = range(FIRST, BARS)
    (run,) = run_backtests(process, window, [strategy])
    bars = process.decision_bars(window)
    before = CAPITAL * np.concatenate([[1.0], np.cumprod(1.0 + run.returns)[:-1]])
    equity = before * (1.0 - run.costs)
    prices = pd.DataFrame(process.panel.close, columns=list(process.panel.assets))
    prices.index = pd.DatetimeIndex(process.panel.dates)
    prices = prices.iloc[bars.start : bars.stop]
    shares = pd.DataFrame(
        equity[:, None] * run.weights[:, :-1] / prices.to_numpy(), index=prices.index, columns=prices.columns
    )
    return prices, shares, equity


class Orders(bt.Algo):
    """Buys and sells given numbers of shares."""

    def __init__(self, shares: pd.DataFrame) -> None:
        super().__init__()
        self.trades = shares.diff().fillna(shares.iloc[:1])

    def __call__(self, target: Any) -> bool:
        if target.now in self.trades.index:
            for name, quantity in self.trades.loc[target.now].items():
                if quantity != 0.0:
                    target.transact(quantity, child=name)
        return True


def equity_by_bt(prices: pd.DataFrame, algos: list[Any]) -> FloatArray:
    """bt's own account: its cash, its fees, its valuation, at each close after trading."""
    test = bt.Backtest(
        bt.Strategy("theirs", algos, children=list(prices.columns)),
        prices,
        initial_capital=CAPITAL,
        commissions=lambda quantity, price: RATE * abs(quantity) * price,
        integer_positions=False,
        progress_bar=False,
    )
    test.run()
    values: FloatArray = test.strategy.values.loc[prices.index].to_numpy(dtype=np.float64)
    return values


@LAGS
@pytest.mark.parametrize("make", [EqualWeight, BuyAndHold, MonthlyMomentum, MeanReversion])
def test_bt_with_our_shares_has_our_equity(make: Callable[[], Strategy], lag: int) -> None:
    prices, shares, equity = played(make(), lag)
    theirs = equity_by_bt(prices, [Orders(shares)])
    np.testing.assert_allclose(theirs, equity, rtol=1e-9, atol=0)
    assert len(equity) == BARS - FIRST - 1
    assert equity.max() / equity.min() > 1.05  # something happened


@pytest.mark.parametrize("name", ["crp", "eg", "pamr", "olmar"])
def test_online_selection_without_costs_earns_what_the_papers_count(name: str) -> None:
    """Wealth is the product of b . x when nothing is paid and decisions fill at once."""
    process = with_costs(made_process(0), EnvConfig(commission_bps=0.0, slippage_bps=0.0, initial_capital=CAPITAL))
    (run,) = run_backtests(process, range(FIRST, BARS), [named_strategy(name, EvaluationConfig())])
    strategy, close = named_strategy(name, EvaluationConfig()), process.panel.close
    expected = []
    for step, bar in enumerate(range(FIRST, BARS - 1)):
        chosen = strategy.decide(
            Information(step, close[: bar + 1], np.ones(ASSETS, dtype=np.bool_), np.eye(ASSETS + 1)[-1])
        )
        expected.append(float(chosen[:-1] @ (close[bar + 1] / close[bar])) - 1.0)
    np.testing.assert_allclose(run.returns, expected, rtol=0, atol=1e-12)
