"""The portfolios an agent has to beat, and the way to name them.

Those of this file keep nothing between decisions; fitted rules are in `rolling_rules`, online selection is in
`online_selection`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.config import EvaluationConfig
from finflow.errors import FinflowError, typed_line
from finflow.imports import import_path
from finflow.market.bar_frequency import bars_per_month
from finflow.strategies.online_selection import (
    ConstantRebalanced,
    ExponentiatedGradient,
    MeanReversion,
    PassiveAggressiveMeanReversion,
)
from finflow.strategies.rolling_rules import OPTIMISERS, LowVolatility, Momentum, Optimised, TimeSeriesMomentum
from finflow.strategies.strategy import Information, Strategy, equal_weights, with_cash

FloatArray = NDArray[np.float64]

PATIENT = "equal-weight-patient"


class EqualWeight:
    """The same weight in every listed asset, restored at every decision."""

    name = "equal-weight"

    def decide(self, information: Information) -> FloatArray:
        return equal_weights(information.listed)


class PatientEqualWeight:
    """Equal weight, restored once a month (every 21 daily bars) and held in between.

    The verdict compares with it, because what only saves the costs of daily rebalancing has not beaten equal weight.
    """

    name = PATIENT

    def decide(self, information: Information) -> FloatArray:
        month = bars_per_month(information.bars_per_year)
        return information.portfolio if information.step % month else equal_weights(information.listed)


class BuyAndHold:
    """Equal weight at the first decision, then nothing: one purchase, no further trade."""

    name = "buy-and-hold"

    def decide(self, information: Information) -> FloatArray:
        return equal_weights(information.listed) if information.step == 0 else information.portfolio


class SixtyForty:
    """Six tenths in the listed assets equally, four in cash, restored at every `rebalance_every`-th decision."""

    name = "sixty-forty"

    def __init__(self, rebalance_every: int = 21) -> None:
        self.rebalance_every = rebalance_every

    def decide(self, information: Information) -> FloatArray:
        if information.step % self.rebalance_every != 0:
            return information.portfolio
        return with_cash(0.6 * equal_weights(information.listed)[:-1])


def _optimised(name: str, config: EvaluationConfig) -> Strategy:
    return Optimised(name, config.rebalance_every, config.lookback)


NAMED: dict[str, Callable[[EvaluationConfig], Strategy]] = {
    "equal-weight": lambda config: EqualWeight(),
    "buy-and-hold": lambda config: BuyAndHold(),
    "sixty-forty": lambda config: SixtyForty(config.rebalance_every),
    **{name: partial(_optimised, name) for name in OPTIMISERS},
    "momentum": lambda config: Momentum(config.rebalance_every),
    "time-series-momentum": lambda config: TimeSeriesMomentum(config.rebalance_every),
    "low-volatility": lambda config: LowVolatility(config.rebalance_every, config.lookback),
    "crp": lambda config: ConstantRebalanced(),
    "eg": lambda config: ExponentiatedGradient(),
    "pamr": lambda config: PassiveAggressiveMeanReversion(),
    "olmar": lambda config: MeanReversion(),
}
"""Name on the command line -> how to make the strategy from the evaluation's configuration."""

ONLINE = ("crp", "eg", "pamr", "olmar")
COMPARED = tuple(name for name in NAMED if name not in ("crp", "eg"))
"""Strategies that every report compares with: all but crp, which equals equal weight, and eg, which nearly does. The
two run when they are named."""


def named_strategy(name: str, config: EvaluationConfig) -> Strategy:
    """Make a strategy by a key of `NAMED`, or by the import path of a user's, `package.module:Name`.

    Name is a strategy, or a class or function that makes one from nothing or from the evaluation's configuration.

    Raises
    ------
    FinflowError
        Naming the nearest strategy, or what is wrong with the import.
    """
    if name in NAMED:
        return NAMED[name](config)
    if ":" in name:
        return _imported(name, config)
    near = difflib.get_close_matches(name, NAMED, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join(NAMED)
    raise FinflowError(f"there is no strategy {name!r}; {hint}known are {known}, and package.module:Name for your own")


def _imported(path: str, config: EvaluationConfig) -> Strategy:
    try:
        strategy: Any = import_path(path)
        if not hasattr(strategy, "decide") or inspect.isclass(strategy):
            needed = [
                parameter
                for parameter in inspect.signature(strategy).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            ]
            strategy = strategy(config) if needed else strategy()
    except Exception as error:
        # Whatever a user's module raises is reported to that user.
        raise FinflowError(f"strategy {path!r} cannot be made: {typed_line(error)}") from error
    if not isinstance(strategy, Strategy):
        raise FinflowError(f"strategy {path!r} has no name and decide(information), as a strategy must")
    return strategy
