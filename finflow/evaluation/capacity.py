"""How dear trading may become, and how large an account, before a strategy is no longer worth it.

Both are found by running the backtest again, at other costs or with another capital, until the answer is exact: what
a strategy decides may depend on what it holds. A strategy that remembers must start anew every time, so it is given
as a function that makes it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq

from finflow.config import CostsConfig
from finflow.env.decision import DecisionProcess
from finflow.errors import ConfigError
from finflow.evaluation.backtest import run_backtests
from finflow.strategies.base import Strategy
from finflow.strategies.classical import EqualWeight

DEAREST_BPS = 1000.0
SMALLEST_CAPITAL, LARGEST_CAPITAL = 1e2, 1e16
BPS_TOLERANCE = 1e-6
CAPITAL_TOLERANCE = 1e-4  # relative
STEP = 2.0  # from one cost to the next in the search for a change of sign


def break_even_bps(process: DecisionProcess, window: range, make: Callable[[], Strategy]) -> float:
    """The proportional cost at which a strategy earns on average what equal weight earns, both net of it.

    Parameters
    ----------
    process : DecisionProcess
        Its commission and slippage are replaced by the cost sought; costs under ``env.costs`` stay.
    window : range
        Bars of the backtest.
    make : callable
        Makes the strategy, fresh.

    Returns
    -------
    float
        Basis points of the value traded. Zero where the strategy does not beat equal weight even for nothing;
        infinite where it still does at 1000, as one that trades less than equal weight may. Where the excess changes
        its sign more than once, about the lowest such cost.
    """

    def excess(bps: float) -> float:
        env = process.env.model_copy(update={"commission_bps": bps, "slippage_bps": 0.0})
        return _mean_excess(process.repriced(env), window, make)

    if excess(0.0) <= 0.0:
        return 0.0
    low, high = 0.0, 1.0
    while excess(high) > 0.0:
        if high >= DEAREST_BPS:
            return float("inf")
        low, high = high, min(STEP * high, DEAREST_BPS)
    return float(brentq(excess, low, high, xtol=BPS_TOLERANCE, rtol=1e-12))


def capacity(process: DecisionProcess, window: range, make: Callable[[], Strategy], share: float = 0.5) -> float:
    """The capital at which costs that grow with size take a share of what a strategy earns beyond equal weight.

    What it earns is its mean net return over that of equal weight, both without those costs; what they take is the
    strategy's own mean net return without them less that with them.

    Parameters
    ----------
    process : DecisionProcess
        With slippage by size or impact under ``env.costs``.
    window : range
        Bars of the backtest.
    make : callable
        Makes the strategy, fresh.
    share : float
        Between zero and one.

    Returns
    -------
    float
        Initial capital in money, to one part in ten thousand. Zero where the strategy does not beat equal weight, or
        the share is gone, at a capital of 100 already (which a fixed minimum alone may do: capacity is sought from
        there upwards); infinite where it is not gone at 1e16. An order that the account cannot pay for is beyond it.

    Raises
    ------
    ConfigError
        If no cost of the process grows with size.
    """
    if not process.costs.needs_market:
        raise ConfigError("capacity needs a cost that grows with size: set env.costs.impact (1 is usual) above zero")
    if not 0.0 < share < 1.0:
        raise ValueError(f"the share that is lost lies between 0 and 1, not at {share}")

    def bearable(capital: float) -> bool:
        """Whether less than the share is lost at this capital."""
        env = process.env.model_copy(update={"initial_capital": capital})
        free = env.model_copy(update={"costs": CostsConfig(minimum=env.costs.minimum)})
        ideal, equal = run_backtests(process.repriced(free), window, [make(), EqualWeight()])
        (full,) = run_backtests(process.repriced(env), window, [make()])
        earned = float(ideal.returns.mean() - equal.returns.mean())
        return full.refused is None and float(ideal.returns.mean() - full.returns.mean()) < share * earned

    low = SMALLEST_CAPITAL
    if not bearable(low):
        return 0.0
    while bearable(high := 10.0 * low):
        if high >= LARGEST_CAPITAL:
            return float("inf")
        low = high
    while high / low > 1.0 + CAPITAL_TOLERANCE:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if bearable(middle) else (low, middle)
    return low


def _mean_excess(process: DecisionProcess, window: range, make: Callable[[], Strategy]) -> float:
    """Mean net return a bar over that of equal weight."""
    own, equal = run_backtests(process, window, [make(), EqualWeight()])
    return float(own.returns.mean() - equal.returns.mean())
