"""Behaviour data is what really happened on the ledger, the same for the same seed, from every family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from finflow.agent.networks.decision import FAMILY_RATE
from finflow.config import load_config
from finflow.env import decision_process as decision
from finflow.env.coverage import SMOOTHING
from finflow.env.decision_process import DecisionProcess
from finflow.env.market_growth import equal_weight_moments
from finflow.market.features.feature_set import compute_features
from finflow.market.panel import MarketPanel
from finflow.market.sources.panel_loader import load_panel
from finflow.market.splits import split_panel
from finflow.offline.collection import (
    COVERAGE,
    COVERAGE_SHARE,
    INTERVALS,
    NOISE_SCALES,
    TRADE_RATES,
    Behaviour,
    collect,
    draw_settings,
)
from finflow.offline.dataset import OfflineDataset
from finflow.strategies.behaviour import SETTINGS

EPISODES, LENGTH, K = 40, 25, 6
LAGS = pytest.mark.parametrize("lag", [0, 1, 2])


def assert_equal(left: OfflineDataset, right: OfflineDataset) -> None:
    for name, column in left.arrays().items():
        np.testing.assert_array_equal(getattr(right, name), column)
    assert left.meta == right.meta


def by_episode(column: Any) -> Any:
    return column.reshape(EPISODES, LENGTH, *column.shape[1:])


def test_the_same_seed_collects_the_same_data_and_another_seed_other_data(
    small: Any, small_of: Callable[..., Any], dataset: OfflineDataset
) -> None:
    assert_equal(small.collect(), dataset)
    other = small_of(train__seed=1).collect()
    assert not np.array_equal(other.bar, dataset.bar)
    assert not np.array_equal(other.action, dataset.action)


def test_columns_have_the_shapes_and_types_they_promise(dataset: OfflineDataset) -> None:
    rows = EPISODES * LENGTH
    assert len(dataset) == rows
    promised = {
        "bar": (np.int32, ()),
        "portfolio": (np.float32, (K + 3,)),
        "action": (np.float32, (K,)),
        "reward": (np.float32, ()),
        "next_portfolio": (np.float32, (K + 3,)),
        "next_action": (np.float32, (K,)),
        "terminated": (np.bool_, ()),
        "truncated": (np.bool_, ()),
        "episode": (np.int32, ()),
        "family": (np.int8, ()),
    }
    assert dataset.arrays().keys() == promised.keys()
    for name, (kind, shape) in promised.items():
        column = dataset.arrays()[name]
        assert column.dtype == kind, name
        assert column.shape == (rows, *shape), name
        assert np.isfinite(column).all()
    assert dataset.reward_scale == pytest.approx(dataset.reward.std(dtype=np.float64), rel=1e-5)


def test_the_rows_of_an_episode_follow_one_another(dataset: OfflineDataset) -> None:
    assert (by_episode(dataset.episode) == np.arange(EPISODES)[:, None]).all()
    assert (np.diff(by_episode(dataset.bar), axis=1) == 1).all()
    truncated = by_episode(dataset.truncated)
    assert truncated[:, -1].all()
    assert not truncated[:, :-1].any()
    assert not dataset.terminated.any()
    portfolio, ahead = by_episode(dataset.portfolio), by_episode(dataset.next_portfolio)
    np.testing.assert_array_equal(ahead[:, :-1], portfolio[:, 1:])
    action, decided = by_episode(dataset.action), by_episode(dataset.next_action)
    np.testing.assert_array_equal(decided[:, :-1], action[:, 1:])
    # at an episode's end the next decision is the behaviour's own too, from the portfolio it ended with
    assert (np.abs(decided[:, -1].sum(axis=1) - 1.0) < 1e-6).all()
    assert (decided[:, -1] > 0.0).all()
    held = np.abs(decided[:, -1] - ahead[:, -1, :K]).max(axis=1) < 1e-7
    assert 0.0 < held.mean() < 1.0


def own_source(dataset: OfflineDataset) -> Any:
    """The source of each episode: the one family in it; coverage where there is no other."""
    rows = by_episode(dataset.family)
    own = rows.min(axis=1)
    assert ((rows == own[:, None]) | (rows == COVERAGE)).all()
    return own


def test_every_source_has_its_share_within_the_training_window(small: Any, dataset: OfflineDataset) -> None:
    counts = np.bincount(own_source(dataset), minlength=COVERAGE + 1)
    n_coverage = round(COVERAGE_SHARE * EPISODES)
    assert counts[COVERAGE] == n_coverage
    assert counts[:COVERAGE].max() - counts[:COVERAGE].min() <= 1
    assert (dataset.family != COVERAGE).mean() > 0.5
    bars = small.process.decision_bars(small.window)
    assert dataset.bar.min() >= bars.start
    assert dataset.bar.max() + 1 < small.window.stop  # the return of the last decision, too


def test_every_action_lies_in_the_interior_of_the_simplex(dataset: OfflineDataset) -> None:
    """A rule that moves a twentieth of the way to a smoothed portfolio still leaves a density there."""
    for actions in (dataset.action, dataset.next_action):
        assert (actions > 0.01 * SMOOTHING / K).all()
        np.testing.assert_allclose(actions.sum(axis=1), 1.0, rtol=0, atol=1e-6)


def test_behaviour_holds_and_trades_concentrates_and_spreads(dataset: OfflineDataset) -> None:
    drifted = by_episode(dataset.portfolio)[..., :K]
    stays = np.abs(by_episode(dataset.action) - drifted).max(axis=2) < 1e-7
    assert 0.05 < stays.mean() < 0.95
    largest = dataset.action.max(axis=1)
    assert largest.max() > 0.9
    assert largest.min() < 0.35
    assert dataset.action[:, -1].max() > 0.5


@LAGS
def test_every_transition_is_priced_by_the_ledger(small_of: Callable[..., Any], lag: int) -> None:
    """One episode of each source, decision by decision, through the process that the environment uses."""
    world = small_of(env__execution_lag=lag, train__offline_episodes=40)
    data, process = world.collect(), world.process
    for source in range(COVERAGE + 1):
        first = LENGTH * int(np.flatnonzero(own_source(data) == source)[0])
        held = data.portfolio[first : first + 1, :K].astype(np.float64)
        if lag == 0:  # what was observed had drifted to the fill already
            held /= process.growth[data.bar[first]]
        state = process.start(data.bar[first : first + 1].astype(np.int64), held / held.sum())
        for row in range(first, first + LENGTH):
            # single precision in what is stored: 1e-7 of a weight, a little more in the state of the reward
            np.testing.assert_allclose(process.observed_portfolio(state)[0], data.portfolio[row], rtol=0, atol=1e-5)
            outcome = process.step(state, data.action[row : row + 1].astype(np.float64))
            assert outcome.reward[0] == pytest.approx(data.reward[row], abs=1e-6)
            state = outcome.state


def test_prices_after_the_training_window_decide_nothing(small: Any, small_of: Callable[..., Any]) -> None:
    panel, end = small.process.panel, small.window.stop
    close = panel.close.copy()
    alike = small_of(panel=MarketPanel(dates=panel.dates, assets=panel.assets, close=close))
    close[end:] *= np.random.default_rng(0).uniform(0.5, 2.0, size=close[end:].shape)
    other = MarketPanel(dates=panel.dates, assets=panel.assets, close=close)
    assert_equal(small_of(panel=other).collect(), alike.collect())


@LAGS
def test_a_behaviour_knows_only_its_information_set(small_of: Callable[..., Any], lag: int) -> None:
    """Every price after bar t - lag is another; at lag 0 the portfolio has drifted there, and is known."""
    now, worlds = 500, []
    for shock in (1.0, 2.0):
        panel = small_of(env__execution_lag=lag).process.panel
        close = panel.close.copy()
        close[now - lag + 1 :, ::2] *= shock
        world = small_of(panel=MarketPanel(dates=panel.dates, assets=panel.assets, close=close), env__execution_lag=lag)
        behaviour = Behaviour(world.process, 30, np.random.default_rng(0))
        worlds.append(behaviour.decide(world.process.start(np.full(30, now)), 0)[0])
    np.testing.assert_array_equal(worlds[0], worlds[1])


def test_between_two_decisions_a_behaviour_holds_bit_for_bit(small: Any) -> None:
    process = small.process
    behaviour = Behaviour(process, 30, np.random.default_rng(0))
    weights = np.random.default_rng(1).dirichlet(np.ones(K), size=30)
    state = process.start(np.full(30, 400), weights)
    targets, source = behaviour.decide(state, 0)
    due = behaviour.settings.phase % behaviour.settings.interval == 0
    holds = ~due & (source != COVERAGE)
    assert 3 < holds.sum() < 27
    np.testing.assert_array_equal(targets[holds], weights[holds])
    assert (np.abs(targets - weights)[due].max(axis=1) > 0.0).all()


def test_after_a_ruin_a_new_episode_begins_and_its_rows_are_its_own(
    small: Any, small_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All assets lose everything on one day. Rows of one episode still follow one another, and each end has a reason.

    The smoothed portfolios keep some cash, so an account counts as ruined here from a twentieth of its capital.
    """
    monkeypatch.setattr(decision, "RUIN", 0.05)
    panel, window = small.process.panel, small.window
    close = panel.close.copy()
    close[window.stop - 60 :] *= 1e-7
    data = small_of(panel=MarketPanel(dates=panel.dates, assets=panel.assets, close=close)).collect()
    assert data.terminated.any()
    same = data.episode[1:] == data.episode[:-1]
    np.testing.assert_array_equal(data.bar[1:][same], data.bar[:-1][same] + 1)
    np.testing.assert_array_equal(data.portfolio[1:][same], data.next_portfolio[:-1][same])
    np.testing.assert_array_equal(data.action[1:][same], data.next_action[:-1][same])
    ends = np.append(~same, True)
    np.testing.assert_array_equal(data.terminated | data.truncated, ends)
    assert not (data.terminated & data.truncated).any()
    assert len(np.unique(data.episode)) == ends.sum()


