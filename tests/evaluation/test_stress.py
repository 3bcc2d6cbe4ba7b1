"""Bad times: which of them the data has, who had learned from them, and what happened in them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest

from finflow.evaluation.analysis import sweeps
from finflow.evaluation.backtest import ComparisonContext, run_backtests
from finflow.evaluation.statistics import metrics
from finflow.market.splits import Split
from finflow.strategies.classical import EqualWeight
from tests.evaluation.made_up import context_of, process_of

SPLIT = Split(400, 500, 900)
OWN = (
    ("late", dt.date(2010, 1, 4), dt.date(2010, 3, 31)),
    ("chosen", dt.date(2008, 10, 1), dt.date(2008, 11, 28)),
    ("before", dt.date(1999, 1, 1), dt.date(1999, 12, 31)),
)


@pytest.fixture(scope="module")
def context() -> ComparisonContext:
    """From 2007-01-01 to mid-2010; the test window begins at the end of 2008."""
    return context_of(process_of(bars=900), SPLIT.test, "equal-weight", "buy-and-hold")


@pytest.fixture(scope="module")
def numbers(context: ComparisonContext) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "PERIODS", (*sweeps.PERIODS, *OWN))
        made = sweeps.stress_section(context, SPLIT)
    assert made is not None
    return dict(made.numbers)


def test_periods_that_the_data_has_are_judged_and_say_whether_the_agent_learned_from_them(
    numbers: dict[str, Any],
) -> None:
    assert (numbers["2008-2009"]["first"], numbers["2008-2009"]["last"]) == ("2008-01-01", "2009-12-31")
    assert {name: period["sample"] for name, period in numbers.items()} == {
        "2008-2009": "in-sample and validation and out-of-sample",
        "late": "out-of-sample",
        "chosen": "validation",
    }


def test_a_period_of_the_test_window_is_a_part_of_its_backtest(
    numbers: dict[str, Any], context: ComparisonContext
) -> None:
    run = context.runs[1]
    inside = (run.dates >= np.datetime64("2010-01-04")) & (run.dates <= np.datetime64("2010-03-31"))
    found = numbers["late"]["strategies"]["buy-and-hold"]
    assert found["return"] == pytest.approx(np.prod(1.0 + run.returns[inside]) - 1.0, rel=1e-12)
    assert found["max_drawdown"] == metrics.max_drawdown(run.returns[inside])
    assert numbers["late"]["days"] == inside.sum()
    assert "INDEX" in numbers["late"]["strategies"]


def test_another_period_is_run_with_time_to_buy_in(numbers: dict[str, Any], context: ComparisonContext) -> None:
    dates = context.process.panel.dates
    first, last = (int(np.searchsorted(dates, np.datetime64(day))) for day in ("2008-10-01", "2008-11-28"))
    (run,) = run_backtests(context.process, range(first - 1 - sweeps.RUN_IN, last + 1), [EqualWeight()])
    kept = run.dates >= np.datetime64("2008-10-01")
    found = numbers["chosen"]["strategies"]["equal-weight"]
    assert found["return"] == pytest.approx(np.prod(1.0 + run.returns[kept]) - 1.0, rel=1e-12)


def test_a_market_without_any_of_them_has_no_section() -> None:
    context = context_of(process_of(start="2010-06-01"), range(300, 420), "equal-weight")
    assert sweeps.stress_section(context, Split(200, 300, 420)) is None
