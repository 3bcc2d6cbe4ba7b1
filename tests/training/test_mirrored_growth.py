"""Bars mirrored around predicted returns: what is predictable stays, what came by chance turns round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from finflow.agent.learners.offline_learner import make_policy
from finflow.env.decision_process import DecisionProcess, with_growths
from finflow.training.data import mirrored_growth as module
from finflow.training.data.mirrored_growth import (
    Predictions,
    mirrored_growth,
    predicted_returns,
    regime_returns,
    with_mirrored_bars,
)
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket, as_tensors
from finflow.training.data.training_data import TrainingData, prepare
from tests.training.whole_trainings import Make

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(shared: Make) -> TrainingData:
    return prepare(shared())


@pytest.fixture
def process(data: TrainingData) -> DecisionProcess:
    return data.learning


@pytest.fixture
def bars(data: TrainingData) -> range:
    """Bars of the decisions of the training window."""
    return data.learning.decision_bars(data.split.train)


def known(process: DecisionProcess, bars: range) -> NDArray[np.float64]:
    """A feature of every asset at each of the decisions, against their mean."""
    found = process.asset_features[np.array(bars) - process.lag, :, 0].astype(np.float64)
    return found - found.mean(axis=1, keepdims=True)


def test_a_bar_and_its_mirror_earn_what_was_predicted_on_average(process: DecisionProcess, bars: range) -> None:
    expected, _ = predicted_returns(process, [bars])
    mirrored = mirrored_growth(process, expected)
    rows = slice(bars.start + 1, bars.stop + 1)
    both = 0.5 * (np.log(mirrored[rows, :-1]) + np.log(process.growth[rows, :-1]))
    assert np.allclose(both, expected[rows], atol=1e-12)
    assert np.array_equal(mirrored[: bars.start + 1], process.growth[: bars.start + 1])
    assert np.array_equal(mirrored[:, -1], process.growth[:, -1])  # cash


def test_what_features_tell_is_predicted_and_noise_is_not(process: DecisionProcess, bars: range) -> None:
    """A tenth of the variance follows a feature in one market; returns are independent in the other."""
    rng, rows, law = np.random.default_rng(0), np.array(bars), known(process, bars)
    law /= law.std()
    correlations, shares = [], []
    for share in (0.3, 0.0):
        other = with_growths(process, [])
        noise = rng.standard_normal(law.shape)
        other.growth[rows + 1, :-1] = np.exp(0.01 * (share * law + noise))
        predicted, of_weight = predicted_returns(other, [bars])
        shares.append(of_weight)
        found = predicted[rows + 1]
        found -= found.mean(axis=1, keepdims=True)
        correlations.append(0.0 if not found.std() > 1e-12 else np.corrcoef(found.ravel(), law.ravel())[0, 1])
        assert found.std() < 0.01 * (share + 0.15)
    assert correlations[0] > 0.8
    assert shares[0] > 0.6  # one law throughout: a slope near 1


def test_predictions_that_other_bars_contradict_have_no_weight(
    process: DecisionProcess, bars: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sign of what a feature tells changes from fifth to fifth of the bars: its slope on others is not positive."""
    rows = np.array(bars)
    signs = np.concatenate([np.full(len(part), (-1.0) ** place) for place, part in enumerate(np.array_split(rows, 5))])
    other = with_growths(process, [])
    other.growth[rows + 1, :-1] = np.exp(0.01 * signs[:, None] * known(process, bars))
    monkeypatch.setattr(module, "regime_returns", lambda process, bars: np.zeros(process.listed.shape))
    assert predicted_returns(other, [bars])[1] == 0.0


def test_no_reward_outside_the_segments_enters(process: DecisionProcess, bars: range) -> None:
    middle = (bars.start + bars.stop) // 2
    segments = [range(bars.start, middle - 20), range(middle + 20, bars.stop)]
    before, _ = predicted_returns(process, segments)
    other = with_growths(process, [])
    other.growth[middle - 18 : middle + 20, :-1] *= 1.5
    assert np.array_equal(predicted_returns(other, segments)[0], before, equal_nan=True)
    assert not np.isfinite(before[middle - 18 : middle + 20]).any()