def test_five_hundred_episodes_of_the_embedded_prices_visit_every_region_of_the_simplex() -> None:
    """`train.offline_episodes` as it is by default, all in the training window."""
    config = load_config(environ={})
    panel = load_panel(config.market)
    split = split_panel(panel, config.market)
    panel = panel.until(split.validation_end)
    features = compute_features(panel, split.train_end)
    moments = equal_weight_moments(panel, config.env.fill, range(features.first_bar, split.train_end))
    process = DecisionProcess(panel, features, config.env, config.objectives, moments)
    data = collect(config, process, split.train)
    assert len(data) == 500 * 252
    assert data.bar.max() + 1 < split.train_end
    coverage = data.meta["card"]["coverage"]
    for name in ("largest_weight", "effective_assets", "cash_share", "distance_from_equal_weight"):
        assert all(share > 0.0 for share in coverage[name].values()), f"a region of {name} is never visited"
    assert min(coverage["largest_holding"].values()) > 0.01
    assert min(coverage["over_half"].values()) > 0.0


def test_starts_and_first_portfolios_are_spread(dataset: OfflineDataset) -> None:
    starts, first = by_episode(dataset.bar)[:, 0], by_episode(dataset.portfolio)[:, 0, :K]
    assert len(np.unique(starts)) > 0.8 * EPISODES
    assert np.ptp(starts) > 100
    assert first.max(axis=1).max() > 0.8
    assert first.max(axis=1).min() < 0.4
    assert len(np.unique(first, axis=0)) == EPISODES


