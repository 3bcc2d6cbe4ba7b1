"""How dear trading may become, and how large an account, before a strategy is no longer worth it.

Both are found by running the backtest again, at other costs or with another capital, until the answer is exact: what
a strategy decides may depend on what it holds. A strategy that remembers must start anew every time, so it is given
as a function that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import brentq

from finflow.config import CostsConfig
from finflow.env.decision_process import DecisionProcess
from finflow.errors import ConfigError
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.strategies.classical import EqualWeight
from finflow.strategies.strategy import Strategy

DEAREST_BPS = 1000.0
SMALLEST_CAPITAL, LARGEST_CAPITAL = 1e2, 1e16
BPS_TOLERANCE = 1e-6
CAPITAL_TOLERANCE = 1e-4  # relative
STEP = 2.0  # from one cost to the next in the search for a change of sign


def break_even_bps(
    process: DecisionProcess,
    window: range,
    make: Callable[[], Strategy],
    known: Mapping[float, float] | None = None,
    tolerance: float = BPS_TOLERANCE,
    score: Callable[[Backtest], float] | None = None,
) -> float:
    """The proportional cost at which a strategy earns on average what equal weight earns, both net of it.

    Parameters
    ----------
    process : DecisionProcess
        Its commission and slippage are replaced by the cost sought; costs under ``env.costs`` stay.
    window : range
        Bars of the backtest.
    make : callable
        Makes the strategy, fresh.
    known : mapping, optional
        Costs in basis points at which the score less that of equal weight is known already.
    tolerance : float
        Of the answer, in basis points.
    score : callable, optional
        What is compared; the mean return of a bar when left out.

    Returns
    -------
    float
        Basis points of the value traded. Zero where the strategy does not beat equal weight even for nothing;
        infinite where it still does at 1000, as one that trades less than equal weight may. Where the excess changes
        its sign more than once, about the lowest such cost.
    """

    found, measure = dict(known or {}), score or mean_return

    def excess(bps: float) -> float:
        if bps not in found:
            env = process.env.model_copy(update={"commission_bps": bps, "slippage_bps": 0.0})
            own, equal = run_backtests(process.repriced(env), window, [make(), EqualWeight()])
            found[bps] = measure(own) - measure(equal)
        return found[bps]

    if excess(0.0) <= 0.0:
        return 0.0
    low, ladder = 0.0, sorted(bps for bps in found if bps > 0.0) or [1.0]
    high = ladder.pop(0)
    while excess(high) > 0.0:
        if high >= DEAREST_BPS:
            return float("inf")
        low, high = high, ladder.pop(0) if ladder else min(STEP * high, DEAREST_BPS)
    return float(brentq(excess, low, high, xtol=tolerance, rtol=1e-12))


def capacity(
    process: DecisionProcess,
    window: range,
    make: Callable[[], Strategy],
    share: float = 0.5,
    tolerance: float = CAPITAL_TOLERANCE,
) -> float:
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
    tolerance : float
        Of the answer, relative.

    Returns
    -------
    float
        Initial capital in money. Zero where the strategy does not beat equal weight, or
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

    free: list[float] = []

    def bearable(capital: float) -> bool:
        """Whether less than the share is lost at this capital."""
        env = process.env.model_copy(update={"initial_capital": capital})
        if not free or env.costs.minimum > 0.0:  # else capital plays no part without the costs that grow with size
            unhindered = process.repriced(env.model_copy(update={"costs": CostsConfig(minimum=env.costs.minimum)}))
            both = run_backtests(unhindered, window, [make(), EqualWeight()])
            free[:] = [float(run.returns.mean()) for run in both]
        (full,) = run_backtests(process.repriced(env), window, [make()])
        ideal, equal = free
        return full.refused is None and ideal - float(full.returns.mean()) < share * (ideal - equal)

    low = SMALLEST_CAPITAL
    if not bearable(low):
        return 0.0
    while bearable(high := 10.0 * low):
        if high >= LARGEST_CAPITAL:
            return float("inf")
        low = high
    while high / low > 1.0 + tolerance:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if bearable(middle) else (low, middle)
    return low


def mean_return(run: Backtest) -> float:
    """Mean net return of a bar."""
    return float(run.returns.mean())
