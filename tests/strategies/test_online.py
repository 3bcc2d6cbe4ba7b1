"""Online selection is what the papers say, in plain loops once more; the families of behaviour are five things."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from scipy.optimize import brentq

from finflow.arrays import BoolArray, FloatArray
from finflow.config import EvaluationConfig
from finflow.strategies.behaviour import FAMILIES, SETTINGS, family_tables
from finflow.strategies.classical import named_strategy
from finflow.strategies.online_selection import ExponentiatedGradient, MeanReversion, PassiveAggressiveMeanReversion
from finflow.strategies.strategy import Information, Memo, Strategy
from tests.env.conftest import panel_of
from tests.market.test_features import market

BEFORE, STEPS, ASSETS = 12, 80, 5
EACH = pytest.mark.parametrize("name", ["crp", "eg", "pamr", "olmar"])


def prices(seed: int = 0, deviation: float = 0.03) -> FloatArray:
    rng = np.random.default_rng(seed)
    return 20.0 * np.exp(np.cumsum(rng.normal(0.0, deviation, size=(BEFORE + STEPS, ASSETS)), axis=0))


def told(known: FloatArray, step: int, listed: BoolArray | None = None) -> Information:
    everything = np.ones(known.shape[1], dtype=np.bool_)
    return Information(step, known, everything if listed is None else listed, np.eye(known.shape[1] + 1)[-1])


def run(strategy: Strategy, close: FloatArray) -> FloatArray:
    """The portfolios named from bar BEFORE - 1 on, (steps, assets)."""
    listed = np.isfinite(close)
    rows = [strategy.decide(told(close[: BEFORE + step], step, listed[BEFORE + step - 1])) for step in range(STEPS + 1)]
    assert all(row[-1] < 1e-15 for row in rows)  # rounding
    return np.array(rows)[:, :-1]


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


EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)


@EACH_FAMILY
@pytest.mark.parametrize("seed", range(3))
def test_every_row_is_a_portfolio_of_what_is_listed(family: str, seed: int) -> None:
    panel = market(seed, ragged=True)
    tables = family_tables(panel, family)
    assert tables.shape == (len(SETTINGS[family]), panel.n_bars, panel.n_assets + 1)
    assert tables.dtype == np.float64
    assert (tables >= 0.0).all()
    np.testing.assert_allclose(tables.sum(axis=2), 1.0, atol=1e-12)
    assert (tables[:, :, :-1][:, ~panel.listed] == 0.0).all()
    np.testing.assert_allclose(tables[:, 10, :-1], panel.listed[10] / 4 * np.ones((len(tables), 1)))  # no history yet
    assert not tables[:, 10, -1].any()


@EACH_FAMILY
def test_the_future_changes_no_bit_of_a_decision_before_it(family: str) -> None:
    panel = market(ragged=True)
    whole = family_tables(panel, family)
    for bars in (300, 561, 699):
        np.testing.assert_array_equal(whole[:, :bars], family_tables(panel.until(bars), family))
    shocked = np.array(panel.close)
    shocked[600:] *= np.random.default_rng(1).uniform(0.5, 2.0, shocked[600:].shape)
    after = family_tables(panel_of(shocked), family)
    np.testing.assert_array_equal(whole[:, :600], after[:, :600])
    assert not np.array_equal(whole[:, 660:], after[:, 660:])


@EACH_FAMILY
def test_assets_that_do_not_move_or_are_the_same_break_nothing(family: str) -> None:
    close = np.array(market().close)
    close[:, 0] = 7.0
    close[:, 2] = close[:, 1]
    tables = family_tables(panel_of(close), family)
    assert np.isfinite(tables).all()
    np.testing.assert_allclose(tables.sum(axis=2), 1.0, atol=1e-12)


def test_volatility_targets_are_kept_by_holding_cash() -> None:
    rng = np.random.default_rng(3)
    wild = np.where(np.arange(900) < 600, 0.005, 0.03)[:, None]
    panel = panel_of(np.exp(np.cumsum(rng.standard_normal((900, 4)) * wild, axis=0)))
    tables = family_tables(panel, "volatility")
    for setting, table in zip(SETTINGS["volatility"], tables, strict=True):
        if setting.cash == 0.0:
            assert not table[:, -1].any()
        elif setting.horizon <= 126:
            assert table[880, -1] > table[590, -1] + 0.2


def test_defence_and_trends_go_to_cash_when_the_market_falls() -> None:
    rng = np.random.default_rng(4)
    drift = np.where(np.arange(900) < 600, 0.001, -0.003)[:, None]
    panel = panel_of(np.exp(np.cumsum(rng.standard_normal((900, 4)) * 0.01 + drift, axis=0)))
    for family in ("defensive", "momentum"):
        for setting, table in zip(SETTINGS[family], family_tables(panel, family), strict=True):
            assert table[899, -1] == pytest.approx(setting.cash, abs=0.02)
