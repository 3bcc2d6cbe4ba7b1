"""The portfolios to beat are the ones their names promise, fitted on the past and held in between."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from skfolio.moments import LedoitWolf, ShrunkMu, ShrunkMuMethods

from finflow.config import EvaluationConfig
from finflow.errors import FinflowError
from finflow.evaluation.statistics.metrics import cvar
from finflow.strategies.classical import NAMED, Momentum, Rolling, named_strategy
from finflow.strategies.strategy import Information, Strategy, equal_weights
from tests.market.conftest import assert_refused

CONFIG = EvaluationConfig()
FITTED = (
    *("inverse-volatility", "minimum-variance", "risk-parity", "maximum-diversification", "hierarchical-risk-parity"),
    *("mean-variance", "minimum-cvar", "momentum", "time-series-momentum", "low-volatility"),
)
EACH = pytest.mark.parametrize("name", NAMED)
HELD = np.array([0.1, 0.2, 0.3, 0.1, 0.1, 0.2])


def prices(bars: int = 300, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((bars, 1)) * 0.008
    own = rng.standard_normal((bars, 5)) * np.array([0.005, 0.008, 0.01, 0.015, 0.02])
    return 50.0 * np.exp(np.cumsum(common + own, axis=0))


def information(
    known: NDArray[np.float64], step: int = 0, listed: list[bool] | None = None, portfolio: NDArray[np.float64] = HELD
) -> Information:
    return Information(step, known, np.array(listed or [True] * known.shape[1]), portfolio)


RETURNS = prices()[-252:] / prices()[-253:-1] - 1.0
COVARIANCE = np.cov(RETURNS.T)
OTHERS = np.random.default_rng(0).dirichlet(np.full(5, 0.5), 500)


def fitted(name: str) -> NDArray[np.float64]:
    """Weights of the assets in a portfolio fitted to `RETURNS`."""
    return named_strategy(name, CONFIG).decide(information(prices()))[:-1]


def assert_portfolio(weights: NDArray[np.float64], names: int = 5) -> None:
    assert weights.shape == (names + 1,)
    assert (weights >= 0.0).all()
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)


@EACH
def test_every_named_strategy_names_a_portfolio_of_what_is_listed(name: str) -> None:
    strategy = named_strategy(name, CONFIG)
    assert isinstance(strategy, Strategy)
    assert strategy.name == name
    first = strategy.decide(information(prices()))
    assert_portfolio(first)
    strategy.decide(information(prices(seed=9), step=21))
    np.testing.assert_array_equal(first, strategy.decide(information(prices())))  # whatever was asked in between
    weights = strategy.decide(information(prices(), listed=[True, False, True, True, False]))
    assert_portfolio(weights)
    assert weights[1] == weights[4] == 0.0
    assert strategy.decide(information(prices(), listed=[False] * 5))[-1] == 1.0


@EACH
def test_an_asset_that_is_young_or_never_moved_is_not_fitted_and_breaks_nothing(name: str) -> None:
    known = prices()
    known[:200, 2] = np.nan
    known[:, 0] = 3.0
    weights = named_strategy(name, CONFIG).decide(information(known))
    assert_portfolio(weights)
    if name in FITTED:
        assert weights[2] == weights[0] == 0.0


@pytest.mark.parametrize("name", [*FITTED, "sixty-forty"])
def test_between_fits_the_portfolio_is_held(name: str) -> None:
    strategy = named_strategy(name, EvaluationConfig(rebalance_every=5))
    for step in (1, 2, 3, 4, 6, 9):
        np.testing.assert_array_equal(strategy.decide(information(prices(), step)), HELD)
    for step in (0, 5, 10):
        assert not np.array_equal(strategy.decide(information(prices(), step)), HELD)


@pytest.mark.parametrize("name", FITTED)
def test_too_short_a_history_is_equal_weight(name: str) -> None:
    weights = named_strategy(name, CONFIG).decide(information(prices(252)))
    np.testing.assert_array_equal(weights, equal_weights(np.ones(5, dtype=bool)))
    assert not np.array_equal(named_strategy(name, CONFIG).decide(information(prices(253))), weights)


@pytest.mark.parametrize("name", FITTED)
def test_a_fit_uses_the_lookback_and_nothing_older(name: str) -> None:
    known = prices()
    older = known.copy()
    older[: 300 - 253] *= np.random.default_rng(3).uniform(0.5, 2.0, older[: 300 - 253].shape)
    decide = named_strategy(name, CONFIG).decide
    np.testing.assert_array_equal(decide(information(known)), decide(information(older)))


def test_rules_without_fits_are_their_names() -> None:
    equal, hold, split = (named_strategy(name, CONFIG) for name in ("equal-weight", "buy-and-hold", "sixty-forty"))
    for step in (0, 1, 2):
        np.testing.assert_allclose(equal.decide(information(prices(), step)), [0.2] * 5 + [0.0])
    np.testing.assert_allclose(hold.decide(information(prices(), 0)), [0.2] * 5 + [0.0])
    np.testing.assert_array_equal(hold.decide(information(prices(), 1)), HELD)
    np.testing.assert_allclose(split.decide(information(prices())), [0.12] * 5 + [0.4])


def test_inverse_volatility_and_risk_parity_are_their_formulas() -> None:
    expected = 1.0 / RETURNS.std(axis=0, ddof=1)
    np.testing.assert_allclose(fitted("inverse-volatility"), expected / expected.sum(), rtol=1e-9)
    weights = fitted("risk-parity")
    contribution = weights * (COVARIANCE @ weights)
    np.testing.assert_allclose(contribution / contribution.sum(), 0.2, atol=1e-3)


def variance(weights: NDArray[np.float64]) -> float:
    return float(weights @ COVARIANCE @ weights)


def diversification(weights: NDArray[np.float64]) -> float:
    return float(weights @ np.sqrt(np.diag(COVARIANCE)) / np.sqrt(variance(weights)))


@cache
def shrunk() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = ShrunkMu(LedoitWolf(), method=ShrunkMuMethods.BAYES_STEIN).fit(RETURNS).mu_
    assert np.ptp(mean) < 0.9 * np.ptp(RETURNS.mean(axis=0))
    return mean, LedoitWolf().fit(RETURNS).covariance_


def shrunk_utility(weights: NDArray[np.float64]) -> float:
    mean, covariance = shrunk()
    return float(mean @ weights - 2.5 * weights @ covariance @ weights)


@pytest.mark.parametrize(
    ("name", "better", "tolerance"),
    [
        ("minimum-variance", lambda weights: -variance(weights), 1e-10),
        ("maximum-diversification", diversification, 1e-6),
        ("minimum-cvar", lambda weights: cvar(RETURNS @ weights, 0.05), 1e-5),
        ("mean-variance", shrunk_utility, 1e-8),
    ],
)
def test_no_portfolio_is_better_than_the_optimisers(
    name: str, better: Callable[[NDArray[np.float64]], float], tolerance: float
) -> None:
    best = better(fitted(name))
    assert all(better(other) <= best + tolerance for other in OTHERS)


def test_momentum_holds_the_best_third_of_the_year_without_its_last_month() -> None:
    known = np.full((300, 6), 10.0) * np.exp(np.arange(300)[:, None] * np.array([3, 1, 2, -1, 0.5, -2]) * 1e-3)
    known[-20:, 0] *= 0.1  # the last month does not count
    weights = Momentum().decide(information(known, portfolio=np.full(7, 1 / 7)))
    np.testing.assert_allclose(weights, [0.5, 0, 0.5, 0, 0, 0, 0])


def test_time_series_momentum_keeps_in_cash_what_fell() -> None:
    drift = np.array([3, 1, -2, -1, 0.5])
    known = np.exp(np.arange(300)[:, None] * drift * 1e-3)
    known[-20:, 0] *= 0.01  # the last month does not count
    weights = named_strategy("time-series-momentum", CONFIG).decide(information(known))
    np.testing.assert_allclose(weights, [0.2, 0.2, 0.0, 0.0, 0.2, 0.4])
    falling = named_strategy("time-series-momentum", CONFIG).decide(information(np.exp(-np.cumsum(known, axis=0))))
    np.testing.assert_array_equal(falling, [0, 0, 0, 0, 0, 1])


def test_low_volatility_holds_the_third_that_moved_least() -> None:
    rng = np.random.default_rng(0)
    known = np.cumprod(1.0 + rng.normal(0.0, 0.001, (300, 5)) * [5, 1, 4, 2, 3], axis=0)
    weights = named_strategy("low-volatility", CONFIG).decide(information(known))
    np.testing.assert_allclose(weights, [0, 0.5, 0, 0.5, 0, 0])


@pytest.mark.parametrize("name", FITTED)
def test_a_memo_saves_fits_and_changes_none(name: str) -> None:
    memo: dict[tuple[str, bytes], NDArray[np.float64]] = {}
    expected = named_strategy(name, CONFIG).decide(information(prices()))
    for _ in range(2):
        strategy = named_strategy(name, CONFIG)
        assert isinstance(strategy, Rolling)
        strategy.memo = memo
        np.testing.assert_array_equal(strategy.decide(information(prices())), expected)
        assert len(memo) == 1
    memo[next(iter(memo))] = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
    assert strategy.decide(information(prices()))[0] == 1.0  # what is in the memo is used
    strategy.decide(information(prices(seed=9)))
    assert len(memo) == 2


class Broken(Rolling):
    name = "broken"

    def __init__(self, answer: NDArray[np.float64] | Exception) -> None:
        super().__init__()
        self.answer = answer

    def fit(self, returns: NDArray[np.float64]) -> NDArray[np.float64]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [ValueError("solver\nfailed"), np.full(5, np.nan), np.zeros(5), np.ones(4)])
def test_a_fit_that_fails_is_an_error_that_says_where(answer: NDArray[np.float64] | Exception) -> None:
    decide = Broken(answer).decide
    assert_refused(["broken at decision 42 (bar 299)"], lambda: decide(information(prices(), step=42)), FinflowError)


def test_a_misspelt_strategy_is_answered_with_the_nearest() -> None:
    with pytest.raises(FinflowError, match="did you mean 'risk-parity'"):
        named_strategy("risk-partiy", CONFIG)
    with pytest.raises(FinflowError, match="known are equal-weight"):
        named_strategy("xyzzy", CONFIG)


USERS_MODULE = """
import numpy as np

