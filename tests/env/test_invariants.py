"""What holds in any market, for any decision: money is neither made nor lost, units and order mean nothing.

Each property is held at every lag, in markets that have hardly a right to exist: prices near nothing, days of -99 % and
+900 %, one asset or five hundred, one that ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from finflow.arrays import FloatArray
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState, Step
from tests.env.conftest import build_process

CENT = 0.01
RATE = 0.0015
BATCH, STEPS, START = 5, 8, 3
BARS = START + STEPS + 3
LIMITS = {"max_weight": 0.4, "max_turnover": 0.3, "no_trade_band": 0.02}

seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1, 2, 7, 500])
lags = st.sampled_from([0, 1, 2])
limits = st.sampled_from([{}, LIMITS])


def wild_prices(seed: int, assets: int) -> FloatArray:
    """Levels from 1e-9 to 1e9, days of -99 % and +900 % among quiet ones; one asset lists late and one ends early.

    A panel has two assets at least: one alone has a neighbour that is listed only before anything is decided.
    """
    rng = np.random.default_rng(seed)
    columns = max(assets, 2)
    daily = np.exp(0.02 * rng.standard_normal((BARS, columns)))
    wild = rng.random((BARS, columns)) < 0.15
    daily[wild] = rng.choice([0.01, 10.0], size=int(wild.sum()))
    close: FloatArray = 10.0 ** rng.uniform(-9.0, 9.0, size=columns) * np.cumprod(daily, axis=0)
    if assets == 1:
        close[1:, 1] = np.nan
    elif assets > 2:
        close[: START + 2, 0] = np.nan
        close[START + 5 :, 1] = np.nan
    return close


def any_actions(rng: np.random.Generator, batch: int, n_weights: int) -> FloatArray:
    """Inside the simplex, at its corners, all cash, every weight at its upper bound, at its lower, and far outside."""
    inside = rng.dirichlet(np.full(n_weights, rng.choice([0.05, 1.0])), size=batch)
    corner = np.eye(n_weights)[rng.integers(n_weights, size=batch)]
    cash = np.tile(np.eye(n_weights)[-1], (batch, 1))
    far = rng.normal(0.0, 100.0, size=(batch, n_weights))
    kinds = np.stack([inside, inside, corner, cash, np.ones_like(inside), np.zeros_like(inside), far])
    chosen: FloatArray = kinds[rng.integers(len(kinds), size=batch), np.arange(batch)]
    return chosen


def play(process: DecisionProcess, start: FloatArray, actions: FloatArray) -> list[tuple[PortfolioState, Any, Step]]:
    """State, observation and outcome of one decision after the other; no actions at all repeat what is observed."""
    state = process.start(np.full(BATCH, START), start)
    played, seen = [], process.observe(state)
    for step in range(STEPS):
        action = actions[step] if len(actions) else seen["portfolio"][:, : process.n_weights]
        outcome = process.step(state, action)
        played.append((state, seen, outcome))
        state, seen = outcome.state, process.observe(outcome.state)
    return played


def drawn(seed: int, process: DecisionProcess) -> tuple[FloatArray, FloatArray]:
    """First portfolios, and actions for every step."""
    rng = np.random.default_rng([seed, 1])
    start = any_actions(rng, BATCH, process.n_weights)
    start = np.abs(start) + 1e-300
    actions = np.stack([any_actions(rng, BATCH, process.n_weights) for _ in range(STEPS)])
    return start / start.sum(axis=1, keepdims=True), actions


@settings(max_examples=12)
@given(seed=seeds, assets=sizes, lag=lags, limits=limits)
def test_money_is_conserved_to_the_cent(seed: int, assets: int, lag: int, limits: dict[str, float]) -> None:
    """Kept in shares and cash, by prices alone: shares change only by trades, and trades and costs come out of cash."""
    close = wild_prices(seed, assets)
    process = build_process(close, execution_lag=lag, cash_rate=1e-4, **limits)
    last = np.where(np.isnan(close), 1.0, close)  # what is not listed is not held: any price will do
    for bar in range(1, BARS):  # but one that has ended is worth its last price
        last[bar] = np.where(np.isnan(close[bar]) & ~np.isnan(close[bar - 1]), close[bar - 1], last[bar])
    start, actions = drawn(seed, process)
    shares, cash = None, None
    for before, _, outcome in play(process, start, actions):
        bar = int(before.bar[0])
        if shares is None:
            grown = before.weights * process.growth[bar]
            held = before.wealth[:, None] * grown / grown.sum(axis=1, keepdims=True)
            shares, cash = held[:, :-1] / last[bar], held[:, -1]
        ended = np.isnan(close[bar])
        cash = cash + (shares * last[bar])[:, ended].sum(axis=1)
        shares = np.where(ended, 0.0, shares)
        worth = (shares * last[bar]).sum(axis=1) + cash
        tolerance = np.maximum(CENT, 1e-11 * worth)  # an account of 1e16 has no cents in double precision
        assert (np.abs(worth - before.wealth) <= tolerance).all()

        wanted = (before.wealth * (1.0 - outcome.cost))[:, None] * outcome.filled[:, :-1] / last[bar]
        traded = (wanted - shares) * last[bar]
        charged = RATE * np.abs(traded).sum(axis=1)
        assert (np.abs(charged - before.wealth * outcome.cost) <= tolerance).all()
        shares, cash = wanted, cash - traded.sum(axis=1) - charged
        assert (cash >= -tolerance).all()
        left = (shares * last[bar]).sum(axis=1) + cash
        assert (np.abs(left + charged - worth) <= tolerance).all()
        cash = cash * 1.0001


@settings(max_examples=12)
@given(seed=seeds, assets=sizes, lag=lags, limits=limits)
def test_whatever_happens_an_account_is_an_account(seed: int, assets: int, lag: int, limits: dict[str, float]) -> None:
    """A portfolio of what is listed, costs of nothing or more, limits kept, and numbers to learn from."""
    close = wild_prices(seed, assets)
    process = build_process(close, execution_lag=lag, objectives={"lambda_dd": 1.0, "lambda_cvar": 5.0}, **limits)
    for before, seen, outcome in play(process, *drawn(seed, process)):
        filled, listed = outcome.filled, np.isfinite(close[before.bar])
        assert (filled >= 0.0).all()
        np.testing.assert_allclose(filled.sum(axis=1), 1.0, rtol=0, atol=1e-12)
        assert (filled[:, :-1][~listed] == 0.0).all()
        assert (outcome.cost >= 0.0).all()
        assert (outcome.cost <= 2.0 * RATE).all()
        assert (outcome.turnover <= limits.get("max_turnover", 1.0) + 1e-12).all()
        assert (outcome.state.wealth > 0.0).all()
        assert np.isfinite(outcome.reward).all()
        np.testing.assert_allclose(outcome.components.sum(axis=1), outcome.reward, rtol=1e-12, atol=1e-14)
        assert np.isfinite(seen["portfolio"]).all()


@settings(max_examples=12)
@given(seed=seeds, assets=sizes, lag=lags, limits=st.sampled_from([{}, {"max_turnover": 0.1}, {"no_trade_band": 0.05}]))
def test_naming_what_is_held_costs_nothing(seed: int, assets: int, lag: int, limits: dict[str, float]) -> None:
    process = build_process(wild_prices(seed, assets), execution_lag=lag, cash_rate=1e-4, **limits)
    start, _ = drawn(seed, process)
    for *_, outcome in play(process, start, np.empty(0)):
        assert (outcome.turnover == 0.0).all()
        assert (outcome.cost == 0.0).all()


@settings(max_examples=12)
@given(seed=seeds, assets=sizes, lag=lags, limits=limits)
def test_neither_the_order_of_assets_nor_the_unit_of_their_prices_matters(
    seed: int, assets: int, lag: int, limits: dict[str, float]
) -> None:
    close = wild_prices(seed, assets)
    rng = np.random.default_rng([seed, 2])
    order = rng.permutation(close.shape[1])
    columns = np.append(order, close.shape[1])
    units = 10.0 ** rng.uniform(-6.0, 6.0, size=close.shape[1])
    one, other = (build_process(table, execution_lag=lag, **limits) for table in (close, (close * units)[:, order]))
    start, actions = drawn(seed, one)
    ours, theirs = play(one, start, actions), play(other, start[:, columns], actions[..., columns])
    for (_, _, left), (_, _, right) in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(right.filled, left.filled[:, columns], rtol=0, atol=1e-11)
        np.testing.assert_allclose(right.state.wealth, left.state.wealth, rtol=1e-11)
        np.testing.assert_allclose(right.cost, left.cost, rtol=0, atol=1e-12)
        np.testing.assert_allclose(right.reward, left.reward, rtol=1e-9, atol=1e-10)
