"""Dividends in cash: an account of shares and cash, kept by hand, and total returns where they are reinvested."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import dividends_of, growth_of, share_prices
from finflow.env.process_variants import with_growths
from finflow.market.dividends import reinvest
from tests.env.conftest import build_process, random_prices

FloatArray = NDArray[np.float64]

FREE = {"commission_bps": 0.0, "slippage_bps": 0.0}
BEGIN, END = 8, 50
HELD = np.array([[0.3, 0.3, 0.2, 0.1, 0.1]])
DATES = np.datetime64("2000-01-03") + np.arange(60)


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
    return build_process(close, 1e-4, fields=found, **{**FREE, **env})


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
    assert process.dividends is not None
    assert not process.dividends[:, 1].any()
    assert process.growth[29, 1] == 1.0


def test_further_tables_of_a_market_pay_the_same() -> None:
    process = market()
    again = with_growths(process, [process.growth])
    bars = process.panel.n_bars
    assert process.dividends is not None
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
    found = dividends_of(panel, fill)
    assert found is not None
    np.testing.assert_allclose(found[1:], (paid / total)[1:], atol=1e-15)
    adjusted = market(cash=False).panel
    np.testing.assert_array_equal(share_prices(adjusted, fill), adjusted.close if fill == "close" else adjusted.open)
