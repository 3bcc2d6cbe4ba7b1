"""Rewards as users write them, good and bad."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.env.rewards.reward_context import RewardContext
from finflow.market.panel import MarketPanel


class ExcessReturn:
    """Return of the portfolio after its fill, over that of equal weight, a bar ahead and without costs."""

    horizon = 1
    differentiable = True

    def __call__(self, context: RewardContext) -> Any:
        simple = context.growth[:, 0, :-1] - 1.0
        return context.xp.sum(context.filled[:, :-1] * simple, axis=-1) - context.xp.mean(simple, axis=-1)


class ReturnOverThree:
    """Growth of the filled weights over three bars, less one; NumPy and torch, without a declared gradient."""

    horizon = 3

    def __call__(self, context: RewardContext) -> Any:
        return context.xp.sum(context.filled * context.horizon_growth, axis=-1) - 1.0


class Forecast:
    """A planted mistake: a table of the return over five bars, with a horizon of one."""

    horizon = 1

    def table(self, panel: MarketPanel) -> NDArray[np.float64]:
        rows = np.zeros(panel.close.shape)
        rows[:-5] = panel.close[5:] / panel.close[:-5] - 1.0
        return np.nan_to_num(rows)

    def __call__(self, context: RewardContext) -> Any:
        return context.xp.sum(context.filled[:, :-1] * context.table, axis=-1)


class HonestForecast(Forecast):
    """The same, which says how far it looks."""

    horizon = 5


class Constant:
    """The same for every decision."""

    horizon = 1

    def __call__(self, context: RewardContext) -> Any:
        return context.xp.zeros_like(context.turnover)


class NotANumber:
    """NaN for one portfolio."""

    horizon = 1

    def __call__(self, context: RewardContext) -> Any:
        values = np.zeros(len(context.bar))
        values[0] = np.nan
        return values


class WrongShape:
    """A column in place of a row."""

    horizon = 1

    def __call__(self, context: RewardContext) -> Any:
        return context.simple_return[:, None]


class NoHorizon:
    """Does not say how far it looks."""

    def __call__(self, context: RewardContext) -> Any:
        return context.simple_return


class ShortTable(ExcessReturn):
    """A table with too few rows."""

    def table(self, panel: MarketPanel) -> NDArray[np.float64]:
        return np.zeros(3)
