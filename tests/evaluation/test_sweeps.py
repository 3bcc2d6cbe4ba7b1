"""A sweep is the backtest at other costs, lags and capital; what can be borne of each is known in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from finflow import cores
from finflow.config import CostsConfig
from finflow.env.decision_process import DecisionProcess, with_trading
from finflow.evaluation.analysis import sweeps
from finflow.evaluation.analysis.sweeps import break_even_bps, capacity, mean_return
from finflow.evaluation.backtest import Backtest, ComparisonContext, run_backtests
from finflow.evaluation.statistics import metrics
from finflow.market.panel import MarketPanel, Split
from finflow.strategies.classical import BuyAndHold, EqualWeight, Momentum, Optimised
from finflow.strategies.strategy import Strategy
from tests.evaluation.made_up import Planned, context_of, process_of, process_on

BARS, EDGE = 60, 2e-3
LATE = range(30, BARS)
WINDOW = range(300, 420)


def numbers_of(process: DecisionProcess, *names: str, window: range = WINDOW) -> dict[str, Any]:
    return dict(sweeps.sweep_section(context_of(process, window, *names)).numbers)


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    return numbers_of(process_of(), "minimum-variance", "equal-weight", "buy-and-hold")


@pytest.mark.parametrize("count", [1, 2])
def test_another_core_finds_the_same(count: int, numbers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(cores, "available_cores", lambda: count)
    assert numbers_of(process_of(), "minimum-variance", "equal-weight", "buy-and-hold") == numbers


@pytest.mark.parametrize(
    ("sweep", "key", "env"),
    [
        ("costs_bps", "0", {"commission_bps": 0.0, "slippage_bps": 0.0}),
        ("costs_bps", "25", {"commission_bps": 25.0, "slippage_bps": 0.0}),
        *(("lags", str(lag), {"execution_lag": lag}) for lag in (0, 1, 2)),
    ],
)
def test_a_sweep_is_the_backtest_there(sweep: str, key: str, env: dict[str, Any], numbers: dict[str, Any]) -> None:
    (run,) = run_backtests(process_of(**env), WINDOW, [Optimised("minimum-variance", lookback=20)])
    found = numbers[sweep][key]["minimum-variance"]
    assert found["sharpe"] == metrics.sharpe(run.returns, run.cash_returns)
    assert found["annual_cost"] == metrics.annual_cost(run.costs)
    assert list(numbers["costs_bps"]) == ["0", "5", "10", "25", "50"]
    assert numbers["lags"]["1"] == numbers["configured"]


def test_the_break_even_cost_is_where_both_earn_the_same() -> None:
    process, window = process_of(), range(300, 600)
    found = numbers_of(process, "momentum", "equal-weight", window=window)["break_even"]
    assert found["return_bps"] > 1.0

    def both_at(bps: float) -> list[Backtest]:
        even = with_trading(process, commission_bps=bps, slippage_bps=0.0)
        return run_backtests(even, window, [Momentum(), EqualWeight()])

    own, equal = both_at(found["return_bps"])
    assert own.returns.mean() == pytest.approx(equal.returns.mean(), abs=1e-8)
    own, equal = (metrics.sharpe(run.returns, run.cash_returns) for run in both_at(found["sharpe_bps"]))
    assert own == pytest.approx(equal, abs=1e-4)
    assert set(numbers_of(process, "equal-weight", "buy-and-hold")["break_even"].values()) == {None}


def test_capital_counts_only_where_a_cost_depends_on_it(numbers: dict[str, Any]) -> None:
    assert numbers["capital"] == {}
    by_capital = numbers_of(process_of(costs=CostsConfig(impact=1.0)), "minimum-variance", "equal-weight")["capital"]
    costs = [by_capital[f"{capital:.0f}"]["minimum-variance"] for capital in sweeps.CAPITALS]
    paid = [one["annual_cost"] for one in costs if not one["refused"]]
    assert len(paid) >= 4
    assert (np.diff(paid) > 0.0).all()


def test_a_fill_at_the_open_has_no_lag_of_zero() -> None:
    process = process_of()
    context = context_of(process, WINDOW, "buy-and-hold")
    process.env = process.env.model_copy(update={"fill": "open"})
    made = sweeps.sweep_section(context)
    assert list(made.numbers["lags"]) == ["1", "2"]
    assert any("no lag of 0" in sentence for sentence in made.words)


def switcher() -> Planned:
    """All in A on even days, all in B on odd ones."""
    return Planned([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]] * BARS)


def by_turns(edge: float = EDGE, volume: float = 1e6, noise: float = 0.0, **env: Any) -> DecisionProcess:
    """A and B rise by turns, and each by nothing on the other's days; so the switcher earns the edge every day."""
    rng = np.random.default_rng(0)
    moves, days = np.zeros((BARS, 2)), np.arange(1, BARS)
    # the fill at bar 30 is step 0, in A, and earns until bar 31: A rises at odd bars
    moves[days, (days + 1) % 2] = np.log1p(edge)
    moves += noise * rng.standard_normal(moves.shape)
    close = 100.0 * np.exp(np.cumsum(moves, axis=0))
    panel = MarketPanel(
        dates=np.busday_offset("2000-01-03", np.arange(BARS), roll="forward"),
        assets=("A", "B"),
        close=close,
        volume=volume / close,
    )
    return process_on(panel, execution_lag=0, **{"commission_bps": 0.0, "slippage_bps": 0.0, **env})


