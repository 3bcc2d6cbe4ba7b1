"""N portfolios together fare as each would alone, and go on where they stopped."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from finflow.config import CostsConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_env import PortfolioEnv
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError
from tests.env.conftest import EVERYTHING, LAGS, build_process, random_prices

FloatArray = NDArray[np.float64]

N, LENGTH, K = 5, 12, 5

DEAR = EVERYTHING.model_copy(update={"minimum": 3e5})  # an account of a million cannot pay for four trades


@pytest.fixture
def process() -> DecisionProcess:
    return build_process(random_prices(bars=120), cash_rate=1e-4)


def make(process: DecisionProcess, **changes: Any) -> PortfolioVectorEnv:
    given = {"num_envs": N, "episode_length": LENGTH, "random_portfolios": True, **changes}
    return PortfolioVectorEnv(process, range(0, 120), **given)


def random_actions(count: int, size: int = N) -> FloatArray:
    return np.random.default_rng(0).uniform(size=(count, size, K))


def test_spaces_and_batches_are_gymnasiums(process: DecisionProcess) -> None:
    env = make(process)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    env.action_space.seed(0)
    for _ in range(2 * LENGTH):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert reward.shape == terminated.shape == truncated.shape == (N,)
        assert reward.dtype == np.float64
        assert terminated.dtype == truncated.dtype == np.bool_
        assert info["sharpe"].shape == (N,)
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    env.close()


@LAGS
@pytest.mark.parametrize("costs", [CostsConfig(), EVERYTHING, DEAR], ids=["proportional", "every cost", "too dear"])
def test_n_portfolios_together_are_n_alone(lag: int, costs: CostsConfig) -> None:
    fields = {"volume": np.random.default_rng(2).lognormal(12.0, 1.0, size=(120, K - 1))}
    process = build_process(random_prices(bars=120), 0.0, {"lambda_dd": 1.0}, fields, execution_lag=lag, costs=costs)
    together = make(process)
    start = {"bars": np.array([10, 19, 33, 60, 80]), "weights": np.random.default_rng(1).dirichlet(np.ones(K), size=N)}
    seen, _ = together.reset(options=start)
    alone = [PortfolioEnv(process, range(0, 120), LENGTH) for _ in range(N)]
    for i, env in enumerate(alone):
        one, _ = env.reset(options={"bar": start["bars"][i], "weights": start["weights"][i]})
        np.testing.assert_array_equal(one["portfolio"], seen["portfolio"][i])
    refused: list[bool] = []
    for action in random_actions(LENGTH):
        seen, reward, terminated, truncated, info = together.step(action)
        for i, env in enumerate(alone):
            one, one_reward, one_terminated, one_truncated, one_info = env.step(action[i])
            # costs are solved for all until the slowest has converged: 1e-15, or 1e-12 where they grow with size
            assert one_reward == pytest.approx(reward[i], abs=1e-12 if costs == CostsConfig() else 1e-10)
            assert (one_terminated, one_truncated) == (terminated[i], truncated[i])
            mine = info["final_obs"][i] if "final_obs" in info else {name: value[i] for name, value in seen.items()}
            for name in one:
                np.testing.assert_allclose(one[name], mine[name], rtol=0, atol=1e-10)
            for name in one_info:
                assert one_info[name] == pytest.approx(info[name][i], rel=1e-9, abs=1e-10)
        refused += info["refused"].tolist()
    assert truncated.all()
    assert any(refused) == (costs is DEAR)


def test_an_end_gives_the_last_observation_and_begins_anew_in_the_same_step(process: DecisionProcess) -> None:
    env = make(process, random_portfolios=False)
    env.reset(seed=0)
    for step, action in enumerate(random_actions(LENGTH), start=1):
        bars = env.state.bar.copy()
        observation, _, _, truncated, info = env.step(action)
        if step < LENGTH:
            assert "final_obs" not in info
    assert truncated.all()
    assert info["_final_obs"].all()
    assert [last["market"][0] for last in info["final_obs"]] == bars.tolist()  # lag 1 before the next decision
    assert (info["final_state"].bar == bars + 1).all()
    assert (info["wealth"] != 1e6).all()  # what is reported is the episode that ended
    np.testing.assert_array_equal(observation["portfolio"][:, :K], np.eye(K)[[-1] * N])
    np.testing.assert_array_equal(env.state.wealth, np.full(N, 1e6))
    np.testing.assert_array_equal(env.state.bar - 1, observation["market"][:, 0])
    *_, info = env.step(random_actions(1)[0])
    assert (info["sharpe"] == 0.0).all()  # one return only: nothing is left of the episodes before


def test_one_end_leaves_the_other_portfolios_alone(process: DecisionProcess) -> None:
    env, other = make(process), make(process)
    for one in (env, other):
        one.reset(seed=0)
    other.age[2] = LENGTH - 1
    action = random_actions(1)[0]
    plain, *_ = env.step(action)
    cut, _, _, truncated, info = other.step(action)
    rest = np.arange(N) != 2
    assert truncated.tolist() == [False, False, True, False, False]
    assert [last is None for last in info["final_obs"]] == rest.tolist()
    for name in plain:
        np.testing.assert_array_equal(cut[name][rest], plain[name][rest])
        np.testing.assert_array_equal(info["final_obs"][2][name], plain[name][2])
    assert other.age.tolist() == [1, 1, 0, 1, 1]


def test_gymnasiums_wrapper_records_every_episode(process: DecisionProcess) -> None:
    env = gym.wrappers.vector.RecordEpisodeStatistics(make(process))
    env.reset(seed=0)
    total = np.zeros(N)
    for action in random_actions(LENGTH):
        _, reward, *_, info = env.step(action)
        total += reward
    np.testing.assert_allclose(info["episode"]["r"], total, rtol=0, atol=1e-6)  # the wrapper counts in float32
    assert info["episode"]["l"].tolist() == [LENGTH] * N


def test_a_run_goes_on_bit_for_bit_from_its_state(process: DecisionProcess) -> None:
    """Stopped in mid-episode, its state through JSON, in another environment."""
    env, other = make(process), make(process)
    env.reset(seed=1)
    other.reset(seed=99)
    actions = random_actions(4 * LENGTH)
    for action in actions[: LENGTH + 5]:
        env.step(action)
    arrays, generator = env.get_state()
    other.set_state(arrays, json.loads(json.dumps(generator)))
    kept = {name: value.copy() for name, value in arrays.items()}
    for action in actions[LENGTH + 5 :]:
        left, right = env.step(action), other.step(action)
        for name in left[0]:
            np.testing.assert_array_equal(left[0][name], right[0][name])
        for i in (1, 2, 3):
            np.testing.assert_array_equal(left[i], right[i])
        np.testing.assert_array_equal(left[4]["sharpe"], right[4]["sharpe"])
    for name in kept:  # what was taken is a copy, and is not written in
        np.testing.assert_array_equal(arrays[name], kept[name])


def test_actions_of_another_shape_or_not_finite_are_refused(process: DecisionProcess) -> None:
    env = make(process)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        env.step(np.full((N, K - 1), 0.25))
    before, _ = env.get_state()
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.full((N, K), np.inf))
    after, _ = env.get_state()
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_what_does_not_fit_the_portfolios_is_refused(process: DecisionProcess) -> None:
    with pytest.raises(ConfigError, match="num_envs = 0"):
        PortfolioVectorEnv(process, range(0, 100), 0, episode_length=20)
    env = PortfolioVectorEnv(process, range(0, 100), 3, episode_length=20)
    with pytest.raises(ConfigError, match="one seed"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(ValueError, match=r"bars have the shape \(1,\), not \(3,\)"):
        env.reset(options={"bars": [50]})
    with pytest.raises(ValueError, match="no option 'bar'"):
        env.reset(options={"bar": 50})


def test_an_episode_stays_within_one_of_several_windows(process: DecisionProcess) -> None:
    """What lies between two windows is held out: neither a decision nor what it earns may touch it."""
    windows = [range(0, 40), range(70, 90)]
    env = PortfolioVectorEnv(process, windows, 50, LENGTH, random_portfolios=True)
    env.reset(seed=3)
    seen: set[int] = set()
    for _ in range(5 * LENGTH):
        bars, before = env.state.bar.copy(), env.age.copy()
        seen |= set(bars.tolist())
        _, _, _, truncated, _ = env.step(np.full((50, K), 1.0 / K))
        np.testing.assert_array_equal(truncated, before + 1 == LENGTH)
    assert seen <= {*range(1, 39), *range(70, 89)}
    assert {1, 38, 70, 88} <= seen  # all over the windows, to the last decision


def test_an_episode_that_begins_too_late_ends_with_its_window(process: DecisionProcess) -> None:
    env = PortfolioVectorEnv(process, [range(0, 40), range(70, 90)], 1, LENGTH)
    env.reset(options={"bars": np.array([36])})
    ends = [bool(env.step(np.full((1, K), 1.0 / K))[3][0]) for _ in range(3)]
    assert ends == [False, False, True]
    with pytest.raises(ValueError, match="not at"):
        env.reset(options={"bars": np.array([50])})


def test_a_seed_gives_the_same_run_and_another_seed_another(process: DecisionProcess) -> None:
    runs = []
    for seed in (1, 1, 2):
        env = make(process)
        env.reset(seed=seed)
        runs.append([env.step(action)[1] for action in random_actions(3 * LENGTH)])
        assert env.np_random_seed == seed
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
