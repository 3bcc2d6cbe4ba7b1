"""Backtests shared between two processor cores: strategies that solve for their portfolios run beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from finflow.cores import forked
from finflow.env.decision_process import DecisionProcess
from finflow.evaluation.backtest import Backtest, run_backtests
from finflow.strategies.memo import Memo
from finflow.strategies.rolling_rules import Optimised
from finflow.strategies.strategy import Strategy


def run_shared_backtests(
    process: DecisionProcess, window: range, strategies: Sequence[Strategy]
) -> tuple[Backtest, ...]:
    """Play strategies over a window as `run_backtests` does, on a second core too where one is free.

    An optimiser's fits are most of its time and know nothing of the other strategies. Results have the same bits as
    those of `run_backtests`, and the strategies' memos hold the same fits.
    """
    solving = [one for one in strategies if isinstance(one, Optimised)]
    others = [one for one in strategies if not isinstance(one, Optimised)]
    if not solving or not others:
        return run_backtests(process, window, strategies)
    with forked(partial(_played_with_fits, process, window, solving)) as elsewhere:
        own = iter(run_backtests(process, window, others))
    runs, fits = elsewhere()
    for strategy, found in zip(solving, fits, strict=True):
        if strategy.memo is not None:
            strategy.memo.update(found)
    solved = iter(runs)
    return tuple(next(solved if isinstance(one, Optimised) else own) for one in strategies)


def _played_with_fits(
    process: DecisionProcess, window: range, strategies: Sequence[Optimised]
) -> tuple[tuple[Backtest, ...], list[Memo]]:
    """Backtests, and the memo of each strategy after them; empty where it keeps none."""
    runs = run_backtests(process, window, strategies)
    return runs, [{} if one.memo is None else one.memo for one in strategies]
