"""Episodes of few assets and of other costs: what is outside cannot be held, seen or paid for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from finflow.config import EnvConfig, WorldsConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.episode_worlds import (
    EpisodeWorlds,
    episode_assets,
    gather_assets,
    is_single_world,
    restrict_to_assets,
    scatter_assets,
)
from finflow.env.portfolio_state import WorldState, join_states, universe_of
from finflow.env.process_variants import concatenate_markets
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError

Make = Callable[..., Any]
SIZE, LENGTH = 8, 15


def worlds_of(assets: int | None = 2, low: float = 1.0, high: float = 1.0, n_assets: int = 5) -> EpisodeWorlds:
    found = EpisodeWorlds.of(WorldsConfig(assets=assets, cost_low=low, cost_high=high), n_assets, seed=3)
    assert found is not None
    return found


def environment(process: DecisionProcess, worlds: EpisodeWorlds | None) -> PortfolioVectorEnv:
    return PortfolioVectorEnv(process, range(80), SIZE, LENGTH, random_portfolios=True, worlds=worlds)


@pytest.mark.parametrize("lag", [0, 1])
def test_assets_outside_are_never_held_and_never_shown(process_of: Make, prices: Make, lag: int) -> None:
    worlds = worlds_of()
    env = environment(process_of(prices(80, 5), execution_lag=lag), worlds)
    observation, _ = env.reset(seed=1)
    assert worlds.members is not None
    rng = np.random.default_rng(0)
    for _ in range(3 * LENGTH):
        assert isinstance(env.state, WorldState)
        inside = np.zeros((SIZE, 5), dtype=np.bool_)
        np.put_along_axis(inside, worlds.members[env.state.universe], True, axis=1)
        assert (observation["assets"][..., -1] == inside).all()
        assert (observation["assets"][~inside] == 0.0).all()
        assert (observation["portfolio"][:, :5][~inside] == 0.0).all()
        assert (observation["assets"][inside] != 0.0).any()
        observation = env.step(rng.dirichlet(np.ones(6), size=SIZE))[0]


def test_costs_are_paid_as_many_times_as_the_episode_says(process_of: Make, prices: Make) -> None:
    close = prices(80, 5)
    worlds = worlds_of(None, 0.2, 5.0)
    env = environment(process_of(close), worlds)
    env.reset(seed=2)
    state = env.state
    assert isinstance(state, WorldState)
    assert len(set(state.cost_scale)) == SIZE
    assert ((state.cost_scale >= 0.2) & (state.cost_scale <= 5.0)).all()
    actions = np.random.default_rng(1).dirichlet(np.ones(6), size=SIZE)
    cost = env.step(actions)[4]["cost"]
    base = EnvConfig()
    for row, scale in enumerate(state.cost_scale):
        dear = process_of(close, commission_bps=base.commission_bps * scale, slippage_bps=base.slippage_bps * scale)
        expected = dear.step(dear.start(state.bar[row : row + 1], state.weights[row : row + 1]), actions[row : row + 1])
        assert cost[row] == pytest.approx(float(expected.cost[0]), abs=1e-12)


def test_what_is_outside_changes_nothing_of_what_an_episode_earns(process_of: Make, prices: Make) -> None:
    close = prices(80, 5)
    other = close.copy()
    other[:, 3:] = prices(80, 2, seed=9, deviation=0.1)
    worlds = EpisodeWorlds(np.array([[0, 1, 2]]), (1.0, 1.0))
    actions = np.random.default_rng(3).dirichlet(np.ones(6), size=(30, SIZE))
    earned = []
    for table in (close, other):
        env = environment(process_of(table), worlds)
        env.reset(seed=5)
        earned.append(np.stack([env.step(action)[1] for action in actions]))
    np.testing.assert_allclose(*earned, rtol=0.0, atol=1e-13)


def test_a_reset_takes_the_worlds_that_it_is_given(process_of: Make, prices: Make) -> None:
    worlds = worlds_of(2, 0.5, 2.0)
    env = environment(process_of(prices(80, 5)), worlds)
    drawn = worlds.draw(np.random.default_rng(8), SIZE)
    env.reset(seed=5, options={"worlds": drawn})
    assert isinstance(env.state, WorldState)
    np.testing.assert_array_equal(env.state.universe, drawn.universe)
    np.testing.assert_array_equal(env.state.cost_scale, drawn.cost_scale)


def test_a_state_put_back_goes_on_in_the_same_worlds(process_of: Make, prices: Make) -> None:
    process = process_of(prices(80, 5))
    actions = np.random.default_rng(3).dirichlet(np.ones(6), size=(40, SIZE))
    env = environment(process, worlds_of(2, 0.5, 2.0))
    env.reset(seed=5)
    for action in actions[:10]:
        env.step(action)
    kept = env.get_state()
    first = [env.step(action)[1] for action in actions[10:]]
    again = environment(process, worlds_of(2, 0.5, 2.0))
    again.set_state(*kept)
    np.testing.assert_array_equal(first, [again.step(action)[1] for action in actions[10:]])


def test_portfolios_go_into_a_sub_universe_and_back() -> None:
    members = np.array([[0, 2], [1, 3]])
    inside = np.array([[0.2, 0.5, 0.3], [0.0, 0.4, 0.6]])
    wide = scatter_assets(inside, members, 5)
    np.testing.assert_array_equal(wide, [[0.2, 0.0, 0.5, 0.0, 0.3], [0.0, 0.0, 0.0, 0.4, 0.6]])
    np.testing.assert_array_equal(gather_assets(wide, members), inside)
    rule = np.array([[0.1, 0.3, 0.2, 0.2, 0.2], [0.5, 0.0, 0.3, 0.0, 0.2]])
    np.testing.assert_allclose(restrict_to_assets(rule, members), [[0.8 / 3, 1.6 / 3, 0.2], [0.4, 0.4, 0.2]])


def test_the_sub_universe_of_a_portfolio_is_known_by_its_state(process_of: Make, prices: Make) -> None:
    process, bars = process_of(prices(80, 5)), np.array([30, 31])
    assert universe_of(process.start(bars)) is None
    drawn = worlds_of().draw(np.random.default_rng(0), 2)
    np.testing.assert_array_equal(universe_of(process.start(bars, None, drawn)), drawn.universe)


def test_what_lies_outside_of_a_sub_universe_goes_to_all_inside_alike() -> None:
    members, rule = np.array([[0, 1], [0, 2], [1, 2]]), np.tile([0.0, 0.0, 0.0, 0.6, 0.4], (3, 1))
    np.testing.assert_allclose(restrict_to_assets(rule, members), np.tile([0.3, 0.3, 0.4], (3, 1)), rtol=1e-15)


def test_what_is_held_inside_by_rounding_alone_is_nothing() -> None:
    members = np.array([[0, 1]])
    for inside, first in ((1e-12, 0.3), (1.1e-12, 0.6)):
        rule = np.array([[inside, 0.0, 0.6, 0.4]])
        np.testing.assert_allclose(restrict_to_assets(rule, members), [[first, 0.6 - first, 0.4]], atol=1e-12)


def test_markets_laid_side_by_side_stay_apart(process_of: Make, prices: Make) -> None:
    first, second = (process_of(prices(60, 4, seed=seed)) for seed in (0, 1))
    both = concatenate_markets(first, [second])
    weights = np.full((1, 5), 0.2)
    action = np.array([[0.5, 0.1, 0.1, 0.1, 0.2]])
    for bar, own, place in ((30, first, 30), (30, second, 90)):
        alone = own.step(own.start(np.array([bar]), weights), action)
        beside = both.step(both.start(np.array([place]), weights), action)
        np.testing.assert_array_equal(alone.reward, beside.reward)
        np.testing.assert_array_equal(alone.filled, beside.filled)
    seen = both.observe(both.start(np.array([90])))
    assert seen["assets"][0, 0, 0] == 29.0  # the second market's own bar, one before the fill


def test_more_assets_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"worlds\.assets = 6"):
        worlds_of(6)
    assert worlds_of(5).members is not None


def test_no_world_is_made_where_all_are_alike() -> None:
    assert EpisodeWorlds.of(WorldsConfig(), 5, seed=0) is None
    assert EpisodeWorlds.of(WorldsConfig(cost_low=0.5, cost_high=2.0), 5, seed=0, costs=False) is None


def draws(pool: NDArray[np.int64]) -> set[tuple[int, ...]]:
    return {tuple(row) for row in pool.tolist()}


def test_the_pool_holds_every_asset_and_is_the_seed_s_own() -> None:
    pools = [EpisodeWorlds.of(WorldsConfig(assets=3), 7, seed) for seed in (0, 0, 1)]
    members = [pool.members for pool in pools if pool is not None and pool.members is not None]
    assert len(members) == 3
    np.testing.assert_array_equal(members[0], members[1])
    assert not np.array_equal(members[0], members[2])
    assert len(draws(members[0])) == 35  # all threes of seven
    assert (np.diff(members[0], axis=1) > 0).all()


@pytest.mark.parametrize(("n_assets", "count"), [(1, None), (2, None), (3, 2), (4, 2), (5, 2), (20, 10), (21, 10)])
def test_half_of_a_market_is_two_assets_at_least_and_all_of_a_small_one(n_assets: int, count: int | None) -> None:
    half = WorldsConfig(assets="half")
    assert episode_assets(half, n_assets) == count
    worlds = EpisodeWorlds.of(half, n_assets, seed=3)
    assert (None if worlds is None or worlds.members is None else worlds.members.shape[1]) == count
    assert is_single_world(half, n_assets) == (count is None)
    assert not is_single_world(WorldsConfig(assets="half", cost_high=2.0), n_assets)


def test_a_restricted_portfolio_is_spread_over_what_is_listed() -> None:
    """Where it holds nothing inside: over two listed assets of three alike, and all in cash where none is listed."""
    rule, members = np.array([[0.8, 0.0, 0.0, 0.0, 0.2]] * 2), np.array([[1, 2, 3]] * 2)
    listed = np.array([[True, False, True], [False, False, False]])
    found = restrict_to_assets(rule, members, listed)
    np.testing.assert_allclose(found, [[0.4, 0.0, 0.4, 0.2], [0.0, 0.0, 0.0, 1.0]], rtol=1e-15)


def test_portfolios_of_one_state_joined_are_those_of_the_state(process_of: Make, prices: Make) -> None:
    state = process_of(prices(80, 5)).start(np.array([30, 31]))
    for count in (1, 2):
        joined = join_states([state] * count)
        for name, value in vars(state).items():
            np.testing.assert_array_equal(getattr(joined, name), np.concatenate([value] * count))
