"""Costs that grow with size: by hand, by their invariants, and where the account cannot pay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import brentq

from finflow.arrays import BoolArray, FloatArray
from finflow.config import CostsConfig, EnvConfig
from finflow.errors import ConfigError
from finflow.ledger.accounting import Settlement, settle
from finflow.ledger.costs import (
    CostModel,
    FixedMinimum,
    MarketState,
    Proportional,
    SumOfCosts,
    VolumeCost,
    costs_of,
    without_market,
)

CENT = 0.01
MILLION = np.array([1_000_000.0])

MODELS: dict[str, CostModel] = {
    "minimum": FixedMinimum(0.001, 5.0),
    "linear": VolumeCost(0.01, linear=True),
    "square root": VolumeCost(0.01),
    "impact": VolumeCost(1.0, times_volatility=True),
}
MODELS["all"] = SumOfCosts([Proportional(0.0005), *MODELS.values()])
MODELS["proportional"] = Proportional(0.0015)
EACH = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)

seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1, 2, 20, 500])


def drawn(seed: int, assets: int, batch: int = 4) -> tuple[FloatArray, FloatArray, FloatArray, MarketState]:
    """Portfolios, targets, accounts from 100 to 100 million, markets from thin to deep."""
    rng = np.random.default_rng(seed)
    before, target = (rng.dirichlet(np.full(assets + 1, rng.choice([0.05, 1.0])), size=batch) for _ in range(2))
    wealth = 10.0 ** rng.uniform(2.0, 8.0, size=batch)
    volume = 10.0 ** rng.uniform(5.0, 10.0, size=(batch, assets))
    return before, target, wealth, MarketState(volume, 10.0 ** rng.uniform(-3.0, -1.0, size=(batch, assets)))


def where(done: Settlement) -> BoolArray:
    """Which trades were carried out."""
    count = len(done.wealth_factor)
    return np.ones(count, dtype=np.bool_) if done.refused is None else ~np.asarray(done.refused)


def test_golden_minimum_commission() -> None:
    """10 000 in cash; 60 % A and 2 % B are bought at 10 bp, at least 5 each.

    A pays 0.0006 mu of the 10 000, about 6; B would pay 0.20 and pays 5, which is 0.0005. So
    mu = 1 - 0.0006 mu - 0.0005 = 0.9995 / 1.0006 = 0.99890066: 5.99 and 5.00 are paid.

    Then A alone is sold whole: 0.6 of 9 989.01 at 10 bp is 5.99, and nothing is due for B.
    """
    wealth, model = np.array([10_000.0]), FixedMinimum(0.001, 5.0)
    bought = settle(np.array([[0.0, 0.0, 1.0]]), np.array([[0.6, 0.02, 0.38]]), model, wealth)
    assert bought.wealth_factor[0] == pytest.approx(0.9995 / 1.0006, abs=1e-15)
    assert wealth[0] * bought.cost[0] == pytest.approx(10.99, abs=CENT / 2)
    wealth = wealth * bought.wealth_factor
    paid = wealth[0] * model.share(np.array([[-0.6, 0.0]]), wealth)[0]
    assert paid == pytest.approx(5.99, abs=CENT / 2)


@pytest.mark.parametrize(
    ("model", "money"),
    [
        # all of A is sold: 250 000, a quarter of a day's volume of 1 000 000; its root is a half
        (VolumeCost(0.004, linear=True), 250.0),  # 250 000 * 0.004 / 4
        (VolumeCost(0.004), 500.0),  # 250 000 * 0.004 / 2
        (VolumeCost(0.8, times_volatility=True), 2000.0),  # 250 000 * 0.8 * 0.02 / 2
        (FixedMinimum(0.001, 5.0), 250.0),
        (FixedMinimum(0.001, 400.0), 400.0),
    ],
)
def test_golden_sales(model: CostModel, money: float) -> None:
    """What a sale of everything costs does not depend on what is left, so it can be read off."""
    market = MarketState(np.array([[1e6, 1e9]]), np.array([[0.02, 0.5]]))
    for costs, paid in ((model, money), (SumOfCosts([Proportional(0.001), model]), money + 250.0)):
        done = settle(np.array([[0.25, 0.0, 0.75]]), np.array([[0.0, 0.0, 1.0]]), costs, MILLION, market)
        assert 1e6 * done.cost[0] == pytest.approx(paid, abs=1e-8)
        np.testing.assert_array_equal(done.weights, [[0.0, 0.0, 1.0]])


def test_golden_impact_of_a_purchase() -> None:
    """From cash into A whole, 1 000 000 of a volume of 4 000 000, 2 % a day, coefficient one.

    The cost is mu * 0.02 * sqrt(mu / 4) = 0.01 mu^1.5. With x = sqrt(mu): 0.01 x^3 + x^2 - 1 = 0, of which Newton's
    rule from one gives x = 1 - 0.01 / 2.03 = 0.99507389, then 0.99506152; so mu = 0.99014742, a cost of 9 852.58.
    """
    impact, market = VolumeCost(1.0, times_volatility=True), MarketState(np.array([[4e6]]), np.array([[0.02]]))
    done = settle(np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]]), impact, MILLION, market)
    assert 1e6 * done.cost[0] == pytest.approx(9852.58, abs=CENT / 2)


@EACH
def test_costs_of_all_assets_add_up_to_the_share(model: CostModel) -> None:
    before, target, wealth, market = drawn(3, assets=20)
    trades = (target - before)[:, :-1]
    each = model.by_asset(trades, wealth, market)
    assert each.shape == trades.shape
    np.testing.assert_allclose(each.sum(axis=-1), model.share(trades, wealth, market), rtol=1e-13)


@EACH
@settings(max_examples=15)
@given(seed=seeds, assets=sizes)
def test_wealth_is_conserved_to_the_cent(model: CostModel, seed: int, assets: int) -> None:
    """Shares and cash before are shares and cash after plus the cost, of the accounts whose trade was carried out."""
    before, target, wealth, market = drawn(seed, assets)
    done = settle(before, target, model, wealth, market)
    ok = where(done)
    traded = (wealth * done.wealth_factor)[:, None] * done.weights[:, :-1] - wealth[:, None] * before[:, :-1]
    charged = wealth * model.share(traded / wealth[:, None], wealth, market)
    left = wealth * before[:, -1] - traded.sum(axis=1) - charged
    np.testing.assert_allclose(charged[ok], (wealth * done.cost)[ok], rtol=0, atol=CENT)
    np.testing.assert_allclose(left[ok], (wealth * done.wealth_factor * done.weights[:, -1])[ok], rtol=0, atol=CENT)
    assert (done.cost >= 0.0).all()
    assert (done.wealth_factor > 0.0).all()
    still = settle(before, before, model, wealth, market)
    assert (still.wealth_factor == 1.0).all()
    assert (still.turnover == 0.0).all()
    assert still.refused is None


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("linear", lambda participation, volatility: 0.01 * participation),
        ("square root", lambda participation, volatility: 0.01 * np.sqrt(participation)),
        ("impact", lambda participation, volatility: volatility * np.sqrt(participation)),
    ],
)
def test_the_wealth_factor_is_that_of_an_independent_solver(
    name: str, rate: Callable[[FloatArray, FloatArray], FloatArray]
) -> None:
    """The equation in money, solved by bracketing: what is left and what was charged are what there was."""

    def too_much(left: float, row: Any) -> float:
        held, wanted, wealth, volume, volatility = row
        money = np.abs(left * wanted[:-1] - wealth * held[:-1])
        return float(left + (money * rate(money / volume, volatility)).sum() - wealth)

    checked = 0
    for seed in range(40):
        before, target, wealth, market = drawn(seed, 5)
        done = settle(before, target, MODELS[name], wealth, market)
        for i in np.flatnonzero(where(done) & (done.cost < 0.2)):
            row = (before[i], target[i], wealth[i], market.volume[i], market.volatility[i])
            root = brentq(too_much, 0.6 * wealth[i], wealth[i] * (1.0 + 1e-9), (row,), xtol=1e-12, rtol=1e-14)
            assert done.wealth_factor[i] == pytest.approx(root / wealth[i], abs=1e-12)
            checked += 1
    assert checked > 80


@EACH
def test_gradients_are_those_of_finite_differences(model: CostModel) -> None:
    """Away from the kinks: every asset is traded, and no trade is as large as the minimum commission needs."""
    rng = np.random.default_rng(3)
    raw = [torch.from_numpy(rng.dirichlet(np.ones(5), size=3)).requires_grad_() for _ in range(2)]
    wealth = torch.tensor([1e5, 1e6, 3e6], dtype=torch.float64)
    market = MarketState(
        torch.from_numpy(10.0 ** rng.uniform(6.5, 8.0, size=(3, 4))),
        torch.from_numpy(rng.uniform(0.01, 0.03, size=(3, 4))),
    )

    def factor(before: Any, target: Any, wealth: Any) -> Any:
        held, wanted = (raw / raw.sum(-1, keepdim=True) for raw in (before, target))
        done = settle(held, wanted, model, wealth, market)
        assert done.refused is None
        return done.wealth_factor, done.turnover

    assert torch.autograd.gradcheck(factor, (*raw, wealth.requires_grad_()), eps=1e-7, atol=1e-6)


def test_a_trade_that_would_leave_nothing_is_refused_and_costs_nothing() -> None:
    """Ten in the account and a minimum of six for each of two trades; the neighbour with 10 000 can pay."""
    before, target = np.array([[0.0, 0.0, 1.0]] * 2), np.array([[0.5, 0.4, 0.1]] * 2)
    done = settle(before, target, FixedMinimum(0.0, 6.0), np.array([10.0, 10_000.0]))
    assert done.refused.tolist() == [True, False]
    np.testing.assert_array_equal(done.weights[0], before[0])
    assert (done.wealth_factor[0], done.turnover[0]) == (1.0, 0.0)
    assert done.wealth_factor[1] == pytest.approx(1.0 - 12.0 / 10_000.0, abs=1e-15)
    np.testing.assert_allclose(done.weights[1], target[1], rtol=0, atol=1e-16)


@pytest.mark.parametrize(
    "model", [VolumeCost(0.01, linear=True), VolumeCost(0.1), VolumeCost(10.0, times_volatility=True)]
)
def test_a_trade_of_a_thousand_days_of_volume_is_refused(model: CostModel) -> None:
    """Its last unit costs more than itself."""
    market = MarketState(np.array([[1e3]]), np.array([[0.05]]))
    done = settle(np.array([[0.0, 1.0]]), np.array([[0.9, 0.1]]), model, MILLION, market)
    assert done.refused.tolist() == [True]
    np.testing.assert_array_equal(done.weights, [[0.0, 1.0]])
    assert np.isfinite(done.wealth_factor).all()


def test_what_is_not_traded_at_all_cannot_be_bought() -> None:
    market = MarketState(np.array([[0.0, 1e9]]), np.array([[0.02, 0.02]]))
    before, impact = np.array([[0.0, 0.0, 1.0]]), VolumeCost(1.0, times_volatility=True)
    assert settle(before, np.array([[0.1, 0.4, 0.5]]), impact, MILLION, market).refused.tolist() == [True]
    assert settle(before, np.array([[0.0, 0.4, 0.6]]), impact, MILLION, market).refused is None


def test_each_key_adds_its_own_cost() -> None:
    assert costs_of(EnvConfig()).models == [Proportional(0.001), Proportional(0.0005)]
    extra = CostsConfig(minimum=2.0, slippage_linear_bps=10.0, slippage_sqrt_bps=20.0, impact=0.01)
    costs = costs_of(EnvConfig(costs=extra))
    assert costs.models == [
        FixedMinimum(0.001, 2.0),
        Proportional(0.0005),
        VolumeCost(0.001, linear=True),
        VolumeCost(0.002),
        VolumeCost(0.01, times_volatility=True),
    ]
    assert costs.needs_market
    assert without_market(costs).models == costs.models[:2]


@pytest.mark.parametrize("model", [model for model in MODELS.values() if model.needs_market])
def test_a_cost_of_volume_says_so_where_there_is_none(model: CostModel) -> None:
    with pytest.raises(ConfigError, match="volume"):
        settle(np.array([[0.0, 1.0]]), np.array([[0.5, 0.5]]), model, MILLION)
