"""Costs know volume and volatility of before a decision; dividends in cash are those of an account kept by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from finflow.arrays import FloatArray
from finflow.config import CostsConfig, EnvConfig, ObjectivesConfig
from finflow.env.decision_process import DecisionProcess, with_growths, with_trading
from finflow.env.market_growth import LIQUIDITY_WINDOW as WINDOW, dividends_of, growth_of, liquidity_of, share_prices
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from finflow.errors import ConfigError
from finflow.market.panel import MarketPanel
from finflow.market.price_adjustments import reinvest
from tests.env.conftest import EVERYTHING, LAGS, MOMENTS, build_process, numbered_features, panel_of, random_prices

BARS, ASSETS = 60, 3
IMPACT = CostsConfig(impact=1.0)
BEGIN, END = 8, 50
HELD = np.array([[0.3, 0.3, 0.2, 0.1, 0.1]])
DATES = np.busday_offset("2000-01-03", np.arange(60), roll="forward")


def made_panel(seed: int = 0, **changes: Any) -> MarketPanel:
    volume = np.random.default_rng(seed).lognormal(13.0, 1.0, size=(BARS, ASSETS))
    return panel_of(**{"close": random_prices(BARS, ASSETS, seed), "volume": volume, **changes})


def made_process(panel: MarketPanel, costs: CostsConfig = IMPACT, **env: Any) -> DecisionProcess:
    return DecisionProcess(panel, numbered_features(panel), EnvConfig(costs=costs, **env), ObjectivesConfig(), MOMENTS)


@LAGS
def test_impact_is_that_of_the_bars_before_the_decision(lag: int) -> None:
    """All sold at bar 30: coefficient, volatility and the root of participation, recomputed from the prices."""
    panel = made_panel()
    process = made_process(panel, execution_lag=lag, commission_bps=0.0, slippage_bps=0.0)
    outcome = process.step(process.start(np.array([30]), np.array([[0.5, 0.0, 0.2, 0.3]])), np.eye(4)[-1:])
    last = 30 - lag
    bars = slice(last - WINDOW + 1, last + 1)
    volume = (panel.close * panel.volume)[bars].mean(axis=0)
    volatility = np.diff(np.log(panel.close), axis=0)[last - WINDOW : last].std(axis=0, ddof=1)
    held = np.array([0.5, 0.0, 0.2, 0.3]) * np.append(panel.close[30] / panel.close[29], 1.0)
    sold = (held / held.sum())[:-1]
    expected = (sold * volatility * np.sqrt(sold * 1e6 / volume)).sum()
    assert outcome.cost[0] == pytest.approx(expected, rel=1e-9)


@LAGS
def test_no_volume_or_price_after_the_information_set_moves_a_cost(lag: int) -> None:
    """From cash the target at a given bar does not depend on older prices, so the volume alone can be shocked."""
    panel, now = made_panel(), 30
    volume = panel.volume.copy()
    volume[now - lag + 1 :] *= 7.0
    shocked = made_panel(volume=volume)
    target = np.array([[0.2, 0.5, 0.1, 0.2]])
    costs = [
        process.step(process.start(np.array([now])), target).cost[0]
        for process in (made_process(world, execution_lag=lag) for world in (panel, shocked))
    ]
    assert costs[0] == costs[1]
    close = panel.close.copy()
    close[now - lag + 1 :] *= 1.5  # all assets alike; of the measures only those of later bars may change
    ours, theirs = liquidity_of(panel), liquidity_of(made_panel(close=close))
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(left[: now - lag + 1], right[: now - lag + 1])
        assert not np.array_equal(left[now - lag + 1], right[now - lag + 1])
    volume[now - lag] *= 7.0  # what was known does count
    known = made_process(made_panel(volume=volume), execution_lag=lag)
    assert known.step(known.start(np.array([now])), target).cost[0] < costs[0]


@LAGS
def test_costs_of_a_range_of_bars_know_what_their_decisions_know(lag: int) -> None:
    """As accounts that already happened are charged again, asset by asset."""
    process = made_process(made_panel(), execution_lag=lag)
    for table, known in zip(liquidity_of(process.panel), process.market_known(range(20, 24)), strict=True):
        np.testing.assert_array_equal(known, table[20 - lag : 24 - lag])


def test_a_market_without_volume_is_refused_only_where_volume_is_needed() -> None:
    panel = made_panel(volume=None)
    for key in ("slippage_linear_bps", "slippage_sqrt_bps", "impact"):
        with pytest.raises(ConfigError, match=r"env\.costs .* no volume"):
            made_process(panel, CostsConfig(**{key: 1.0}))
    process = made_process(panel, CostsConfig(minimum=2.0), commission_bps=0.0, slippage_bps=0.0)
    outcome = process.step(process.start(np.array([30])), np.array([[0.2, 0.5, 0.1, 0.2]]))
    assert outcome.cost[0] == pytest.approx(6.0 / 1e6, abs=1e-15)
    assert process.liquidity is None


def test_decisions_begin_where_volume_and_volatility_are_known() -> None:
    assert made_process(made_panel(), execution_lag=2).decision_bars(range(BARS)).start == WINDOW + 2
    assert made_process(made_panel(), CostsConfig()).decision_bars(range(BARS)).start == 1


def test_what_cannot_be_measured_is_taken_to_be_dear() -> None:
    close, volume = made_panel().close.copy(), np.full((BARS, ASSETS), 1e5)
    close[:30, 1] = volume[:30, 1] = np.nan  # lists at bar 30
    volume[:, 2] = 0.0  # never trades
    measured = liquidity_of(made_panel(close=close, volume=volume))
    assert measured.volume[29].tolist() == [measured.volume[29, 0]] * 3
    assert measured.volume[30, 1] == 1e5 * close[30, 1]  # known from its first bar on
    assert measured.volume[35, 2] == measured.volume[35, :2].min()
    assert measured.volatility[31, 1] == max(measured.volatility[31, 0], measured.volatility[31, 2])
    assert measured.volatility[32, 1] != measured.volatility[32, 0]


def test_an_order_that_cannot_be_paid_is_reported_and_leaves_the_account_as_it_was() -> None:
    """Each asset traded costs four at least: an account of ten cannot pay for three, but for two."""
    process = made_process(made_panel(), CostsConfig(minimum=4.0), initial_capital=10.0)
    orders = np.array([[0.3, 0.3, 0.3, 0.1], [0.3, 0.3, 0.0, 0.4]])
    outcome = process.step(process.start(np.array([30, 30])), orders)
    assert outcome.cost[0] == outcome.simple_return[0] == 0.0
    np.testing.assert_array_equal(outcome.filled[0], [0.0, 0.0, 0.0, 1.0])
    assert outcome.cost[1] == pytest.approx(0.8, abs=0.01)
    together = PortfolioVectorEnv(process, range(BARS), 2)
    together.reset(options={"bars": np.array([30, 30])})
    *_, info = together.step(orders)
    assert info["refused"].tolist() == [True, False]
    assert info["turnover"][0] == 0.0 < info["turnover"][1]
    for order, refused in zip(orders, (True, False), strict=True):
        alone = PortfolioEnv(process, range(BARS))
        alone.reset(options={"bar": 30})
        *_, info = alone.step(order)
        assert info["refused"] is refused


def test_another_price_of_trading_leaves_the_first_process_as_it_was() -> None:
    process = made_process(made_panel(), CostsConfig(), execution_lag=0)
    dear = with_trading(process, commission_bps=500.0, slippage_bps=0.0, costs=IMPACT, initial_capital=5e6)
    target = np.array([[0.4, 0.1, 0.2, 0.3]])
    cheap = process.step(process.start(np.array([30])), target).cost[0]
    assert cheap == pytest.approx(0.0015 * 0.7 / (1.0 + 0.0015 * 0.7), abs=1e-14)
    assert dear.start(np.array([30])).wealth[0] == 5e6
    assert dear.step(dear.start(np.array([30])), target).cost[0] > 0.03
    assert process.liquidity is None
    assert dear.env.execution_lag == process.env.execution_lag


@settings(max_examples=6)
@given(seed=st.integers(0, 2**32 - 1), capital=st.sampled_from([10.0, 1e3, 1e6, 1e12]))
def test_no_cost_takes_more_than_there_is(seed: int, capital: float) -> None:
    """Dear costs, wild prices, an asset that ends: an account may be worn down to where its orders are refused."""
    rng = np.random.default_rng(seed)
    close = random_prices(BARS, ASSETS, seed, deviation=0.5)
    close[15:, 0] = np.nan
    costs = EVERYTHING.model_copy(update={"impact": 5.0, "slippage_linear_bps": 5000.0})
    panel = made_panel(seed, close=close, volume=np.where(np.isnan(close), np.nan, made_panel(seed).volume))
    process = made_process(panel, costs, initial_capital=capital)
    state = process.start(np.full(4, 10), rng.dirichlet(np.full(4, 0.3), size=4))
    np.testing.assert_allclose(state.wealth, capital, rtol=0, atol=0)
    for _ in range(12):
        outcome = process.step(state, rng.dirichlet(np.full(4, 0.3), size=4))
        refused = np.zeros(4, dtype=np.bool_) if outcome.refused is None else outcome.refused
        assert (outcome.cost[refused] == 0.0).all()
        assert ((outcome.cost >= 0.0) & (outcome.cost < 1.0)).all()
        assert (outcome.state.wealth > 0.0).all()
        assert np.isfinite(outcome.reward).all()
        np.testing.assert_allclose(outcome.filled.sum(axis=1), 1.0, rtol=0, atol=1e-12)
        np.testing.assert_array_equal(outcome.terminated, outcome.state.wealth <= 1e-6 * capital)
        state = outcome.state


def quoted() -> dict[str, FloatArray]:
    """Closes, opens and dividends of four assets, in money; a quarter, a special one on a bar with another's, none."""
    close = random_prices()
    opens = close * np.exp(np.random.default_rng(3).normal(0.0, 0.01, close.shape))
    paid = np.zeros(close.shape)
    paid[5::12, 0] = 0.6
    paid[29, 1] = 14.0
    paid[11::9, 2] = 1.5
    return {"close": close, "open": opens, "paid": paid}


