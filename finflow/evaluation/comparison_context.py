"""Backtests of a judged strategy and of those it is compared with, and what is needed to run all of them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from finflow.cores import forked
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.strategies.rolling_rules import Optimised
from finflow.strategies.strategy import Memo, Memoised, Strategy

Make = Callable[[], Strategy]


@dataclass(frozen=True, eq=False)
class ComparisonContext:
    """The judged strategy, those it is compared with, and what is needed to run all of them again.

    ``window`` has the bars of the evaluation, ``makers`` makes each strategy fresh, by name, the judged one first, and
    ``runs`` are their backtests in the same order.
    """

    process: DecisionProcess
    window: range
    makers: Mapping[str, Make]
    runs: tuple[Backtest, ...]

    @property
    def judged(self) -> str:
        return next(iter(self.makers))

    def backtest(
        self, process: DecisionProcess, window: range | None = None, names: Sequence[str] | None = None
    ) -> dict[str, Backtest]:
        """Run the strategies, all of them or those named, under other conditions or over other bars."""
        chosen = list(self.makers if names is None else names)
        window = self.window if window is None else window
        runs = run_backtests(process, window, [self.makers[name]() for name in chosen])
        return dict(zip(chosen, runs, strict=True))


def with_memos(makers: Mapping[str, Make]) -> dict[str, Make]:
    """The same strategies; what depends on prices alone, one made later takes from those made before by its maker."""

    def sharing(make: Make) -> Make:
        memo: Memo = {}

        def fresh() -> Strategy:
            strategy = make()
            if isinstance(strategy, Memoised):
                strategy.memo = memo
            return strategy

        return fresh

    return {name: sharing(make) for name, make in makers.items()}


def run_shared_backtests(
    process: DecisionProcess, window: range, strategies: Sequence[Strategy]
) -> tuple[Backtest, ...]:
    """Backtest strategies over a window as `run_backtests` does, on a second core too where one is free.

    An optimiser's fits are most of its time and do not depend on the other strategies. Results have the same bits as
    those of `run_backtests`, and the strategies' memos hold the same fits.
    """
    solving = [one for one in strategies if isinstance(one, Optimised)]
    others = [one for one in strategies if not isinstance(one, Optimised)]
    if not solving or not others:
        return run_backtests(process, window, strategies)
    with forked(partial(_backtests_and_fits, process, window, solving)) as elsewhere:
        here = iter(run_backtests(process, window, others))
    runs, fits = elsewhere()
    for strategy, memo in zip(solving, fits, strict=True):
        if strategy.memo is not None:
            strategy.memo.update(memo)
    solved = iter(runs)
    return tuple(next(solved if isinstance(one, Optimised) else here) for one in strategies)


def _backtests_and_fits(
    process: DecisionProcess, window: range, strategies: Sequence[Optimised]
) -> tuple[tuple[Backtest, ...], list[Memo]]:
    """Backtests, and the memo of each strategy after them; empty where it keeps none."""
    runs = run_backtests(process, window, strategies)
    return runs, [{} if one.memo is None else one.memo for one in strategies]