class Mine:
    name = "mine"
    def decide(self, information):
        return information.portfolio

class Configured(Mine):
    def __init__(self, config):
        self.every = config.rebalance_every

def make():
    return Mine()

instance = Mine()

class NotOne:
    name = "not one"

class Failing(Mine):
    def __init__(self):
        raise RuntimeError("two\\nlines")
"""


@pytest.fixture
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "users_own_rules.py").write_text(USERS_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_own_rules", raising=False)
    return "users_own_rules"


@pytest.mark.parametrize("attribute", ["Mine", "Configured", "make", "instance"])
def test_a_users_own_strategy_is_found_by_its_import_path(users_module: str, attribute: str) -> None:
    strategy = named_strategy(f"{users_module}:{attribute}", CONFIG)
    assert strategy.name == "mine"
    np.testing.assert_array_equal(strategy.decide(information(prices())), HELD)


def test_a_strategy_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules_of_this_folder.py").write_text(USERS_MODULE)
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert named_strategy("rules_of_this_folder:Mine", CONFIG).name == "mine"
    assert sys.path == before


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_module_at_all:Mine", "no_such_module_at_all"),
        ("users_own_rules:Missing", "Missing"),
        ("users_own_rules:NotOne", "decide"),
        ("users_own_rules:Failing", "two lines"),
        (":Mine", "':Mine'"),
    ],
)
def test_a_strategy_that_cannot_be_imported_is_one_clear_line(users_module: str, path: str, words: str) -> None:
    assert_refused([words], lambda: named_strategy(path, CONFIG), FinflowError)


@EACH
def test_permuting_assets_permutes_the_weights_and_units_do_not_matter(name: str) -> None:
    order = np.array([3, 0, 4, 1, 2])
    weights = named_strategy(name, CONFIG).decide(information(prices()))
    moved = named_strategy(name, CONFIG).decide(information(prices()[:, order] * np.arange(1.0, 6.0)))
    np.testing.assert_allclose(moved, weights[[*order, 5]], atol=1e-4)  # iterative solvers
