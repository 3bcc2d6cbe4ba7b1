"""Online selection is what the papers say, implemented here once more in plain loops, and a function of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq

from finflow.config import EvaluationConfig
from finflow.strategies.classical import named_strategy
from finflow.strategies.online_selection import (
    ExponentiatedGradient,
    MeanReversion,
    PassiveAggressiveMeanReversion,
)
from finflow.strategies.strategy import Information, Memo, Memoised, Strategy

FloatArray = NDArray[np.float64]

BEFORE, STEPS, ASSETS = 12, 80, 5
NAMES = ("crp", "eg", "pamr", "olmar")
EACH = pytest.mark.parametrize("name", NAMES)


def prices(seed: int = 0, deviation: float = 0.03) -> FloatArray:
    rng = np.random.default_rng(seed)
    return 20.0 * np.exp(np.cumsum(rng.normal(0.0, deviation, size=(BEFORE + STEPS, ASSETS)), axis=0))


def told(known: FloatArray, step: int, listed: NDArray[np.bool_] | None = None) -> Information:
    everything = np.ones(known.shape[1], dtype=np.bool_)
    return Information(step, known, everything if listed is None else listed, np.eye(known.shape[1] + 1)[-1])


def run(strategy: Strategy, close: FloatArray) -> FloatArray:
    """The portfolios named from bar BEFORE - 1 on, (steps, assets)."""
    listed = np.isfinite(close)
    rows = [strategy.decide(told(close[: BEFORE + step], step, listed[BEFORE + step - 1])) for step in range(STEPS + 1)]
    assert all(row[-1] < 1e-15 for row in rows)  # rounding
    return np.array(rows)[:, :-1]


# Written from the papers ----------------------------------------------------------------------------------------------


def onto_simplex(vector: list[float]) -> list[float]:
    """The closest portfolio, its threshold by root finding."""
    low, high = min(vector) - 1.0, max(vector)
    threshold = brentq(lambda shift: sum(max(v - shift, 0.0) for v in vector) - 1.0, low, high, xtol=1e-15)
    clipped = [max(v - threshold, 0.0) for v in vector]
    return [value / sum(clipped) for value in clipped]


def days(close: FloatArray) -> Iterator[tuple[int, list[float]]]:
    """Each trading day of the run with its vector of price relatives x_t."""
    for t in range(BEFORE, BEFORE + STEPS):
        yield t, [float(close[t, i] / close[t - 1, i]) for i in range(ASSETS)]


def paper_eg(close: FloatArray, eta: float = 0.05) -> list[list[float]]:
    """Helmbold et al. (1998), equation 3.3: w_i exp(eta x_i / w.x) / sum_j w_j exp(eta x_j / w.x)."""
    w = [1.0 / ASSETS] * ASSETS
    path = [w]
    for _, x in days(close):
        earned = sum(wi * xi for wi, xi in zip(w, x, strict=True))
        top = [wi * np.exp(eta * xi / earned) for wi, xi in zip(w, x, strict=True)]
        w = [value / sum(top) for value in top]
        path.append(w)
    return path


def paper_pamr(close: FloatArray, epsilon: float = 0.5) -> list[list[float]]:
    """Li et al. (2012), algorithm 1, PAMR."""
    b = [1.0 / ASSETS] * ASSETS
    path = [b]
    for _, x in days(close):
        loss = max(0.0, sum(bi * xi for bi, xi in zip(b, x, strict=True)) - epsilon)
        mean = sum(x) / ASSETS
        tau = loss / sum((xi - mean) ** 2 for xi in x)
        b = onto_simplex([bi - tau * (xi - mean) for bi, xi in zip(b, x, strict=True)])
        path.append(b)
    return path


def paper_olmar(close: FloatArray, window: int = 5, epsilon: float = 10.0) -> list[list[float]]:
    """Li and Hoi (2012), algorithms 1 and 2: the prediction as 1/w (1 + 1/x_t + 1/(x_t x_{t-1}) + ...)."""
    b = [1.0 / ASSETS] * ASSETS
    path = [b]
    for t, _ in days(close):
        predicted = []
        for i in range(ASSETS):
            term, total = 1.0, 1.0
            for back in range(window - 1):
                term /= close[t - back, i] / close[t - back - 1, i]
                total += term
            predicted.append(total / window)
        mean = sum(predicted) / ASSETS
        short = epsilon - sum(bi * pi for bi, pi in zip(b, predicted, strict=True))
        lam = max(0.0, short / sum((p - mean) ** 2 for p in predicted))
        b = onto_simplex([bi + lam * (pi - mean) for bi, pi in zip(b, predicted, strict=True)])
        path.append(b)
    return path


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("make", "paper"),
    [
        (ExponentiatedGradient, paper_eg),
        (PassiveAggressiveMeanReversion, paper_pamr),
        (MeanReversion, paper_olmar),
        (lambda: ExponentiatedGradient(rate=2.0), lambda close: paper_eg(close, 2.0)),
        (lambda: PassiveAggressiveMeanReversion(threshold=1.0), lambda close: paper_pamr(close, 1.0)),
        (lambda: MeanReversion(window=9, threshold=1.01), lambda close: paper_olmar(close, 9, 1.01)),
    ],
)
def test_portfolios_are_those_of_the_paper(
    make: Callable[[], Strategy], paper: Callable[[FloatArray], list[list[float]]], seed: int
) -> None:
    """Projections in the two implementations differ by up to 1e-10: OLMAR's steps are of a size of 1e4."""
    close = prices(seed)
    np.testing.assert_allclose(run(make(), close), paper(close), rtol=0, atol=1e-9)


# What holds for all ---------------------------------------------------------------------------------------------------


@EACH
def test_the_same_information_has_the_same_answer_whatever_was_asked_before(name: str) -> None:
    close = prices()
    path = run(named_strategy(name, EvaluationConfig()), close)
    other = named_strategy(name, EvaluationConfig())
    for step in (40, 3, 4, 60, 0, STEPS):
        answer = other.decide(told(close[: BEFORE + step], step))
        np.testing.assert_allclose(answer[:-1], path[step], rtol=0, atol=1e-15)
        other.decide(told(prices(9)[: BEFORE + step + 1], step + 1))  # another market in between


@pytest.mark.parametrize("name", ["eg", "pamr", "olmar"])
def test_a_memo_saves_moves_and_changes_none(name: str) -> None:
    first, second = prices(), prices()
    second[-30:] *= prices(9)[-30:] / prices(9)[-31]  # they part in the last days
    alone = [run(named_strategy(name, EvaluationConfig()), close) for close in (first, second)]
    memo: Memo = {}
    for close, expected in zip((first, first, second), (alone[0], alone[0], alone[1]), strict=True):
        strategy = named_strategy(name, EvaluationConfig())
        assert isinstance(strategy, Memoised)
        strategy.memo = memo
        np.testing.assert_array_equal(run(strategy, close), expected)
    assert STEPS < len(memo) < 2 * STEPS  # days that are alike were computed once


@EACH
def test_assets_that_list_and_end_are_followed(name: str) -> None:
    close = prices()
    close[: BEFORE + 20, 1] = np.nan
    close[BEFORE + 50 :, 3] = np.nan
    path = run(named_strategy(name, EvaluationConfig()), close)
    np.testing.assert_allclose(path.sum(axis=1), 1.0, rtol=0, atol=1e-12)
    assert (path >= 0.0).all()
    assert (path[:21, 1] == 0.0).all()  # not before its first price
    assert path[21:, 1].max() > 0.1
    assert (path[51:, 3] == 0.0).all()
    assert path[:51, 3].max() > 0.1