def market(cash: bool = True, **env: object) -> DecisionProcess:
    """The process over these prices; ``cash`` pays dividends in cash, else they are reinvested."""
    fields = quoted()
    found = reinvest(fields, fields.pop("paid"), DATES, "ABCD")
    close = found.pop("close")
    if not cash:
        found = {"open": found["open"]}
    return build_process(close, 1e-4, fields=found, commission_bps=0.0, slippage_bps=0.0, **env)


def played(process: DecisionProcess, action: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Wealth before each fill, and weights after it; without an action, what is observed is kept."""
    state, wealth, filled = process.start(np.array([BEGIN]), HELD), [], []
    while int(state.bar[0]) < END:
        wealth.append(float(state.wealth[0]))
        target = process.observed_portfolio(state)[:, :5] if action is None else action
        outcome = process.step(state, target)
        filled.append(outcome.filled[0])
        state = outcome.state
    return np.array(wealth), np.array(filled)


@pytest.mark.parametrize(("lag", "fill"), [(0, "close"), (1, "close"), (2, "close"), (1, "open")])
def test_an_account_that_never_trades_keeps_its_shares_and_collects_cash(lag: int, fill: str) -> None:
    """Shares times prices as quoted, and a heap of cash: no weight, no growth, none of the ledger's arithmetic."""
    process = market(execution_lag=lag, fill=fill)
    prices, paid = quoted()[fill], quoted()["paid"]
    shares, cash = HELD[0, :-1] / prices[BEGIN - 1], HELD[0, -1]
    worth, weights = [], []
    for bar in range(BEGIN, END):
        cash = cash * 1.0001 + shares @ paid[bar]
        value = np.append(shares * prices[bar], cash)
        worth.append(value.sum())
        weights.append(value / value.sum())
    wealth, filled = played(process, None)
    np.testing.assert_allclose(wealth / wealth[0], np.array(worth) / worth[0], rtol=1e-12)
    np.testing.assert_allclose(filled, weights, atol=1e-13)
    assert filled[-1, -1] > 0.15  # the special dividend alone is a tenth of the account


@pytest.mark.parametrize("action", [[0.25, 0.25, 0.25, 0.25, 0.0], [0.1, 0.6, 0.2, 0.0, 0.1]])
def test_reinvested_at_the_close_without_costs_it_is_the_adjusted_account(action: list[float]) -> None:
    paid, adjusted = market(execution_lag=0), market(cash=False, execution_lag=0)
    found = [played(process, np.array([action])) for process in (paid, adjusted)]
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-12)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-14)
    assert played(paid, None)[0][-1] != pytest.approx(played(adjusted, None)[0][-1], rel=1e-4)