def test_every_family_draws_all_of_its_settings() -> None:
    """Horizon and concentration by the variant, frequency, trade rate and noise: of each family, and independently."""
    habits = draw_settings(np.random.default_rng(1), 2000, n_variants=6)
    n_coverage = round(2000 * COVERAGE_SHARE)
    assert np.bincount(habits.source).tolist() == [(2000 - n_coverage) // 5] * 5 + [n_coverage]
    assert (habits.phase < habits.interval).all()
    assert habits.trade_rate.min() >= TRADE_RATES[0]
    assert habits.trade_rate.max() <= TRADE_RATES[1]
    for family, settings in enumerate(SETTINGS.values()):
        own = habits.source == family
        drawn = [settings[variant] for variant in habits.variant[own]]
        assert len({setting.horizon for setting in drawn}) >= 3
        assert len({setting.concentration for setting in drawn}) >= 3
        assert set(habits.interval[own]) == set(INTERVALS)
        assert set(habits.noise_scale[own]) == set(NOISE_SCALES)
        low, high = np.log(TRADE_RATES)
        assert np.log(habits.trade_rate[own]).mean() == pytest.approx((low + high) / 2, abs=0.2)  # log-uniform
        assert np.log(habits.trade_rate[own]).std() == pytest.approx((high - low) / np.sqrt(12), abs=0.1)
    choices = np.stack([habits.variant, habits.interval, habits.trade_rate, habits.noise_scale])
    assert np.abs(np.corrcoef(choices) - np.eye(4)).max() < 0.1
    many = draw_settings(np.random.default_rng(0), size=100_000, n_variants=6)
    assert (many.trade_rate / many.interval).mean() == pytest.approx(FAMILY_RATE, abs=0.003)  # as experts know
