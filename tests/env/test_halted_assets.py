"""Assets held at their last price over a gap: their weights drift, their shares stay, and their orders lapse."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.process_variants import with_growths
from tests.env.conftest import build_process as process_of
from tests.env.conftest import random_prices as prices

FloatArray = NDArray[np.float64]


@pytest.fixture
def halted_process() -> Callable[..., DecisionProcess]:
    """Four assets, the second halted at the bars 10 to 12, where its price is that of bar 9."""

    def make(**env: object) -> DecisionProcess:
        close = prices()
        close[10:13, 1] = close[9, 1]
        halted = np.zeros(close.shape, dtype=bool)
        halted[10:13, 1] = True
        return process_of(close, fields={"halted": halted}, **env)

    return make


def shares_after(process: DecisionProcess, bar: int, action: list[float], begin: int = 8) -> FloatArray:
    """Shares held after the fill at a bar, of an account that began with the same target at every bar."""
    state = process.start(np.array([begin]), np.array([[0.3, 0.3, 0.2, 0.1, 0.1]]))
    while True:
        outcome = process.step(state, np.array([action]))
        at = int(state.bar[0])
        if at == bar:
            wealth = state.wealth * (1.0 - outcome.cost)
            shares: FloatArray = outcome.filled[0, :-1] * wealth[0] / process.panel.close[at]
            return shares
        state = outcome.state


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("action", [[0.0, 0.9, 0.0, 0.0, 0.1], [0.5, 0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
def test_no_share_is_traded_until_the_price_is_back(
    halted_process: Callable[..., DecisionProcess], lag: int, action: list[float]
) -> None:
    process = halted_process(execution_lag=lag)
    held = [shares_after(process, bar, action)[1] for bar in range(9, 14)]
    np.testing.assert_allclose(held[1:4], held[0], rtol=1e-12)
    assert abs(held[4] / max(held[0], 1e-300) - 1.0) > 1e-6 or held[0] == held[4] == 0.0


def test_the_return_over_the_gap_is_earned_on_the_bar_on_which_it_ends(
    halted_process: Callable[..., DecisionProcess],
) -> None:
    process = halted_process(commission_bps=0.0, slippage_bps=0.0)
    state = process.start(np.array([10]), np.array([[0.0, 1.0, 0.0, 0.0, 0.0]]))
    gains = []
    for _ in range(3):
        outcome = process.step(state, np.array([[0.0, 1.0, 0.0, 0.0, 0.0]]))
        gains.append(float(outcome.simple_return[0]))
        state = outcome.state
    close = process.panel.close[:, 1]
    assert gains[:2] == [0.0, 0.0]
    assert gains[2] == pytest.approx(close[13] / close[9] - 1.0)


def test_further_tables_of_growth_keep_the_halts(halted_process: Callable[..., DecisionProcess]) -> None:
    process = halted_process()
    other = with_growths(process, [process.growth])
    assert other.halted.shape == other.listed.shape
    assert other.halted[10 + process.panel.n_bars, 1]
