"""An independent backtester, given our share quantities, comes to our equity to the last digits that it keeps."""

from __future__ import annotations

from typing import Any

import bt
import numpy as np
import pandas as pd
import pytest

from finflow.evaluation.backtest import run_backtests
from finflow.strategies.classical import BuyAndHold, EqualWeight
from finflow.strategies.online_selection import MeanReversion
from finflow.strategies.strategy import Strategy
from tests.evaluation.made_up import process_of

CAPITAL = 1_000_000.0
RATE = 0.0015  # 10 bp of commission and 5 bp of slippage, the defaults


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


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("make", [EqualWeight, BuyAndHold, MeanReversion])
def test_bt_with_our_shares_has_our_equity(make: type[Strategy], lag: int) -> None:
    process = process_of(420, execution_lag=lag, initial_capital=CAPITAL)
    window = range(280, 420)
    (run,) = run_backtests(process, window, [make()])
    bars = process.decision_bars(window)
    before = CAPITAL * np.concatenate([[1.0], np.cumprod(1.0 + run.returns)[:-1]])
    equity = before * (1.0 - run.costs)
    prices = pd.DataFrame(process.panel.close, pd.DatetimeIndex(process.panel.dates), list(process.panel.assets)).iloc[
        bars.start : bars.stop
    ]
    shares = equity[:, None] * run.weights[:, :-1] / prices
    theirs = bt.Backtest(
        bt.Strategy("theirs", [Orders(shares)], children=list(prices.columns)),
        prices,
        initial_capital=CAPITAL,
        commissions=lambda quantity, price: RATE * abs(quantity) * price,
        integer_positions=False,
        progress_bar=False,
    )
    theirs.run()
    np.testing.assert_allclose(theirs.strategy.values.loc[prices.index], equity, rtol=1e-9, atol=0)
    assert len(equity) == 139
    assert equity.max() / equity.min() > 1.05  # something happened
