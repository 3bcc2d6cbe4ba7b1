"""Whatever is asked for is traded within the limits of the account."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq

from finflow.arrays import FloatArray
from finflow.ledger.accounting import pay_out
from finflow.ledger.constraints import Limits, apply_limits, as_portfolio, keep_listed, project_to_simplex, turnover

seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([2, 3, 21, 501])  # weights
actions = arrays(np.float64, (3, 5), elements=st.floats(-1e15, 1e15))


def assert_portfolios(weights: FloatArray) -> None:
    assert np.isfinite(weights).all()
    assert (weights >= 0.0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=0, atol=1e-12)


def drawn(rng: np.random.Generator, batch: int, size: int) -> FloatArray:
    return rng.dirichlet(np.full(size, rng.choice([0.05, 1.0, 20.0])), size=batch)


@given(seed=seeds, size=sizes)
def test_a_portfolio_is_taken_bit_for_bit(seed: int, size: int) -> None:
    weights = drawn(np.random.default_rng(seed), 4, size)
    np.testing.assert_array_equal(as_portfolio(weights), weights)
    mixed = np.concatenate([weights, np.full((1, size), 3.0)])  # a neighbour that needs projecting changes nothing
    np.testing.assert_array_equal(as_portfolio(mixed)[:4], weights)


@given(seed=seeds, size=sizes)
def test_single_precision_makes_no_money(seed: int, size: int) -> None:
    single = drawn(np.random.default_rng(seed), 4, size).astype(np.float32).astype(np.float64)
    weights = as_portfolio(single)
    assert_portfolios(weights)  # single precision itself is off by up to 1e-6
    total = single.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(weights * total, single, rtol=1e-11)  # proportions stay, also of the smallest weights


@given(values=actions)
def test_anything_finite_becomes_a_portfolio(values: FloatArray) -> None:
    assert_portfolios(as_portfolio(values))


@given(seed=seeds, size=sizes, scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_the_projection_is_that_of_an_independent_solver(seed: int, size: int, scale: float) -> None:
    """The threshold of ``max(v - threshold, 0)`` found by root finding instead of sorting."""
    value = scale * np.random.default_rng(seed).standard_normal(size)
    threshold = brentq(lambda shift: np.maximum(value - shift, 0.0).sum() - 1.0, value.min() - 1.0, value.max())
    # root finding leaves 2e-12 in the threshold
    np.testing.assert_allclose(project_to_simplex(value), np.maximum(value - threshold, 0.0), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("action", "portfolio"),
    [
        ([1.0, 1.0, 0.0], [0.5, 0.5, 0.0]),
        ([0.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]),
        ([2.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ([0.6, 0.6, 0.0], [0.5, 0.5, 0.0]),
        ([0.5, 0.5, -1.0], [0.5, 0.5, 0.0]),
        ([1e12, 0.0, 1e12], [0.5, 0.0, 0.5]),
    ],
)
def test_actions_off_the_simplex_go_where_a_user_expects(action: list[float], portfolio: list[float]) -> None:
    np.testing.assert_allclose(as_portfolio(np.array([action])), np.array([portfolio]), rtol=0, atol=1e-15)


def test_asking_for_what_is_not_listed_spreads_over_the_rest() -> None:
    target = np.array([[0.5, 0.3, 0.2], [1.0, 0.0, 0.0], [0.0, 0.6, 0.4]])
    listed = np.array([[False, True]] * 3)
    kept = keep_listed(target, listed)
    np.testing.assert_allclose(kept, [[0.0, 0.6, 0.4], [0.0, 0.0, 1.0], [0.0, 0.6, 0.4]], rtol=0, atol=1e-15)
    np.testing.assert_array_equal(kept[2], target[2])  # whoever asks for nothing else is left alone, to the bit
    # of a position that has ended, which was paid out: 0.1 beyond it is spread over 0.2 : 0.2 + 0.5
    more = keep_listed(np.array([[0.6, 0.2, 0.2]]), listed[:1], np.array([[0.5, 0.3, 0.2]]))
    np.testing.assert_allclose(more, np.array([[0.0, 0.2 / 0.9, 0.7 / 0.9]]), rtol=0, atol=1e-15)


@given(seed=seeds, size=sizes)
def test_naming_what_is_held_is_no_trade_on_the_day_an_asset_ends(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    held, listed = drawn(rng, 4, size), rng.random((4, size - 1)) < 0.7
    before = pay_out(held, listed)
    np.testing.assert_array_equal(keep_listed(held, listed, held), before)
    np.testing.assert_array_equal(turnover(before, keep_listed(held, listed, held)), np.zeros(4))
    assert_portfolios(keep_listed(drawn(rng, 4, size), listed, held))


def test_turnover_is_the_larger_of_purchases_and_sales() -> None:
    before, target = np.array([[0.5, 0.3, 0.2]]), np.array([[0.1, 0.4, 0.5]])
    assert turnover(before, target)[0] == pytest.approx(0.4)  # 0.4 sold, 0.1 bought, the rest into cash


@given(
    seed=seeds,
    size=sizes,
    max_weight=st.sampled_from([1e-6, 0.05, 0.3, 1.0]),
    max_turnover=st.sampled_from([1e-6, 0.1, 1.0]),
    band=st.sampled_from([0.0, 1e-3, 0.2, 0.9]),
)
def test_limits_leave_a_portfolio_and_hold(
    seed: int, size: int, max_weight: float, max_turnover: float, band: float
) -> None:
    rng = np.random.default_rng(seed)
    before, target = drawn(rng, 6, size), drawn(rng, 6, size)
    target[:3, :-1], target[:3, -1] = drawn(rng, 3, size - 1), 0.0  # no cash, and a sum that may round to over one
    result = apply_limits(before, target, Limits(max_weight, max_turnover, band))
    assert_portfolios(result)
    assert (turnover(before, result) <= max_turnover + 1e-12).all()
    # a weight over its maximum may only be one that drifted there and has not come back yet
    allowed = np.maximum(max_weight, before[:, :-1])
    assert (result[:, :-1] <= allowed + 1e-12).all()
    traded = np.abs(result - before).max(axis=1)
    assert ((traded == 0.0) | (traded > band - 1e-12)).all()


@pytest.mark.parametrize(
    ("before", "target", "limits", "expected"),
    [
        ([0.0, 0.0, 1.0], [0.7, 0.3, 0.0], Limits(), [0.7, 0.3, 0.0]),
        # what exceeds the maximum weight is kept in cash
        ([0.0, 0.0, 1.0], [0.7, 0.3, 0.0], Limits(max_weight=0.4), [0.4, 0.3, 0.3]),
        # a limit on turnover goes part of the way
        ([0.0, 0.0, 1.0], [0.6, 0.2, 0.2], Limits(max_turnover=0.2), [0.15, 0.05, 0.8]),
        # 0.9 of A, all of it wanted, at most 0.5: the way to 0.5 is 0.4, of which 0.2 may be traded now
        ([0.9, 0.1], [1.0, 0.0], Limits(max_weight=0.5, max_turnover=0.2), [0.7, 0.3]),
        # a trade of 0.3 that turnover cuts to 0.05 is inside a band of 0.1: nothing is traded
        ([0.5, 0.5], [0.8, 0.2], Limits(max_turnover=0.05, no_trade_band=0.1), [0.5, 0.5]),
        # a trade as large as the band is not traded, and a larger one in full
        ([0.5, 0.25, 0.25], [0.625, 0.125, 0.25], Limits(no_trade_band=0.125), [0.5, 0.25, 0.25]),
        ([0.5, 0.25, 0.25], [0.6875, 0.0625, 0.25], Limits(no_trade_band=0.125), [0.6875, 0.0625, 0.25]),
    ],
)
def test_limits_by_hand(before: list[float], target: list[float], limits: Limits, expected: list[float]) -> None:
    result = apply_limits(np.array([before]), np.array([target]), limits)
    np.testing.assert_allclose(result, np.array([expected]), rtol=0, atol=1e-15)
    if expected in (before, target):
        np.testing.assert_array_equal(result, np.array([expected]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_actions_keep_their_precision(dtype: torch.dtype) -> None:
    action = torch.softmax(torch.randn(4, 21, generator=torch.Generator().manual_seed(0), dtype=dtype), dim=-1)
    for result in (as_portfolio(action), as_portfolio(3.0 * action)):
        assert result.dtype == dtype
        torch.testing.assert_close(result.sum(-1), torch.ones(4, dtype=dtype))