def test_it_goes_to_who_held_before_the_ex_date() -> None:
    """Bought at the close of the ex-date, the asset pays nothing; sold there, it has paid."""
    process = market(execution_lag=0)
    nothing, all_in = np.array([[0.0, 0.0, 0.0, 0.0, 1.0]]), np.array([[0.0, 1.0, 0.0, 0.0, 0.0]])
    buyer, seller = process.start(np.array([29]), nothing), process.start(np.array([29]), all_in)
    assert process.observed_portfolio(buyer)[0, 4] == 1.0
    assert process.observed_portfolio(seller)[0, 4] > 0.15
    bought = process.step(buyer, all_in).state
    assert process.observed_portfolio(bought)[0, 4] == 0.0


def test_an_asset_that_has_just_listed_pays_nothing() -> None:
    fields = quoted()
    fields["close"][:29, 1] = np.nan
    found = reinvest({"close": fields["close"]}, fields["paid"], DATES, "ABCD")
    process = build_process(found.pop("close"), fields=found)
    assert not process.dividends[:, 1].any()
    assert process.growth[29, 1] == 1.0


def test_further_tables_of_a_market_pay_the_same() -> None:
    process = market()
    again = with_growths(process, [process.growth])
    bars = process.panel.n_bars
    np.testing.assert_array_equal(again.dividends, np.concatenate([process.dividends, process.dividends]))
    start = process.start(np.array([29]), HELD)
    behind = again.step(replace(start, bar=start.bar + bars), HELD)
    np.testing.assert_array_equal(behind.filled, process.step(start, HELD).filled)


@pytest.mark.parametrize("fill", ["close", "open"])
def test_prices_of_shares_growth_and_payment_by_hand(fill: str) -> None:
    panel, prices, paid = market().panel, quoted()[fill], quoted()["paid"]
    np.testing.assert_allclose(share_prices(panel, fill), prices, rtol=1e-13)
    total = prices + paid
    np.testing.assert_allclose(growth_of(panel, fill)[1:, :-1], total[1:] / prices[:-1], rtol=1e-13)
    np.testing.assert_allclose(dividends_of(panel, fill)[1:], (paid / total)[1:], atol=1e-15)
    adjusted = market(cash=False).panel
    np.testing.assert_array_equal(share_prices(adjusted, fill), adjusted.close if fill == "close" else adjusted.open)
