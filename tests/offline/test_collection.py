"""Behaviour data is what really happened on the ledger, the same for the same seed, from every family."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.agent.networks.decision import FAMILY_RATE
from finflow.env.coverage import SMOOTHING
from finflow.offline.collection import COVERAGE, COVERAGE_SHARE, INTERVALS, NOISE_SCALES, TRADE_RATES, Behaviour
from finflow.offline.dataset import DECISIONS, OfflineDataset, episode_ends, lambda_returns
from finflow.strategies.behaviour import SETTINGS
from tests.offline.conftest import assert_priced, assert_same, make_small

EPISODES, LENGTH, K = 40, 25, 6
LAGS = pytest.mark.parametrize("lag", [0, 1, 2])


def by_episode(column: Any) -> Any:
    return column.reshape(EPISODES, LENGTH, *column.shape[1:])


def test_the_same_seed_collects_the_same_data_and_another_seed_other_data(small: Any, dataset: OfflineDataset) -> None:
    assert_same(small.collect(), dataset)
    other = make_small(train__seed=1).collect()
    assert not np.array_equal(other.bar, dataset.bar)
    assert not np.array_equal(other.action, dataset.action)


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
    starts, first = by_episode(dataset.bar)[:, 0], by_episode(dataset.portfolio)[:, 0, :K]
    assert len(np.unique(starts)) > 0.8 * EPISODES
    assert np.ptp(starts) > 100
    assert len(np.unique(first, axis=0)) == EPISODES


def test_every_action_lies_in_the_interior_of_the_simplex(dataset: OfflineDataset) -> None:
    """A rule that moves a twentieth of the way to a smoothed portfolio still leaves a density there."""
    for actions in (dataset.action, dataset.next_action):
        assert (actions > 0.01 * SMOOTHING / K).all()
        np.testing.assert_allclose(actions.sum(axis=1), 1.0, rtol=0, atol=1e-6)


@LAGS
def test_every_transition_is_priced_by_the_ledger(lag: int) -> None:
    """One episode of each source."""
    world = make_small(env__execution_lag=lag)
    data = world.collect()
    for source in range(COVERAGE + 1):
        first = LENGTH * int(np.flatnonzero(own_source(data) == source)[0])
        assert_priced(world, data, range(first, first + LENGTH))


def test_prices_after_the_training_window_decide_nothing(small: Any, dataset: OfflineDataset) -> None:
    close, end = small.process.panel.close.copy(), small.window.stop
    close[end:] *= np.random.default_rng(0).uniform(0.5, 2.0, size=close[end:].shape)
    assert_same(make_small(replace(small.process.panel, close=close)).collect(), dataset)


@LAGS
def test_a_behaviour_knows_only_its_information_set(small: Any, lag: int) -> None:
    """Every price after bar t - lag is another; at lag 0 the portfolio has drifted there, and is known."""
    now, decided = 500, []
    for shock in (1.0, 2.0):
        close = small.process.panel.close.copy()
        close[now - lag + 1 :, ::2] *= shock
        world = make_small(replace(small.process.panel, close=close), env__execution_lag=lag)
        behaviour = Behaviour(world.process, 30, np.random.default_rng(0))
        decided.append(behaviour.decide(world.process.start(np.full(30, now)), 0)[0])
    np.testing.assert_array_equal(*decided)


@LAGS
def test_no_decision_names_an_asset_that_is_not_known_to_be_listed(small: Any, tmp_path: Path, lag: int) -> None:
    """Of behaviour and of a user's own, which are smoothed over what is listed; and nothing else is held."""
    close = small.process.panel.close.copy()
    close[:420, 2] = close[:450, 3] = close[520:, 4] = np.nan
    panel = replace(small.process.panel, close=close)
    rows = ["date,AAPL,AMD,GE,JNJ,WMT,cash", *(f"{panel.dates[bar]},0.5,0.5,0,0,0,0" for bar in range(400, 500, 7))]
    (tmp_path / "stated.csv").write_text("\n".join(rows))
    data = make_small(panel, env__execution_lag=lag, offline__decisions=[str(tmp_path / "stated.csv")]).collect()
    assert (data.family == DECISIONS).sum() > 50
    for weights, bars in ((data.action, data.bar), (data.next_action, data.bar + 1), (data.portfolio, data.bar)):
        unlisted = ~panel.listed[bars - lag]
        assert (weights[:, : K - 1][unlisted] == 0.0).all()
        np.testing.assert_allclose(weights[:, :K].sum(axis=1), 1.0, atol=1e-5)
        assert unlisted.any(axis=0).sum() >= 3


