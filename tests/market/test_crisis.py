"""The crisis score is the filter of two states, fitted on training: it finds the states and knows nothing of later."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import MarketConfig
from finflow.market.features.market_features import TwoStates, crisis, filtered, fit_states
from finflow.market.features.rolling_windows import PanelView
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel

FloatArray = NDArray[np.float64]
TRUTH = TwoStates(np.array([0.0006, -0.0015]), np.array([0.007, 0.02]) ** 2, np.array([0.985, 0.95]))


def switching(seed: int, bars: int = 6000) -> tuple[FloatArray, NDArray[np.int64]]:
    """Log returns of two hidden states, and the states."""
    rng = np.random.default_rng(seed)
    states = np.zeros(bars, dtype=np.int64)
    for bar in range(1, bars):
        stays = rng.random() < TRUTH.stay[states[bar - 1]]
        states[bar] = states[bar - 1] if stays else 1 - states[bar - 1]
    return TRUTH.means[states] + np.sqrt(TRUTH.variances)[states] * rng.standard_normal(bars), states


def panel_of(returns: FloatArray) -> MarketPanel:
    """Two assets whose mean log return is the one given."""
    apart = np.random.default_rng(9).standard_normal(len(returns)) * 0.005
    logs = np.stack([returns + apart, returns - apart], axis=1)
    logs[0] = 0.0
    dates = np.datetime64("1990-01-01") + np.arange(len(returns))
    return MarketPanel(dates=dates, assets=("A", "B"), close=50.0 * np.exp(np.cumsum(logs, axis=0)))


def reference(returns: FloatArray, states: TwoStates) -> tuple[FloatArray, float]:
    """Bayes' rule as in Hamilton (1994), chapter 22, in matrices; probabilities and the log likelihood."""
    transition = np.array([[states.stay[0], 1 - states.stay[1]], [1 - states.stay[0], states.stay[1]]])
    belief, rows, evidence = np.array([0.5, 0.5]), [], 0.0
    for bar, value in enumerate(returns):
        prior = belief if bar == 0 else transition @ belief
        if np.isnan(value):
            belief = prior
        else:
            density = np.exp(-((value - states.means) ** 2) / (2 * states.variances)) / np.sqrt(
                2 * np.pi * states.variances
            )
            joint = density * prior
            evidence += np.log(joint.sum())
            belief = joint / joint.sum()
        rows.append(belief)
    return np.array(rows), float(evidence)


def area(score: FloatArray, positive: NDArray[np.bool_]) -> float:
    """Chance that a bar of the bad state scores above one of the calm state."""
    ranks = np.argsort(np.argsort(score)) + 1.0
    count = positive.sum()
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(score) - count)))


def score_of(panel: MarketPanel, fit_until: int) -> FloatArray:
    """The crisis probability, fitted on the bars before `fit_until`."""
    view = PanelView(panel)
    return crisis(view, fit_states(view.market[:fit_until, 0]))


def test_the_filter_equals_bayes_rule() -> None:
    returns, _ = switching(0, 1500)
    returns[[0, 700, 701]] = np.nan
    expected, _ = reference(returns, TRUTH)
    result = filtered(returns, TRUTH)
    known = np.isfinite(returns)
    assert np.isnan(result[~known]).all()
    np.testing.assert_allclose(result[known], expected[known, 1], atol=1e-10)


def test_the_score_separates_the_states_out_of_sample() -> None:
    returns, states = switching(0)
    score = score_of(panel_of(returns), 3000)
    assert area(score[3000:], states[3000:] == 1) > 0.9
    # As well as the filter that knows the truth, up to what 3000 bars can teach.
    best = area(filtered(returns, TRUTH)[3000:], states[3000:] == 1)
    assert area(score[3000:], states[3000:] == 1) > best - 0.01
    expected, _ = reference(
        PanelView(panel_of(returns)).market[:, 0], fit_states(PanelView(panel_of(returns)).market[:3000, 0])
    )
    np.testing.assert_allclose(score[1:], expected[1:, 1], atol=1e-10)


def test_the_fit_is_the_likeliest() -> None:
    returns, _ = switching(0, 2500)
    fitted = fit_states(returns)
    best = reference(returns, fitted)[1]
    assert best > reference(returns, TRUTH)[1]
    for name in ("means", "variances", "stay"):
        for state in range(2):
            for factor in (0.97, 1.01):
                moved = np.array(getattr(fitted, name))
                moved[state] = min(moved[state] * factor, 1.0 - 1e-4)
                assert reference(returns, fitted._replace(**{name: moved}))[1] < best + 1e-3
    np.testing.assert_allclose(np.sqrt(fitted.variances), np.sqrt(TRUTH.variances), rtol=0.12)
    np.testing.assert_allclose(fitted.stay, TRUTH.stay, atol=0.03)


def test_what_comes_after_training_changes_no_fit_and_no_bit_before_it() -> None:
    panel = panel_of(switching(5, 1200)[0])
    whole = score_of(panel, 800)
    shocked = np.array(panel.close)
    shocked[900:] *= np.random.default_rng(1).uniform(0.2, 5.0, shocked[900:].shape)
    other = score_of(MarketPanel(dates=panel.dates, assets=panel.assets, close=shocked), 800)
    np.testing.assert_array_equal(other[:900], whole[:900])
    assert not np.array_equal(other[900:], whole[900:])
    for bars in (800, 801, 1000, 1199):
        np.testing.assert_array_equal(score_of(panel.until(bars), 800), whole[:bars])


@pytest.mark.parametrize(
    "returns",
    [
        np.zeros(400),
        np.random.default_rng(0).standard_normal(400) * 0.01,
        np.where(np.arange(400) == 200, -4.6, 0.001),
        np.concatenate([np.full(399, np.nan), [0.01]]),
        np.full(400, np.nan),
    ],
    ids=["still", "one state", "a crash of 99 %", "one return", "none"],
)
def test_markets_without_two_states_give_probabilities(returns: FloatArray) -> None:
    fitted = fit_states(returns)
    assert all(np.isfinite(part).all() for part in fitted)
    score = filtered(returns, fitted)[np.isfinite(returns)]
    assert ((score >= 0.0) & (score <= 1.0)).all()


def test_known_crises_of_the_embedded_market_score_high() -> None:
    panel = load_panel(MarketConfig())
    score = score_of(panel, 5547)
    years = panel.dates.astype("datetime64[Y]").astype(int) + 1970
    mean = {year: float(np.nanmean(score[years == year])) for year in range(1991, 2023)}
    assert {2008, 2002, 2009} == set(sorted(mean, key=lambda year: mean[year])[-3:])
    assert mean[2020] > 4.0 * max(mean[2013], mean[2014], mean[2017], mean[2021])


def test_the_bad_state_is_the_wilder_one_whatever_its_mean() -> None:
    returns, states = switching(4)
    fitted = fit_states(-returns)
    assert fitted.variances[1] > fitted.variances[0]
    assert area(filtered(-returns, fitted), states == 1) > 0.9
