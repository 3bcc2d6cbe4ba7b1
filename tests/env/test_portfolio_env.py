"""The environment keeps gymnasium's promises and tells the truth about the account."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from finflow.env.decision_process import DecisionProcess
from finflow.env.objective import COMPONENTS
from finflow.env.portfolio_env import PortfolioEnv
from finflow.errors import MarketError
from finflow.evaluation.statistics.metrics import sharpe
from tests.env.conftest import build_process, random_prices

FloatArray = NDArray[np.float64]

JUSTIFIED = (
    "observation space minimum value is -infinity",  # features and the state of the reward have no bounds
    "observation space maximum value is infinity",
    "normalized space",  # actions are weights, in 0..1, not in -1..1
    "render_modes",  # nothing is drawn
    "spec",  # it is made from a market, not registered by a name
)


@pytest.fixture
def process() -> DecisionProcess:
    return build_process(random_prices(bars=120), cash_rate=1e-4)


def play(env: PortfolioEnv, actions: FloatArray, **reset: Any) -> list[tuple[Any, ...]]:
    """Everything that a run of actions gives."""
    steps: list[tuple[Any, ...]] = [env.reset(**reset)]
    steps.extend(env.step(action) for action in actions)
    return steps


def random_actions(count: int, size: int = 5) -> FloatArray:
    return np.random.default_rng(0).uniform(size=(count, size))


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
    steps = play(env, random_actions(39))
    assert steps[0][0]["market"][0] == 49  # lag 1 before the first decision, at bar 50
    assert [step[2:4] for step in steps[1:]] == [(False, False)] * 38 + [(False, True)]
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


def test_components_sum_to_the_reward_and_info_is_of_the_step(process: DecisionProcess) -> None:
    env = PortfolioEnv(process, range(0, 120), episode_length=20)
    wealth = 1e6
    for _, reward, _, _, info in play(env, random_actions(20), seed=3)[1:]:
        assert sum(info[f"reward_{name}"] for name in COMPONENTS) == pytest.approx(reward, abs=1e-15)
        wealth *= np.exp(info["reward_log_return"])
        assert info["wealth"] == pytest.approx(wealth, rel=1e-12)
        assert 0.0 < info["cost"] < 0.003
        assert 0.0 < info["turnover"] <= 1.0


def test_the_running_sharpe_ratio_is_that_of_the_metrics(process: DecisionProcess) -> None:
    """In excess of cash, over this episode alone, at its end too."""
    env = PortfolioEnv(process, range(0, 120), episode_length=20)
    for episode in range(2):
        _, info = env.reset(seed=episode)
        assert info["sharpe"] == 0.0
        wealth = [info["wealth"]]
        for step, action in enumerate(random_actions(20)):
            *_, info = env.step(action)
            wealth.append(info["wealth"])
            if step > 0:
                returns = np.diff(wealth) / wealth[:-1]
                # the running sums lose some digits
                assert info["sharpe"] == pytest.approx(sharpe(returns, 1e-4), rel=1e-9)


def test_all_cash_has_no_sharpe_ratio_and_no_costs(process: DecisionProcess) -> None:
    env = PortfolioEnv(process, range(0, 120), episode_length=20)
    for step in play(env, np.tile([0.0, 0.0, 0.0, 0.0, 1.0], (20, 1)), seed=1)[1:]:
        assert step[4]["sharpe"] == 0.0
        assert step[4]["cost"] == 0.0
        assert step[4]["reward_log_return"] == pytest.approx(np.log(1.0001), abs=1e-15)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        *(({"bar": bar}, "1 to 98") for bar in (0, 99, -5)),
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
