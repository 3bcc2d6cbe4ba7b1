"""The compiled loop is the array version: same money, same rewards, same observations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.env.compiled import CompiledProcess, compiled_function, proportional_rate
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.vector_env import PortfolioVectorEnv, RunningSharpe
from finflow.ledger.costs import Proportional, Summed

MakeProcess = Callable[..., DecisionProcess]
Prices = Callable[..., NDArray[np.float64]]

LIMITS = {"max_weight": 0.4, "max_turnover": 0.3, "no_trade_band": 0.02}


def actions_of_all_kinds(rng: np.random.Generator, size: int, n_weights: int) -> NDArray[np.float64]:
    """On the simplex, at its corners, off it, negative, large, and all nothing."""
    covering, _ = draw_coverage(rng, size, n_weights)
    off = rng.normal(0.0, 3.0, size=(size, n_weights))
    large = 1e6 * rng.random((size, n_weights))
    corner = np.eye(n_weights)[rng.integers(n_weights, size=size)]
    single = covering.astype(np.float32).astype(np.float64)
    kinds = np.stack([covering, off, large, corner, single, np.zeros_like(covering)])
    return kinds[rng.integers(len(kinds), size=size), np.arange(size)]


@pytest.mark.parametrize("lag", [0, 1, 2])
@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["free", "limited"])
@pytest.mark.parametrize("ragged", [False, True], ids=["complete", "ragged"])
def test_the_compiled_step_is_the_array_step(
    prices: Prices, process_of: MakeProcess, lag: int, limits: dict[str, float], ragged: bool
) -> None:
    close = prices(bars=60, assets=5, deviation=0.1)
    if ragged:
        close[:20, 1] = np.nan
        close[35:, 3] = np.nan
    penalties = {"lambda_dd": 2.0, "lambda_cvar": 5.0}
    process = process_of(close, 1e-4, penalties, execution_lag=lag, commission_bps=80.0, slippage_bps=40.0, **limits)
    compiled, rng = CompiledProcess(process), np.random.default_rng(lag)
    weights, _ = draw_coverage(rng, 64, 6)
    state = process.start(rng.integers(5, 40, size=64), weights)
    sums, running = np.zeros((64, 3)), RunningSharpe(64)
    for _ in range(15):
        action = actions_of_all_kinds(rng, 64, 6)
        expected = process.step(state, action)
        found, sharpe, seen = compiled.step(state, action, sums)
        running.add(expected.simple_return - (process.growth[expected.state.bar, -1] - 1.0))
        for name in ("reward", "components", "filled", "simple_return", "cost", "turnover", "terminated"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10, atol=1e-12)
        for name, value in vars(expected.state).items():
            np.testing.assert_allclose(getattr(found.state, name), value, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(sharpe, running.value(), rtol=1e-8, atol=1e-8)
        known = process.observe(expected.state)
        for name in known:
            assert seen[name].dtype == known[name].dtype
            np.testing.assert_allclose(seen[name], known[name], rtol=1e-10, atol=1e-12)
        state = expected.state


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_naming_what_is_held_trades_exactly_nothing(prices: Prices, process_of: MakeProcess, lag: int) -> None:
    process = process_of(prices(bars=60, assets=7), execution_lag=lag)
    compiled, rng = CompiledProcess(process), np.random.default_rng(1)
    state = process.start(np.full(50, 5), rng.dirichlet(np.ones(8), size=50))
    for _ in range(10):
        held = process.observe(state)["portfolio"][:, :8]
        outcome, _, _ = compiled.step(state, held, np.zeros((50, 3)))
        assert (outcome.turnover == 0.0).all()
        assert (outcome.cost == 0.0).all()
        state = outcome.state


def test_a_vector_of_compiled_portfolios_is_a_vector_of_portfolios(prices: Prices, process_of: MakeProcess) -> None:
    process = process_of(prices(bars=80, assets=3))
    pair = [PortfolioVectorEnv(process, range(80), 8, 10, random_portfolios=True, compiled=c) for c in (True, False)]
    assert [env.compiled is not None for env in pair] == [True, False]
    for env in pair:
        env.reset(seed=4)
    rng = np.random.default_rng(2)
    for _ in range(25):
        action = rng.dirichlet(np.ones(4), size=8)
        one, other = (env.step(action) for env in pair)
        for name in one[0]:
            np.testing.assert_allclose(one[0][name], other[0][name], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-10, atol=1e-12)
        assert one[4].keys() == other[4].keys()
        np.testing.assert_allclose(one[4]["sharpe"], other[4]["sharpe"], rtol=1e-8, atol=1e-8)


def test_an_action_that_is_not_finite_changes_nothing(prices: Prices, process_of: MakeProcess) -> None:
    env = PortfolioVectorEnv(process_of(prices()), range(60), 4, 10)
    env.reset(seed=0)
    env.step(np.full((4, 5), 0.2))
    before, _ = env.get_state()
    bad = np.full((4, 5), 0.2)
    bad[2, 1] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        env.step(bad)
    after, _ = env.get_state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_other_costs_are_left_to_the_array_version(prices: Prices, process_of: MakeProcess) -> None:
    class Flat:
        def share(self, trades: NDArray[np.float64], wealth: NDArray[np.float64]) -> NDArray[np.float64]:
            return 10.0 * (trades != 0.0).any(axis=-1) / wealth

    process = process_of(prices())
    assert proportional_rate(process) == pytest.approx(0.0015)
    process.costs = Summed([Proportional(0.001), Flat()])
    assert proportional_rate(process) is None
    assert PortfolioVectorEnv(process, range(60), 2, 10).compiled is None
    with pytest.raises(ValueError, match="proportional"):
        CompiledProcess(process)


def test_the_state_handed_in_is_not_changed(prices: Prices, process_of: MakeProcess) -> None:
    process = process_of(prices())
    state = process.start(np.array([5, 6]), np.full((2, 5), 0.2))
    copy = replace(state, **{name: value.copy() for name, value in vars(state).items()})
    CompiledProcess(process).step(state, np.eye(5)[:2], np.zeros((2, 3)))
    assert all(np.array_equal(value, getattr(copy, name)) for name, value in vars(state).items())


def test_code_that_cannot_be_kept_on_disk_is_compiled_all_the_same() -> None:
    """As where the package and the home folder may only be read; numba alone would refuse to import."""
    names: dict[str, Callable[[float], float]] = {}
    exec(compile("def twice(x): return 2.0 * x", "<a file that is not there>", "exec"), names)
    twice = compiled_function(error_model="numpy")(names["twice"])
    assert twice(3.0) == 6.0
    assert twice.signatures


def test_observations_are_the_callers_own_unless_they_ask_for_less(prices: Prices, process_of: MakeProcess) -> None:
    process = process_of(prices(bars=80, assets=3))
    safe, fast = (PortfolioVectorEnv(process, range(80), 8, 10, random_portfolios=True, copy=c) for c in (True, False))
    for env in (safe, fast):
        env.reset(seed=4)
    rng, seen, kept, written = np.random.default_rng(2), [], [], {}
    for _ in range(25):
        action = rng.dirichlet(np.ones(4), size=8)
        observation, *_, info = safe.step(action)
        other, *_, same = fast.step(action)
        for name in observation:
            np.testing.assert_array_equal(observation[name], other[name])
        if "final_obs" in info:  # that of the episode that ended, not of the one that began
            for one, last in zip(info["final_obs"], same["final_obs"], strict=True):
                assert all(np.array_equal(one[name], last[name]) for name in one)
                assert not any(np.shares_memory(last[name], other[name]) for name in last)
        seen.append(observation)
        kept.append({name: value.copy() for name, value in observation.items()})
        written = written or other
        assert all(other[name] is written[name] for name in other)
    for observation, before in zip(seen, kept, strict=True):
        assert all(np.array_equal(observation[name], before[name]) for name in before)
    fields = [value for observation in seen for value in observation.values()]
    assert len({value.ctypes.data for value in fields}) == len(fields)


@pytest.mark.parametrize("size", [1e3, 1e9, 1e15])
def test_actions_far_off_the_simplex_are_projected_as_the_array_version_does(
    prices: Prices, process_of: MakeProcess, size: float
) -> None:
    process = process_of(prices())
    state = process.start(np.full(50, 5), np.random.default_rng(0).dirichlet(np.ones(5), size=50))
    action = size + np.random.default_rng(1).normal(size=(50, 5))
    found, _, _ = CompiledProcess(process).step(state, action, np.zeros((50, 3)))
    np.testing.assert_allclose(found.filled, process.step(state, action).filled, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lag", [0, 1])
def test_bits_do_not_depend_on_where_arrays_lie(prices: Prices, process_of: MakeProcess, lag: int) -> None:
    process = process_of(prices(bars=60, assets=20), execution_lag=lag)
    compiled, rng = CompiledProcess(process), np.random.default_rng(0)
    (weights, action), found = draw_coverage(rng, 2, 21)[0], set()
    for place in range(300):
        memory = np.zeros(400)
        near, far = memory[place % 60 :][:21][None], memory[place % 60 + 21 + place % 37 :][:21][None]
        near[:], far[:] = weights, action
        state = replace(process.start(np.array([20])), weights=near)
        step, *_ = compiled.step(state, far, np.zeros((1, 3)))
        found.add((step.filled.tobytes(), step.reward.tobytes(), step.state.wealth.tobytes()))
    assert len(found) == 1
