"""Rewards as users write them, good and bad."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finflow.env.reward_context import RewardContext
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


class HighLevel:
    """Log return over a fifth for every decision."""

    horizon = 1
    differentiable = True

    def __call__(self, context: RewardContext) -> Any:
        return 0.2 + context.log_return


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


class ShortTable(ExcessReturn):
    """A table with too few rows."""

    def table(self, panel: MarketPanel) -> NDArray[np.float64]:
        return np.zeros(3)


class Observed(ExcessReturn):
    """Reads the observation, and says in which process, where the variable OBSERVED_REWARDS names a folder."""

    def __call__(self, context: RewardContext) -> Any:
        if folder := os.environ.get("OBSERVED_REWARDS"):
            (Path(folder) / str(os.getpid())).touch()
        return context.observation["market"].mean(axis=1) + context.observation["portfolio"].sum(axis=1)


class KillsOnce(ExcessReturn):
    """Kills the worker that it is computed in at its third call, unless the file KILLED_ONCE is there."""

    calls = 0

    def __call__(self, context: RewardContext) -> Any:
        self.calls += 1
        killed = Path(os.environ["KILLED_ONCE"])
        if self.calls == 3 and multiprocessing.parent_process() is not None and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(context)


class Raises(ExcessReturn):
    """Fails where the file REWARD_FAILS is there."""

    def __call__(self, context: RewardContext) -> Any:
        if Path(os.environ["REWARD_FAILS"]).exists():
            raise ValueError("no answer from the model")
        return super().__call__(context)
