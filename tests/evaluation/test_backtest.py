"""A backtest is what the strategy would have had in money: by a ledger of shares and cash, and by another library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bt
import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from finflow import cores
from finflow.arrays import FloatArray
from finflow.env.decision_process import DecisionProcess
from finflow.errors import MarketError
from finflow.evaluation.backtest import Backtest, index_backtest, run_backtests, run_shared_backtests
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import BuyAndHold, EqualWeight, Optimised, SixtyForty
from finflow.strategies.online_selection import MeanReversion
from finflow.strategies.strategy import Information, Strategy
from tests.evaluation.made_up import process_of, process_on

LAGS = pytest.mark.parametrize("lag", [0, 1, 2])
WINDOW = range(30, 90)
CASH = 2e-4
RATE = 0.0015  # 10 bp of commission and 5 bp of slippage, the defaults
FIELDS = ("returns", "costs", "turnover", "weights", "rewards")


class Rule:
    """A strategy made of a function; it keeps what it was told."""

    def __init__(self, decide: Callable[[Information], FloatArray], name: str = "rule") -> None:
        self.name = name
        self.told: list[Information] = []
        self._decide = decide

    def decide(self, information: Information) -> FloatArray:
        self.told.append(information)
        return self._decide(information)


def made_process(seed: int = 0, index: bool = False, **env: Any) -> DecisionProcess:
    """Random walks with cash that earns, and features that only say which bar they are of."""
    rng = np.random.default_rng(seed)
    panel = MarketPanel(
        dates=np.busday_offset("2000-01-03", np.arange(100), roll="forward"),
        assets=("A0", "A1", "A2", "A3"),
        close=50.0 * np.exp(np.cumsum(rng.normal(0.0, 0.03, size=(100, 4)), axis=0)),
        cash_returns=np.append(0.0, np.full(99, CASH)),
        benchmark=1000.0 * np.exp(np.cumsum(rng.normal(0.0, 0.01, 100))) if index else None,
        benchmark_name="INDEX" if index else None,
    )
    process = process_on(panel, **env)
    process.market_features[:] = np.arange(100)[:, None]
    return process


def random_rule(seed: int) -> Rule:
    rng = np.random.default_rng(seed)
    return Rule(lambda _: rng.dirichlet(np.full(5, 0.3)))


def wealth_left(value: FloatArray, held: FloatArray, wealth: float) -> float:
    """Money left by a fill: what it charges and what is left are what there was."""
    too_much = lambda left: left + RATE * np.abs(left * value[:-1] - held).sum() - wealth  # noqa: E731
    return float(brentq(too_much, 0.5 * wealth, 1.01 * wealth, xtol=1e-9, rtol=1e-15))


def in_money(process: DecisionProcess, targets: FloatArray, bars: range, lag: int) -> pd.DataFrame:
    """The same decisions with shares and a bank account, each fill solved by root finding."""
    prices, rate = process.panel.close, 1.0 + CASH
    shares, cash, rows = np.zeros(prices.shape[1]), process.env.initial_capital, []
    for target, bar in zip(targets, bars, strict=True):
        price = prices[bar]
        wealth = float(shares @ price + cash)
        # what the target is worth at the fill, if it was stated a bar earlier
        value = target.copy() if lag == 0 else target * np.append(price / prices[bar - 1], rate)
        value /= value.sum()
        left = wealth_left(value, shares * price, wealth)
        changes = value[:-1] - shares * price / wealth
        turnover = max(changes[changes > 0.0].sum(), -changes[changes < 0.0].sum())
        shares, cash = left * value[:-1] / price, left * value[-1] * rate
        after = float(shares @ prices[bar + 1] + cash)
        rows.append({"returns": after / wealth - 1.0, "costs": 1.0 - left / wealth, "turnover": turnover})
    return pd.DataFrame(rows, index=pd.DatetimeIndex(process.panel.dates[bars.start + 1 : bars.stop + 1]))


@LAGS
@pytest.mark.parametrize("seed", range(2))
def test_a_ledger_of_shares_and_cash_comes_to_the_same(lag: int, seed: int) -> None:
    process = made_process(seed, execution_lag=lag)
    rule = random_rule(seed)
    (backtest,) = run_backtests(process, WINDOW, [rule])
    rng = np.random.default_rng(seed)
    targets = np.array([rng.dirichlet(np.full(5, 0.3)) for _ in rule.told])
    expected = in_money(process, targets, process.decision_bars(WINDOW), lag)
    for name in expected:
        # 60 fills, each rounded to 1e-15 in either ledger
        np.testing.assert_allclose(getattr(backtest, name), expected[name], rtol=0, atol=1e-10)
    np.testing.assert_array_equal(backtest.dates, expected.index.to_numpy().astype("datetime64[D]"))
    np.testing.assert_allclose(backtest.cash_returns, CASH, rtol=0, atol=1e-15)
    assert backtest.assets == ("A0", "A1", "A2", "A3", "cash")


@LAGS
def test_a_strategy_is_told_nothing_after_its_information_set(lag: int) -> None:
    process = made_process(execution_lag=lag)
    rule = random_rule(0)
    run_backtests(process, WINDOW, [rule])
    bars = process.decision_bars(WINDOW)
    assert [told.step for told in rule.told] == list(range(len(bars)))
    for bar, told in zip(bars, rule.told, strict=True):
        np.testing.assert_array_equal(told.prices, process.panel.close[: bar - lag + 1])
        assert told.observation is not None
        assert told.observation["market"][0] == bar - lag
        np.testing.assert_array_equal(told.observation["portfolio"][:5], told.portfolio)


def test_prices_after_the_window_decide_nothing() -> None:
    process, other = made_process(), made_process()
    other.growth[90:, :-1] *= 1.5
    left, right = (run_backtests(world, WINDOW, [EqualWeight()])[0] for world in (process, other))
    np.testing.assert_array_equal(left.returns, right.returns)


def test_a_strategy_cannot_write_into_the_market() -> None:
    def rewrite(information: Information) -> FloatArray:
        information.prices[-1] = 1.0
        return information.portfolio

    with pytest.raises(ValueError, match="read-only"):
        run_backtests(made_process(), WINDOW, [Rule(rewrite)])


def test_strategies_side_by_side_fare_as_they_would_alone() -> None:
    process = made_process()
    together = run_backtests(process, WINDOW, [random_rule(0), EqualWeight(), random_rule(1)])
    for rule, one in zip([random_rule(0), EqualWeight(), random_rule(1)], together, strict=True):
        (alone,) = run_backtests(process, WINDOW, [rule])
        assert alone.name == one.name
        np.testing.assert_allclose(alone.returns, one.returns, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (np.full(4, 0.25), "shape"),
        (np.array([0.5, 0.5, 0.0, 0.0, np.nan]), "not finite"),
        (np.array([0.7, 0.7, 0.0, 0.0, -0.4]), "a weight of -0.4"),
        (np.array([1.0, 1.0, 0.0, 0.0, 0.0]), "sum to 2"),
        (np.zeros(5), "sum to 0"),
    ],
)
def test_an_answer_that_is_no_portfolio_is_an_error_not_another_portfolio(answer: FloatArray, says: str) -> None:
    with pytest.raises(MarketError, match=says) as raised:
        run_backtests(made_process(), WINDOW, [Rule(lambda _: answer, name="mine")])
    assert "mine" in str(raised.value)
    assert "2000-02-14" in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(MarketError, match="needs two or more"):
        run_backtests(made_process(), range(50, 52), [EqualWeight()])


def test_the_index_is_bought_once_at_the_same_costs() -> None:
    process = made_process(index=True)
    index = index_backtest(process, WINDOW)
    (held,) = run_backtests(process, WINDOW, [BuyAndHold()])
    assert isinstance(index, Backtest)
    levels = process.panel.benchmark
    assert levels is not None
    wealth = np.prod(1.0 + index.returns)
    assert wealth == pytest.approx(levels[89] / levels[30] / (1.0 + RATE), rel=1e-12)
    np.testing.assert_array_equal(index.costs > 0.0, np.arange(59) == 0)
    assert index.costs[0] == pytest.approx(held.costs[0], abs=1e-15)
    np.testing.assert_array_equal(index.dates, held.dates)
    np.testing.assert_array_equal(index.cash_returns, held.cash_returns)
    assert index.name == "INDEX"
    assert index_backtest(made_process(), WINDOW) is None, "a market without an index"


def strategies() -> list[Any]:
    """Two that solve for their portfolios, between others; each remembers its fits."""
    solving = Optimised("minimum-variance", 5, 20), Optimised("inverse-volatility", 5, 20)
    made: list[Any] = [EqualWeight(), solving[0], SixtyForty(), solving[1]]
    made[1].memo, made[3].memo = {}, {}
    return made


@pytest.mark.parametrize("second_core", [True, False])
def test_sharing_changes_neither_results_nor_memos(second_core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: 1 + second_core)
    process, alone, shared = made_process(), strategies(), strategies()
    expected, found = run_backtests(process, WINDOW, alone), run_shared_backtests(process, WINDOW, shared)
    assert [one.name for one in found] == [one.name for one in expected]
    for one, other in zip(expected, found, strict=True):
        assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in FIELDS)
    for one, other in zip(alone, shared, strict=True):
        memo = getattr(one, "memo", None)
        assert memo is None or len(memo) > 5
        assert memo is None or all(np.array_equal(other.memo[key], value) for key, value in memo.items())


@LAGS
def test_equal_weight_pays_for_rebalancing_and_buy_and_hold_pays_once(lag: int) -> None:
    process = made_process(execution_lag=lag)
    equal, held = run_backtests(process, WINDOW, [EqualWeight(), BuyAndHold()])
    assert (equal.costs > 0.0).all()
    assert (equal.turnover > 0.0).all()
    assert equal.costs[1:].sum() > 0.001
    assert held.costs[0] == pytest.approx(RATE / (1.0 + RATE), abs=1e-15)
    assert (held.costs[1:] == 0.0).all()
    assert (held.turnover[1:] == 0.0).all()


# --- an independent backtester, given our share quantities, comes to our equity to the last digits that it keeps


CAPITAL = 1_000_000.0


class Orders(bt.Algo):
    """Buys and sells given numbers of shares."""

    def __init__(self, shares: pd.DataFrame) -> None:
        super().__init__()
        self.trades = shares.diff().fillna(shares.iloc[:1])

    def __call__(self, target: Any) -> bool:
        if target.now in self.trades.index:
            for name, quantity in self.trades.loc[target.now].items():
                if quantity != 0.0:
                    target.transact(quantity, child=name)
        return True


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("make", [EqualWeight, BuyAndHold, MeanReversion])
def test_bt_with_our_shares_has_our_equity(make: type[Strategy], lag: int) -> None:
    process = process_of(420, execution_lag=lag, initial_capital=CAPITAL)
    window = range(280, 420)
    (run,) = run_backtests(process, window, [make()])
    bars = process.decision_bars(window)
    before = CAPITAL * np.concatenate([[1.0], np.cumprod(1.0 + run.returns)[:-1]])
    equity = before * (1.0 - run.costs)
    prices = pd.DataFrame(process.panel.close, pd.DatetimeIndex(process.panel.dates), list(process.panel.assets)).iloc[
        bars.start : bars.stop
    ]
    shares = equity[:, None] * run.weights[:, :-1] / prices
    theirs = bt.Backtest(
        bt.Strategy("theirs", [Orders(shares)], children=list(prices.columns)),
        prices,
        initial_capital=CAPITAL,
        commissions=lambda quantity, price: RATE * abs(quantity) * price,
        integer_positions=False,
        progress_bar=False,
    )
    theirs.run()
    np.testing.assert_allclose(theirs.strategy.values.loc[prices.index], equity, rtol=1e-9, atol=0)
    assert len(equity) == 139
    assert equity.max() / equity.min() > 1.05  # something happened