def judged(process: DecisionProcess, make: Callable[[], Strategy] = switcher) -> ComparisonContext:
    """A strategy beside equal weight."""
    return ComparisonContext(process, LATE, {make().name: make, "equal-weight": EqualWeight}, ())


def break_even(process: DecisionProcess, make: Callable[[], Strategy] = switcher) -> float | None:
    return break_even_bps(judged(process, make), mean_return, {})


def test_the_break_even_cost_of_a_switcher_is_known() -> None:
    """29 periods, an edge of e / 2 in each; 28 switches at 2 c, and one purchase at c that equal weight makes too.

    So c = 29 (e / 2) / 56, 5.18 bp for e of 20 bp, but for terms of second order.
    """
    found = break_even(by_turns())
    assert found == pytest.approx(1e4 * 29.0 * (EDGE / 2.0) / 56.0, rel=0.003)
    assert found == break_even(by_turns(commission_bps=70.0, slippage_bps=9.0))


def test_the_ends_of_what_can_be_borne_are_nothing_and_anything() -> None:
    assert break_even(by_turns(edge=-EDGE)) == 0.0
    assert capacity(judged(by_turns(edge=-EDGE, costs=CostsConfig(impact=1.0)))) == 0.0
    drifting = by_turns(edge=0.0, noise=0.03)
    drifting.growth[1:, 0], drifting.growth[1:, 1] = 1.02, 1.0  # A trends: holding it beats selling it
    assert break_even(drifting, BuyAndHold) == float("inf")


def test_capacity_follows_from_the_square_root_law() -> None:
    """Flat volatility s and volume V: all of W is sold and bought, costs 2 k s sqrt(W / V) a day, of an edge of e / 2.

    So half of it is gone at W = V (e / (8 k s))^2, but for terms of the order of the costs themselves.
    """
    process = by_turns(volume=1e9, costs=CostsConfig(impact=1.0))
    assert process.liquidity is not None
    volatility = float(process.liquidity.volatility[LATE.start : -1].mean())
    found = capacity(judged(process))
    assert found == pytest.approx(1e9 * (EDGE / (8.0 * volatility)) ** 2, rel=0.08)


def test_orders_that_cannot_be_paid_are_on_the_record() -> None:
    process = by_turns(volume=1e3, costs=CostsConfig(impact=10.0, slippage_linear_bps=10_000.0))
    (refused,) = run_backtests(process, LATE, [switcher()])
    assert refused.refused is not None
    assert refused.refused.all()
    assert (refused.returns == 0.0).all()
    (patient,) = run_backtests(by_turns(), LATE, [switcher()])
    assert patient.refused is None


# --- bad times: which of them the data has, who had learned from them, and what happened in them


WINDOWS = Split(400, 500, 900)
OWN = (
    ("late", "2010-01-04", "2010-03-31"),
    ("chosen", "2008-10-01", "2008-11-28"),
    ("before", "1999-01-01", "1999-12-31"),
)


@pytest.fixture(scope="module")
def context() -> ComparisonContext:
    """From 2007-01-01 to mid-2010; the test window begins at the end of 2008."""
    return context_of(process_of(bars=900), WINDOWS.test, "equal-weight", "buy-and-hold")


@pytest.fixture(scope="module")
def stressed(context: ComparisonContext) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeps, "PERIODS", (*sweeps.PERIODS, *OWN))
        made = sweeps.stress_section(context, WINDOWS)
    assert made is not None
    return dict(made.numbers)


def test_periods_that_the_data_has_are_judged_and_say_whether_the_agent_learned_from_them(
    stressed: dict[str, Any],
) -> None:
    assert (stressed["2008-2009"]["first"], stressed["2008-2009"]["last"]) == ("2008-01-01", "2009-12-31")
    assert {name: period["sample"] for name, period in stressed.items()} == {
        "2008-2009": "in-sample and validation and out-of-sample",
        "late": "out-of-sample",
        "chosen": "validation",
    }


def test_a_period_of_the_test_window_is_a_part_of_its_backtest(
    stressed: dict[str, Any], context: ComparisonContext
) -> None:
    run = context.runs[1]
    inside = (run.dates >= np.datetime64("2010-01-04")) & (run.dates <= np.datetime64("2010-03-31"))
    found = stressed["late"]["strategies"]["buy-and-hold"]
    assert found["return"] == pytest.approx(np.prod(1.0 + run.returns[inside]) - 1.0, rel=1e-12)
    assert found["max_drawdown"] == metrics.max_drawdown(run.returns[inside])
    assert stressed["late"]["days"] == inside.sum()
    assert "INDEX" in stressed["late"]["strategies"]


def test_another_period_is_run_with_time_to_buy_in(stressed: dict[str, Any], context: ComparisonContext) -> None:
    dates = context.process.panel.dates
    first, last = (int(np.searchsorted(dates, np.datetime64(day))) for day in ("2008-10-01", "2008-11-28"))
    (run,) = run_backtests(context.process, range(first - 1 - sweeps.RUN_IN, last + 1), [EqualWeight()])
    kept = run.dates >= np.datetime64("2008-10-01")
    found = stressed["chosen"]["strategies"]["equal-weight"]
    assert found["return"] == pytest.approx(np.prod(1.0 + run.returns[kept]) - 1.0, rel=1e-12)


def test_a_market_without_any_of_them_has_no_section() -> None:
    context = context_of(process_of(start="2010-06-01"), range(300, 420), "equal-weight")
    assert sweeps.stress_section(context, Split(200, 300, 420)) is None
