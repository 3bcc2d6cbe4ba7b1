"""One portfolio or N keep gymnasium's promises, fare together as each would alone, and go on where they stopped."""

from __future__ import annotations

import json
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from finflow.arrays import FloatArray
from finflow.config import CostsConfig
from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import COMPONENTS
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from finflow.errors import ConfigError, MarketError
from finflow.evaluation.statistics.metrics import sharpe
from tests.env.conftest import EVERYTHING, LAGS, build_process, random_prices

N, LENGTH, K = 5, 12, 5

JUSTIFIED = (
    "observation space minimum value is -infinity",  # features and the state of the reward have no bounds
    "observation space maximum value is infinity",
    "normalized space",  # actions are weights, in 0..1, not in -1..1
    "render_modes",  # nothing is drawn
    "spec",  # it is made from a market, not registered by a name
)

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
    start = {"bars": np.array([23, 29, 43, 60, 80]), "weights": np.random.default_rng(1).dirichlet(np.ones(K), size=N)}
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
        np.testing.assert_equal(left[:4], right[:4])
        np.testing.assert_array_equal(left[4]["sharpe"], right[4]["sharpe"])
    np.testing.assert_equal(arrays, kept)  # what was taken is a copy, and is not written in


def test_actions_of_another_shape_or_not_finite_are_refused(process: DecisionProcess) -> None:
    env = make(process)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shape"):
        env.step(np.full((N, K - 1), 0.25))
    before, _ = env.get_state()
    with pytest.raises(ValueError, match="not finite"):
        env.step(np.full((N, K), np.inf))
    after, _ = env.get_state()
    np.testing.assert_equal(after, before)


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


@pytest.mark.parametrize("random_portfolios", [False, True])
def test_gymnasiums_own_checker_finds_nothing(process: DecisionProcess, random_portfolios: bool) -> None:
    env = PortfolioEnv(process, range(0, 120), episode_length=20, random_portfolios=random_portfolios)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        check_env(env)
    others = [str(w.message) for w in raised if not any(known in str(w.message) for known in JUSTIFIED)]
    assert others == []


def test_the_whole_window_is_played_where_no_length_is_given(process: DecisionProcess) -> None:
    env = PortfolioEnv(process, range(50, 90))
    first, _ = env.reset()
    steps = [env.step(action) for action in random_actions(39, 1)[:, 0]]
    assert first["market"][0] == 49  # lag 1 before the first decision, at bar 50
    assert [step[2:4] for step in steps] == [(False, False)] * 38 + [(False, True)]
    assert steps[-1][0]["market"][0] == 88


@pytest.mark.parametrize(("left", "ruined"), [(0.999e-6, True), (1.001e-6, False)])
def test_a_loss_of_99_9999_percent_is_ruin_which_terminates_and_does_not_truncate(left: float, ruined: bool) -> None:
    """Of what there was in the beginning, in one day; a little more is left, and the episode goes on."""
    close = np.full((120, 4), 50.0)
    close[40:] *= left
    process = build_process(close, commission_bps=0.0, slippage_bps=0.0)
    env = PortfolioEnv(process, range(0, 120), episode_length=20)
    env.reset(options={"bar": 39})
    observation, reward, terminated, truncated, info = env.step(np.array([0.25, 0.25, 0.25, 0.25, 0.0]))
    assert (terminated, truncated) == (ruined, False)
    assert info["wealth"] == pytest.approx(1e6 * left, rel=1e-9)  # a return of nearly -1 keeps ten digits of it
    assert np.isfinite(reward)
    assert observation["market"][0] == 39  # the last observation, not that of a new episode
    if ruined:
        with pytest.raises(gym.error.ResetNeeded):
            env.step(np.array([0.0, 0.0, 0.0, 0.0, 1.0]))


@pytest.mark.parametrize("lag", [1, 2])
def test_orders_at_the_open_are_filled_and_valued_at_opens(lag: int) -> None:
    """Bought for all the money at one open, worth its price at each of the next."""
    opens = random_prices(bars=120, seed=9)
    process = build_process(random_prices(bars=120), fields={"open": opens}, fill="open", execution_lag=lag)
    env = PortfolioEnv(process, range(0, 120))
    observation, _ = env.reset(options={"bar": 50})
    assert observation["market"][0] == 50 - lag
    action = np.array([0.0, 1.0, 0.0, 0.0, 0.0])
    shares = 1e6 / 1.0015 / opens[50, 1]
    for bar in range(50, 60):
        observation, *_, info = env.step(action)
        assert info["wealth"] == pytest.approx(shares * opens[bar + 1, 1], rel=1e-12)


def test_info_is_of_the_step_and_its_sharpe_ratio_that_of_the_metrics(process: DecisionProcess) -> None:
    """Components sum to the reward; the ratio is in excess of cash, over this episode alone, at its end too."""
    env = PortfolioEnv(process, range(0, 120), episode_length=20)
    for episode in range(2):
        _, info = env.reset(seed=episode)
        assert info["sharpe"] == 0.0
        wealth = [info["wealth"]]
        for action in random_actions(20, 1)[:, 0]:
            _, reward, _, _, info = env.step(action)
            assert sum(info[f"reward_{name}"] for name in COMPONENTS) == pytest.approx(reward, abs=1e-15)
            assert info["wealth"] == pytest.approx(wealth[-1] * np.exp(info["reward_log_return"]), rel=1e-12)
            assert 0.0 < info["cost"] < 0.003
            assert 0.0 < info["turnover"] <= 1.0
            wealth.append(info["wealth"])
            if len(wealth) > 2:
                returns = np.diff(wealth) / wealth[:-1]
                # the running sums lose some digits
                assert info["sharpe"] == pytest.approx(sharpe(returns, 1e-4), rel=1e-9)


def test_all_cash_has_no_sharpe_ratio_and_no_costs(process: DecisionProcess) -> None:
    env = PortfolioEnv(process, range(0, 120), episode_length=20)
    env.reset(seed=1)
    for _ in range(20):
        *_, info = env.step(np.eye(K)[-1])
        assert info["sharpe"] == info["cost"] == 0.0
        assert info["reward_log_return"] == pytest.approx(np.log(1.0001), abs=1e-15)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bar": 0}, "1 to 98"),
        ({"bar": 99}, "1 to 98"),
        ({"bars": 50}, "no option 'bars'; it has bar and weights"),  # the vector environment's name
        ({"weights": [0.5, 0.5]}, r"weights have the shape \(1, 2\)"),
    ],
)
def test_a_start_that_cannot_be_is_refused(process: DecisionProcess, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PortfolioEnv(process, range(0, 100), episode_length=20).reset(options=options)


@pytest.mark.parametrize(("window", "length"), [(range(0, 20), 20), (range(30, 31), None), (range(200, 300), 5)])
def test_a_window_shorter_than_an_episode_says_so(process: DecisionProcess, window: range, length: int | None) -> None:
    with pytest.raises(MarketError, match=r"fewer than env\.episode_length"):
        PortfolioEnv(process, window, episode_length=length)
