"""How dear trading, and how large an account, a strategy bears: by closed form, and by running it there again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import CostsConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.process_variants import with_costs
from finflow.errors import ConfigError
from finflow.evaluation.analysis.sweeps import break_even_bps, capacity
from finflow.evaluation.backtest import run_backtests
from finflow.market.panel import MarketPanel
from finflow.strategies.classical import BuyAndHold, EqualWeight
from finflow.strategies.strategy import Information
from tests.evaluation.made_up import process_on

FloatArray = NDArray[np.float64]

BARS, EDGE = 60, 2e-3
WINDOW = range(30, BARS)


class Switcher:
    """All in A on even days, all in B on odd ones."""

    name = "switcher"

    def decide(self, information: Information) -> FloatArray:
        return np.eye(3)[information.step % 2]


def made_process(edge: float = EDGE, volume: float | None = 1e6, noise: float = 0.0, **env: Any) -> DecisionProcess:
    """A and B rise by turns, and each by nothing on the other's days; so the switcher earns the edge every day."""
    rng = np.random.default_rng(0)
    moves = np.zeros((BARS, 2))
    days = np.arange(1, BARS)
    # the fill at bar 30 is step 0, in A, and earns until bar 31: A rises at odd bars
    moves[days, (days + 1) % 2] = np.log1p(edge)
    moves += noise * rng.standard_normal(moves.shape)
    close = 100.0 * np.exp(np.cumsum(moves, axis=0))
    panel = MarketPanel(
        dates=np.datetime64("2000-01-03") + np.arange(BARS),
        assets=("A", "B"),
        close=close,
        volume=None if volume is None else volume / close,
    )
    return process_on(panel, execution_lag=0, **{"commission_bps": 0.0, "slippage_bps": 0.0, **env})


def test_the_break_even_cost_of_a_switcher_is_known() -> None:
    """29 periods, an edge of e / 2 in each; 28 switches at 2 c, and one purchase at c that equal weight makes too.

    So c = 29 (e / 2) / 56, 5.18 bp for e of 20 bp, but for terms of second order.
    """
    found = break_even_bps(made_process(), WINDOW, Switcher)
    assert found == pytest.approx(1e4 * 29.0 * (EDGE / 2.0) / 56.0, rel=0.003)
    assert found == break_even_bps(made_process(commission_bps=70.0, slippage_bps=9.0), WINDOW, Switcher)


def test_the_ends_of_what_can_be_borne_are_nothing_and_anything() -> None:
    assert break_even_bps(made_process(edge=-EDGE), WINDOW, Switcher) == 0.0
    assert break_even_bps(made_process(), WINDOW, EqualWeight) == 0.0
    assert capacity(made_process(edge=-EDGE, costs=CostsConfig(impact=1.0)), WINDOW, Switcher) == 0.0
    with pytest.raises(ConfigError, match=r"env\.costs\.impact"):
        capacity(made_process(costs=CostsConfig(minimum=1.0)), WINDOW, Switcher)
    drifting = made_process(edge=0.0, noise=0.03)
    drifting.growth[1:, 0], drifting.growth[1:, 1] = 1.02, 1.0  # A trends: holding it beats selling it
    assert break_even_bps(drifting, WINDOW, BuyAndHold) == float("inf")


def test_capacity_follows_from_the_square_root_law() -> None:
    """Flat volatility s and volume V: all of W is sold and bought, costs 2 k s sqrt(W / V) a day, of an edge of e / 2.

    So half of it is gone at W = V (e / (8 k s))^2, but for terms of the order of the costs themselves.
    """
    process = made_process(volume=1e9, costs=CostsConfig(impact=1.0, window=20))
    assert process.liquidity is not None
    volatility = float(process.liquidity.volatility[WINDOW.start : -1].mean())
    found = capacity(process, WINDOW, Switcher)
    assert found == pytest.approx(1e9 * (EDGE / (8.0 * volatility)) ** 2, rel=0.08)


def test_at_capacity_half_is_gone() -> None:
    costs = CostsConfig(impact=0.5, slippage_linear_bps=50.0, slippage_sqrt_bps=10.0, window=20, minimum=0.01)
    process = made_process(volume=1e8, noise=0.0005, commission_bps=1.0, costs=costs)
    found = capacity(process, WINDOW, Switcher)
    assert 1e3 < found < 1e9

    def taken(capital: float) -> float:
        env = process.env.model_copy(update={"initial_capital": capital})
        free = env.model_copy(update={"costs": CostsConfig(minimum=0.01)})
        (full,) = run_backtests(with_costs(process, env), WINDOW, [Switcher()])
        ideal, equal = run_backtests(with_costs(process, free), WINDOW, [Switcher(), EqualWeight()])
        return float((ideal.returns.mean() - full.returns.mean()) / (ideal.returns.mean() - equal.returns.mean()))

    assert taken(found) <= 0.5 < taken(1.001 * found)
    assert taken(found) == pytest.approx(0.5, rel=1e-3)


def test_orders_that_cannot_be_paid_are_on_the_record() -> None:
    process = made_process(volume=1e3, costs=CostsConfig(impact=10.0, slippage_linear_bps=10_000.0, window=20))
    (switcher,) = run_backtests(process, WINDOW, [Switcher()])
    assert switcher.refused is not None
    assert switcher.refused.all()
    assert (switcher.returns == 0.0).all()
    (patient,) = run_backtests(made_process(), WINDOW, [Switcher()])
    assert patient.refused is None