def test_after_a_ruin_a_new_episode_begins_and_its_rows_are_its_own(ruined: OfflineDataset) -> None:
    """Rows of one episode still follow one another, and each end has a reason."""
    same = ruined.episode[1:] == ruined.episode[:-1]
    np.testing.assert_array_equal(ruined.bar[1:][same], ruined.bar[:-1][same] + 1)
    np.testing.assert_array_equal(ruined.portfolio[1:][same], ruined.next_portfolio[:-1][same])
    np.testing.assert_array_equal(ruined.action[1:][same], ruined.next_action[:-1][same])
    ends = np.append(~same, True)
    np.testing.assert_array_equal(ruined.terminated | ruined.truncated, ends)
    assert not (ruined.terminated & ruined.truncated).any()
    assert len(np.unique(ruined.episode)) == ends.sum()


def test_every_family_draws_all_of_its_settings(small: Any) -> None:
    """Horizon and concentration by the variant, frequency, trade rate and noise: of each family, and independently."""
    habits = Behaviour(small.process, 2000, np.random.default_rng(1))
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
    choices = np.stack([habits.variant, habits.interval, habits.trade_rate, habits.noise_scale])
    assert np.abs(np.corrcoef(choices) - np.eye(4)).max() < 0.1
    many = Behaviour(small.process, 100_000, np.random.default_rng(0))
    assert (many.trade_rate / many.interval).mean() == pytest.approx(FAMILY_RATE, abs=0.003)  # as experts know


def direct(rewards: Any, values: Any, terminated: Any, last: Any, trace: float) -> NDArray[np.float64]:
    """The weighted mean of n-step returns, equation 12.3 of Sutton and Barto (2018), written out."""
    result = np.empty(len(rewards))
    for t in range(len(rewards)):
        end = next(k for k in range(t, len(rewards)) if last[k])
        total = 0.0
        for n in range(1, end - t + 2):
            inside = rewards[t : t + n]
            boot = 0.0 if terminated[t + n - 1] else 0.9**n * values[t + n - 1]
            n_step = float(np.sum(0.9 ** np.arange(n) * inside)) + boot
            weight = trace ** (end - t) if n == end - t + 1 else (1.0 - trace) * trace ** (n - 1)
            total += weight * n_step
        result[t] = total
    return result


@pytest.mark.parametrize("trace", [0.0, 0.5, 0.95, 1.0])
def test_lambda_returns_are_the_weighted_mean_of_n_step_returns(trace: float) -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.standard_normal(30), rng.standard_normal(30)
    terminated = np.zeros(30, dtype=np.bool_)
    terminated[14] = True
    last = episode_ends(np.repeat(np.arange(3, dtype=np.int32), 10), terminated)
    found = lambda_returns(rewards, values, terminated, last, 0.9, trace)
    np.testing.assert_allclose(found, direct(rewards, values, terminated, last, trace), rtol=1e-12)


def test_an_episode_ends_at_ruin_and_before_the_next() -> None:
    ends = episode_ends(np.array([0, 0, 0, 1, 1], dtype=np.int32), np.array([False, True, False, False, False]))
    assert ends.tolist() == [False, True, True, False, True]