def test_returns_are_predicted_once_from_each_set_of_segments(
    data: TrainingData, bars: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = RewardUnits.of(data.learning, 0.01, "equal-weight", CPU)
    market = RolloutMarket(data.learning, MarketTensors.of(data.learning, CPU), units)
    learned = [[bars], [range(bars.start + 100, bars.stop)], [range(bars.start, bars.stop - 100)]]
    wanted, mirrors = with_mirrored_bars(market, learned, 0.5)
    known: Predictions = {}
    with_mirrored_bars(market, learned[:1], 0.5, known)
    with_mirrored_bars(market, learned[1:], 0.5, known)
    monkeypatch.setattr(module, "predicted_returns", None)
    found, others = with_mirrored_bars(market, learned, 0.5, known)
    assert np.array_equal(found.process.growth, wanted.process.growth)
    assert others == mirrors


def test_a_rollout_in_a_further_table_earns_what_a_market_of_its_own_pays(data: TrainingData) -> None:
    process = data.learning
    mirrored = mirrored_growth(process, predicted_returns(process, [process.decision_bars(data.split.train)])[0])
    alone = with_growths(process, [])
    alone.growth = mirrored
    units = RewardUnits.of(process, 0.01, "equal-weight", CPU)
    tensors = MarketTensors.of(process, CPU)
    policy = make_policy(data.shape, data.config.bcell, torch.Generator().manual_seed(1))
    start = as_tensors(process.start(np.array([process.first_bar, process.first_bar + 7])), CPU)
    behind = replace(start, bar=start.bar + len(process.growth))
    found = []
    for market, state in (
        (RolloutMarket(with_growths(process, [mirrored]), tensors, units), behind),
        (RolloutMarket(alone, tensors, units), start),
    ):
        with torch.no_grad():
            reading = RolloutMarket(process, tensors, units).read(policy, start, 5)
            found.append(market.roll_out(policy, reading, state, 5).rewards)
    assert torch.equal(*found)


# --- regimes


def market_with(process: DecisionProcess, share: float, seed: int) -> tuple[DecisionProcess, NDArray[np.float64]]:
    """The market with other returns: of the given share, a regime's sign of half of the assets against the others."""
    rng = np.random.default_rng(seed)
    bars, assets = process.listed.shape
    regimes = np.cumsum(rng.random(bars) < 0.03) % 2
    signs = np.where(np.arange(assets) < assets // 2, 1.0, -1.0)
    expected = share * (2.0 * regimes - 1.0)[:, None] * signs
    expected -= expected.mean(axis=1, keepdims=True)
    other = with_growths(process, [])
    other.growth[:, :-1] = np.exp(0.01 * (expected + rng.standard_normal((bars, assets))))
    return other, 0.01 * expected


def test_returns_that_follow_a_regime_are_predicted(process: DecisionProcess, bars: range) -> None:
    other, expected = market_with(process, 0.5, seed=3)
    rows = np.array(bars)
    found, wanted = regime_returns(other, rows)[rows + 1], expected[rows + 1]
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.7  # a regime's first bars cannot be known
    outside = np.ones(len(process.listed), dtype=np.bool_)
    outside[rows + 1] = False
    assert not regime_returns(other, rows)[outside].any()


def test_nothing_is_predicted_where_returns_are_independent(process: DecisionProcess, bars: range) -> None:
    """What little a chance find adds is a thousandth of the returns' variance in the mean of ten markets."""
    shares, rows = [], np.array(bars)
    for seed in range(10):
        other, _ = market_with(process, 0.0, seed)
        found = regime_returns(other, rows)[rows + 1]
        shares.append(float((found**2).mean()) / 0.01**2)
    assert np.mean(shares) < 2e-3
    assert np.median(shares) < 5e-4
