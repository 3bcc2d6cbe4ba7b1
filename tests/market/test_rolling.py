"""Running sums equal sums over each window, and never look ahead."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from finflow.market.features import rolling_windows as rolling

Windowed = Callable[[NDArray[np.float64], int], NDArray[np.float64]]


def std(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    return rolling.Series(values).std(window)


NAIVE: dict[Windowed, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    rolling.total: lambda rows: rows.sum(axis=-1),
    rolling.mean: lambda rows: rows.mean(axis=-1),
    std: lambda rows: rows.std(axis=-1, ddof=1),
    rolling.maximum: lambda rows: rows.max(axis=-1),
    rolling.minimum: lambda rows: rows.min(axis=-1),
}


def ragged(seed: int, bars: int = 80, columns: int = 3) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((bars, columns)) * 0.02
    values[: rng.integers(0, 20), 0] = np.nan
    values[bars - rng.integers(0, 20) :, 1] = np.nan
    return values


@pytest.mark.parametrize("function", NAIVE)
@given(seed=st.integers(0, 1000), window=st.integers(2, 30))
def test_windows_equal_numpys(function: Windowed, seed: int, window: int) -> None:
    values = ragged(seed)
    result = function(values, window)
    assert np.isnan(result[: window - 1]).all()
    expected = NAIVE[function](np.lib.stride_tricks.sliding_window_view(values, window, axis=0))
    np.testing.assert_allclose(result[window - 1 :], expected, atol=1e-12)


@pytest.mark.parametrize("function", NAIVE)
def test_a_row_has_the_same_bits_however_much_follows(function: Windowed) -> None:
    values = ragged(1)
    for rows in (30, 55, 79):
        np.testing.assert_array_equal(function(values, 21)[:rows], function(values[:rows], 21))
    np.testing.assert_array_equal(rolling.ema(values, 12)[:50], rolling.ema(values[:50], 12))


def test_a_century_of_data_loses_no_digits_that_matter() -> None:
    values = np.random.default_rng(0).standard_normal((25_000, 1)) * 0.01 + 0.001
    expected = values[-21:].std(axis=0, ddof=1)
    np.testing.assert_allclose(std(values, 21)[-1], expected, rtol=1e-9)


def test_a_price_that_stands_still_has_no_deviation() -> None:
    values = np.random.default_rng(0).standard_normal((5000, 1))
    values[4000:] = 0.0
    assert (std(values, 21)[4025:] == 0.0).all()


def test_ema_follows_its_recursion() -> None:
    values = np.array([[1.0], [2.0], [4.0]])
    np.testing.assert_allclose(rolling.ema(values, 3)[:, 0], [1.0, 1.5, 2.75])


@given(seed=st.integers(0, 1000), columns=st.integers(1, 9))
def test_ranks_equal_those_of_pandas(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.where(rng.random((300, columns)) < 0.2, np.nan, rng.integers(0, 6, (300, columns)))
    rank = np.asarray(pd.DataFrame(values).rank(axis=1))
    others = np.isfinite(values).sum(axis=1, keepdims=True) - 1
    expected = np.where(others > 0, 2.0 * (rank - 1.0) / np.maximum(others, 1) - 1.0, rank * 0.0)
    np.testing.assert_array_equal(rolling.percentile_rank(values), expected)
