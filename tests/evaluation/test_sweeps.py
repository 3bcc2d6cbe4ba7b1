"""A sweep is the backtest at other costs, lags and capital, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from finflow import cores
from finflow.config import CostsConfig
from finflow.env.process_variants import with_costs
from finflow.evaluation.analysis import sweeps
from finflow.evaluation.analysis.sweeps import break_even_bps
from finflow.evaluation.backtest import run_backtests
from finflow.evaluation.comparison_context import ComparisonContext
from finflow.evaluation.report.section import Section, section_html
from finflow.evaluation.statistics import metrics
from finflow.strategies.classical import EqualWeight
from finflow.strategies.rolling_rules import MinimumVariance, Momentum
from tests.evaluation.made_up import context_of, process_of

WINDOW = range(300, 420)
NAMES = ("minimum-variance", "equal-weight", "buy-and-hold")


@pytest.fixture(scope="module")
def context() -> ComparisonContext:
    return context_of(process_of(), WINDOW, *NAMES)


@pytest.fixture(scope="module")
def made(context: ComparisonContext) -> Section:
    return sweeps.section(context)


@pytest.fixture(scope="module")
def numbers(made: Section) -> dict[str, Any]:
    return dict(made.numbers)


def test_another_core_finds_the_same(
    context: ComparisonContext, numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    for count in (1, 2):
        monkeypatch.setattr(cores, "available_cores", lambda count=count: count)
        assert dict(sweeps.section(context).numbers) == numbers


def test_costs_replace_commission_and_slippage(numbers: dict[str, Any]) -> None:
    assert list(numbers["costs_bps"]) == ["0", "5", "10", "25", "50"]
    for bps in (0, 25):
        process = process_of(commission_bps=bps, slippage_bps=0.0)
        (run,) = run_backtests(process, WINDOW, [MinimumVariance(lookback=20)])
        found = numbers["costs_bps"][str(bps)]["minimum-variance"]
        assert found["sharpe"] == metrics.sharpe(run.returns, run.cash_returns)
        assert found["annual_cost"] == metrics.annual_cost(run.costs)


def test_lags_are_those_of_the_information_set(numbers: dict[str, Any]) -> None:
    for lag in (0, 1, 2):
        (run,) = run_backtests(process_of(execution_lag=lag), WINDOW, [MinimumVariance(lookback=20)])
        found = numbers["lags"][str(lag)]["minimum-variance"]
        assert found["sharpe"] == metrics.sharpe(run.returns, run.cash_returns)
    assert numbers["lags"]["1"] == numbers["configured"]


def test_the_break_even_cost_is_where_both_earn_the_same() -> None:
    process = process_of(seed=0)
    context = context_of(process, range(300, 600), "momentum", "equal-weight")
    found = dict(sweeps.section(context).numbers)["break_even"]
    bps = found["return_bps"]
    assert bps == pytest.approx(break_even_bps(process, range(300, 600), Momentum), abs=0.02)
    assert bps > 1.0
    even = with_costs(process, process.env.model_copy(update={"commission_bps": bps, "slippage_bps": 0.0}))
    own, equal = run_backtests(even, range(300, 600), [Momentum(), EqualWeight()])
    assert own.returns.mean() == pytest.approx(equal.returns.mean(), abs=1e-8)
    bps = found["sharpe_bps"]
    even = with_costs(process, process.env.model_copy(update={"commission_bps": bps, "slippage_bps": 0.0}))
    own, equal = run_backtests(even, range(300, 600), [Momentum(), EqualWeight()])
    ratios = [metrics.sharpe(run.returns, run.cash_returns) for run in (own, equal)]
    assert ratios[0] == pytest.approx(ratios[1], abs=1e-4)


def test_equal_weight_is_not_held_against_itself() -> None:
    made = sweeps.section(context_of(process_of(), WINDOW, "equal-weight", "buy-and-hold"))
    assert set(dict(made.numbers)["break_even"].values()) == {None}


def test_capital_counts_only_where_a_cost_depends_on_it(numbers: dict[str, Any]) -> None:
    assert numbers["capital"] == {}
    process = process_of(costs=CostsConfig(impact=1.0))
    made = sweeps.section(context_of(process, WINDOW, "minimum-variance", "equal-weight"))
    costs = [made.numbers["capital"][f"{capital:.0f}"]["minimum-variance"] for capital in sweeps.CAPITALS]
    paid = [one["annual_cost"] for one in costs if not one["refused"]]
    assert len(paid) >= 4
    assert (np.diff(paid) > 0.0).all()
    assert "By initial capital" in section_html(made)


def test_a_fill_at_the_open_has_no_lag_of_zero() -> None:
    process = process_of()
    context = context_of(process, WINDOW, "buy-and-hold")
    process.env = process.env.model_copy(update={"fill": "open"})
    made = sweeps.section(context)
    assert list(made.numbers["lags"]) == ["1", "2"]
    assert any("no lag of 0" in sentence for sentence in made.words)
