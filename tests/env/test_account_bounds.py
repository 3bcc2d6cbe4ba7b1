"""What an account can hold at its first decision, and when it is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import RUIN, DecisionProcess

Prices = Callable[..., NDArray[np.float64]]
MakeProcess = Callable[..., DecisionProcess]


def test_an_asset_that_the_first_decision_does_not_know_yet_is_not_held(
    prices: Prices, process_of: MakeProcess
) -> None:
    """Listed at bar 20: a decision that fills at bar 21 with a lag of two saw the market up to bar 19."""
    close = prices()
    close[:20, 0] = np.nan
    process = process_of(close, execution_lag=2)
    assert process.known_listed(np.array([21, 22]))[:, 0].tolist() == [False, True]
    wanted = np.tile([1.0, 0.0, 0.0, 0.0, 0.0], (2, 1))
    assert process.start(np.array([21, 22]), wanted).weights[:, 0].tolist() == [0.0, 1.0]


def test_an_account_with_a_millionth_of_its_money_is_over(prices: Prices, process_of: MakeProcess) -> None:
    process = process_of(prices())
    state = process.start(np.array([30, 30]))
    wealth = RUIN * process.env.initial_capital * np.array([1.0, 1.1])
    cash = np.tile([0.0, 0.0, 0.0, 0.0, 1.0], (2, 1))
    assert process.step(replace(state, wealth=wealth), cash).terminated.tolist() == [True, False]
