"""Trades and holdings of a backtest: what its account did, in money."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import share_prices
from finflow.evaluation.backtest import Backtest
from finflow.ledger.accounting import drift_and_pay, pay_out
from finflow.ledger.costs import NO_TRADE

FloatArray = NDArray[np.float64]


def trades(process: DecisionProcess, window: range, run: Backtest) -> pd.DataFrame:
    """Purchases and sales of a backtest on its process, a row for each asset and fill.

    Returns
    -------
    DataFrame
        ``date`` of the fill, ``asset``, ``side`` (buy, sell, or end where an asset was paid out at its last price),
        ``units`` and ``price`` (adjusted where the prices are), ``value`` (units times price), ``cost``, both in
        money, and the ``weight`` ``before`` and ``after``. Wealth before a fill, less its costs, is wealth after.
    """
    bars = process.decision_bars(window)
    rows = slice(bars.start, bars.stop)
    growth, listed = process.growth[rows], process.listed[rows]
    wealth = process.env.initial_capital * run.wealth[:-1]
    held = np.zeros_like(run.weights)
    held[0, -1] = 1.0
    dividends = None if process.dividends is None else process.dividends[rows][1:]
    held[1:] = drift_and_pay(run.weights[:-1], growth[1:], dividends)
    before = pay_out(held, listed)
    after = (1.0 - run.costs)[:, None] * run.weights
    change = after[:, :-1] - before[:, :-1]
    change[np.abs(change) <= NO_TRADE] = 0.0
    cost = process.costs.by_asset(change, wealth, process.market_known(bars)) * wealth[:, None]
    ended = np.where(listed, 0.0, -held[:, :-1])
    step, asset = np.nonzero((change != 0.0) | (ended != 0.0))
    moved = np.where(change != 0.0, change, ended)[step, asset] * wealth[step]
    price = _last_prices(share_prices(process.panel, process.env.fill), rows)[step, asset]
    paid_out = ended[step, asset] != 0.0
    return pd.DataFrame(
        {
            "date": process.panel.dates[rows][step],
            "asset": pd.Categorical.from_codes(asset, categories=pd.Index(process.panel.assets)),
            "side": np.where(paid_out, "end", np.where(moved > 0.0, "buy", "sell")),
            "units": np.abs(moved) / price,
            "price": price,
            "value": np.abs(moved),
            "cost": cost[step, asset],
            "before": held[step, asset],
            "after": run.weights[step, asset],
        }
    )


def holdings(process: DecisionProcess, window: range, run: Backtest) -> pd.DataFrame:
    """Holdings right after each fill, a row for each asset held, and for cash.

    Returns
    -------
    DataFrame
        ``date``, ``asset``, ``units``, ``price`` (1 for cash), ``value`` in money, ``weight``.
    """
    bars = process.decision_bars(window)
    rows = slice(bars.start, bars.stop)
    wealth = process.env.initial_capital * run.wealth[:-1] * (1.0 - run.costs)
    prices = _last_prices(share_prices(process.panel, process.env.fill), rows)
    prices = np.column_stack([prices, np.ones(len(prices))])
    step, asset = np.nonzero(run.weights > 0.0)
    weight = run.weights[step, asset]
    value = weight * wealth[step]
    price = prices[step, asset]
    return pd.DataFrame(
        {
            "date": process.panel.dates[rows][step],
            "asset": pd.Categorical.from_codes(asset, categories=pd.Index(run.assets)),
            "units": value / price,
            "price": price,
            "value": value,
            "weight": weight,
        }
    )


def as_parquet(table: pd.DataFrame) -> bytes:
    """The table as a Parquet file; equal tables make equal bytes."""
    buffer = io.BytesIO()
    table.to_parquet(buffer, engine="pyarrow", compression="zstd", index=False)
    return buffer.getvalue()


def _last_prices(prices: FloatArray, rows: slice) -> FloatArray:
    """Prices of these bars; of an asset that has ended, its last one."""
    return pd.DataFrame(prices[: rows.stop]).ffill().to_numpy()[rows]
