"""Backtests shared between two cores have the bits of those on one, and leave the same fits behind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from finflow import cores
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.comparison_context import run_shared_backtests
from finflow.strategies.classical import EqualWeight, SixtyForty
from finflow.strategies.rolling_rules import InverseVolatility, MinimumVariance
from finflow.strategies.strategy import Strategy
from tests.evaluation.test_backtest import WINDOW, made_process

FIELDS = ("returns", "costs", "turnover", "weights", "rewards")


def strategies() -> list[Any]:
    """Two that solve for their portfolios, between others; each remembers its fits."""
    made: list[Any] = [
        EqualWeight(),
        MinimumVariance(5, lookback=20),
        SixtyForty(),
        InverseVolatility(5, lookback=20),
    ]
    made[1].memo, made[3].memo = {}, {}
    return made


@pytest.mark.parametrize("second_core", [True, False])
def test_sharing_changes_neither_results_nor_memos(second_core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "_has_second_core", lambda: second_core)
    process, alone, shared = made_process(), strategies(), strategies()
    expected, found = run_backtests(process, WINDOW, alone), run_shared_backtests(process, WINDOW, shared)
    assert [one.name for one in found] == [one.name for one in expected]
    for one, other in zip(expected, found, strict=True):
        assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)
    for one, other in zip(alone, shared, strict=True):
        memo = getattr(one, "memo", None)
        assert memo is None or len(memo) > 5
        assert memo is None or all(np.array_equal(other.memo[key], value) for key, value in memo.items())


def test_a_single_kind_of_strategy_needs_no_second_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a process was forked")

    monkeypatch.setattr(cores, "_has_second_core", lambda: True)
    monkeypatch.setattr(cores, "_fork", refuse)
    chosen: list[Strategy] = [EqualWeight(), SixtyForty()]
    assert [one.name for one in run_shared_backtests(made_process(), WINDOW, chosen)] == [one.name for one in chosen]
