"""The strategies of a report and the market they were judged on, to run again under other conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.strategies.rolling_rules import Rolling
from finflow.strategies.strategy import Strategy

__all__ = ["Field", "Make", "sharing_fits"]

FloatArray = NDArray[np.float64]
Make = Callable[[], Strategy]


@dataclass(frozen=True, eq=False)
class Field:
    """Who was judged, beside whom, on what, and how each is made anew.

    Attributes
    ----------
    process : DecisionProcess
    window : range
        Bars of the evaluation.
    makers : mapping of str to callable
        Name -> what makes the strategy, fresh; the judged one first.
    runs : tuple of Backtest
        What they did over the window, in the same order.
    """

    process: DecisionProcess
    window: range
    makers: Mapping[str, Make]
    runs: tuple[Backtest, ...]

    def __post_init__(self) -> None:
        if [run.name for run in self.runs] != list(self.makers):
            raise ValueError("the backtests of a field are of other strategies than its makers")

    @property
    def names(self) -> tuple[str, ...]:
        """The judged strategy first."""
        return tuple(self.makers)

    @property
    def judged(self) -> str:
        """Who is judged."""
        return self.names[0]

    def play(
        self, process: DecisionProcess, window: range | None = None, names: Sequence[str] | None = None
    ) -> dict[str, Backtest]:
        """Run the strategies, all of them or those named, under other conditions or over other bars."""
        chosen = self.names if names is None else names
        window = self.window if window is None else window
        runs = run_backtests(process, window, [self.makers[name]() for name in chosen])
        return dict(zip(chosen, runs, strict=True))


def sharing_fits(makers: Mapping[str, Make]) -> dict[str, Make]:
    """The same strategies; what one of them fitted to some prices, another of its kind does not fit again."""
    memo: dict[tuple[str, bytes], FloatArray] = {}

    def sharing(make: Make) -> Make:
        def fresh() -> Strategy:
            strategy = make()
            if isinstance(strategy, Rolling):
                strategy.memo = memo
            return strategy

        return fresh

    return {name: sharing(make) for name, make in makers.items()}
