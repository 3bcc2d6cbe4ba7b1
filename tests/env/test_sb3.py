"""Stable-Baselines3 trains on the environments as they are, and learns what there is to learn."""

from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import DummyVecEnv

from finflow.env.decision_process import DecisionProcess
from finflow.env.sb3 import SB3VecEnv
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from tests.env.conftest import build_featured_process, build_process, random_prices

BARS, LENGTH, K = 420, 20, 4
WINNER, DAILY = 1, 0.01
JUSTIFIED = (
    "symmetric and normalized Box action space",  # actions are weights, in 0..1, not in -1..1
    "has an unconventional shape",  # assets by features; SB3's extractor for dicts flattens it
)


def window_env(process: DecisionProcess) -> PortfolioEnv:
    return PortfolioEnv(process, range(BARS), LENGTH)


def vector(process: DecisionProcess, size: int) -> PortfolioVectorEnv:
    return PortfolioVectorEnv(process, range(BARS), size, LENGTH)


@pytest.fixture(scope="module")
def process() -> DecisionProcess:
    """Asset B rises by 1 % a day and the others fall by half as much, nearly always; costs as by default."""
    rng = np.random.default_rng(0)
    drift = np.full(K - 1, -DAILY / 2.0)
    drift[WINNER] = DAILY
    close = 50.0 * np.exp(np.cumsum(drift + 0.002 * rng.standard_normal((BARS, K - 1)), axis=0))
    return build_featured_process(close, 400)


def test_sb3s_own_checker_finds_nothing(process: DecisionProcess) -> None:
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        check_env(window_env(process))
    others = [str(w.message) for w in raised if not any(known in str(w.message) for known in JUSTIFIED)]
    assert others == []


def test_the_adapter_is_sb3s_own_vector_of_single_environments(process: DecisionProcess) -> None:
    """From the same starts, through the end of the episodes; only the new episodes begin elsewhere.

    What was given before stays as it was given.
    """
    starts = [{"bar": bar, "weights": np.eye(K)[i]} for i, bar in enumerate((260, 300, 390))]
    theirs: Any = DummyVecEnv([lambda: window_env(process)] * 3)
    ours = SB3VecEnv(vector(process, 3))
    for env in (theirs, ours):
        env.set_options(starts)
    given = [ours.reset()]
    expected = [dict(theirs.reset())]
    for step, action in enumerate(np.random.default_rng(3).uniform(size=(LENGTH, 3, K)).astype(np.float32), start=1):
        left, right = ours.step(action), theirs.step(action)
        given.append(left[0])
        np.testing.assert_array_equal(left[1], right[1])
        np.testing.assert_array_equal(left[2], right[2])
        np.testing.assert_equal(left[3], right[3])
        expected.append(dict(right[0]) if step < LENGTH else ours.portfolios.process.observe(ours.portfolios.state))
    assert left[2].all()
    np.testing.assert_equal(given, expected)


def test_ruin_is_not_a_mere_end_of_time() -> None:
    """An account that is ruined has no value left to bootstrap from; its neighbour's episode ended by the clock."""
    close = random_prices(bars=60, assets=K - 1)
    close[40:, 0] *= 1e-7
    env = SB3VecEnv(PortfolioVectorEnv(build_process(close), range(60), 2, 1))
    env.set_options({"bar": 39})
    env.reset()
    _, _, dones, infos = env.step(np.eye(K)[[0, K - 1]])
    assert dones.tolist() == [True, True]
    assert [info["TimeLimit.truncated"] for info in infos] == [False, True]
    assert infos[0]["wealth"] < 1.0
    assert [info["terminal_observation"]["market"][0] for info in infos] == [39.0, 39.0]


def test_seeds_and_options_hold_for_one_reset(process: DecisionProcess) -> None:
    env = SB3VecEnv(vector(process, 4))
    env.seed(1)
    first, then = env.reset(), env.reset()
    env.seed(1)
    np.testing.assert_equal(env.reset(), first)
    assert not np.array_equal(then["market"], first["market"])
    held = np.array([0.0, 0.5, 0.0, 0.5])
    env.set_options({"weights": held})
    np.testing.assert_array_equal(env.reset()["portfolio"][:, :K], np.tile(held, (4, 1)))
    np.testing.assert_array_equal(env.reset()["portfolio"][:, :K], np.tile(np.eye(K)[-1], (4, 1)))
    env.set_options([{"bar": 300}, {}, {}, {}])
    with pytest.raises(ValueError, match="bar must be given for every portfolio"):
        env.reset()


def test_what_portfolios_share_cannot_be_taken_apart(process: DecisionProcess) -> None:
    env = SB3VecEnv(vector(process, 3))
    assert env.get_attr("episode_length", [0, 2]) == [LENGTH, LENGTH]
    env.set_attr("random_portfolios", True)
    assert env.portfolios.random_portfolios
    with pytest.raises(ValueError, match="shared by all"):
        env.set_attr("random_portfolios", False, indices=[1])
    with pytest.raises(AttributeError, match="of its own"):
        env.env_method("reset")


def test_only_the_adapter_needs_sb3() -> None:
    """And without the package it says what to do."""
    script = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "import finflow, finflow.cli, finflow.env.vector_env, finflow.env.vector_env\n"
        "for name in finflow.__all__: getattr(finflow, name)\n"
        "try:\n    import finflow.env.sb3\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "finflow.env.sb3 needs the package stable-baselines3: pip install stable-baselines3"


SHARED = {"policy": "MultiInputPolicy", "seed": 0, "device": "cpu", "learning_rate": 3e-3, "gamma": 0.9}
ON_POLICY = {**SHARED, "policy_kwargs": {"net_arch": [16], "log_std_init": -1.0}}
OFF_POLICY = {
    **SHARED,
    "policy_kwargs": {"net_arch": [16]},
    "batch_size": 64,
    "learning_starts": 100,
    "train_freq": 1,
    "ent_coef": 1e-4,  # of the size of a daily reward: the default is made for rewards around one
}


@pytest.mark.parametrize("algorithm", ["ppo on a vector", "sac"])
def test_a_market_where_one_asset_always_wins_is_solved(process: DecisionProcess, algorithm: str) -> None:
    """Over four fifths in the winner, and of what holding it alone earns; before training, under a half."""
    model: BaseAlgorithm = SAC(env=window_env(process), **OFF_POLICY)
    if algorithm != "sac":
        model = PPO(env=SB3VecEnv(vector(process, 64)), n_steps=8, batch_size=128, n_epochs=4, **ON_POLICY)
    assert played(model, process)[0] < 0.5
    model.learn(700 if algorithm == "sac" else 12_288)
    held, earned = played(model, process)
    optimum = played(None, process)[1]
    assert optimum == pytest.approx(DAILY, rel=0.1)
    assert held > 0.8
    assert earned > 0.8 * optimum


def played(model: BaseAlgorithm | None, process: DecisionProcess) -> tuple[float, float]:
    """Mean weight of the winner and mean daily log return, of the greedy policy, or of holding the winner alone."""
    env = window_env(process)
    observation, _ = env.reset(seed=7)
    weights, returns = [], []
    for _ in range(LENGTH):
        action = np.eye(K)[WINNER] if model is None else model.predict(observation, deterministic=True)[0]
        observation, _, _, _, info = env.step(action)
        weights.append(observation["portfolio"][WINNER])
        returns.append(info["reward_log_return"])
    return float(np.mean(weights)), float(np.mean(returns))
