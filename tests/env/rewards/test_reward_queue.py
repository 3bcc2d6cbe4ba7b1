"""Rewards that workers compute: the same bits and the same errors as in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finflow.config import ObjectivesConfig
from finflow.config.environment_section import REWARDS
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.rewards.chosen_reward import named_rewards, with_reward
from finflow.env.rewards.reward_queue import RewardQueue, queued_rewards
from finflow.errors import TrainingError
from tests.env.conftest import build_process, random_prices

OWN = "tests.env.rewards.own_rewards"


@pytest.fixture
def process() -> DecisionProcess:
    return build_process(random_prices(), cash_rate=1e-4)


def rewarded(process: DecisionProcess, *names: str) -> DecisionProcess:
    """The market with a sum of rewards, units of one."""
    chosen = [{"name": name if name in REWARDS else f"{OWN}:{name}", "weight": 0.7} for name in names]
    rewards = named_rewards(ObjectivesConfig(rewards=chosen, ranking={"k": 2}), process.n_weights - 1)
    assert rewards is not None
    return with_reward(process, rewards.with_tables(process.panel))


def play(process: DecisionProcess, steps: int = 6) -> list[Any]:
    """Rewards of a few decisions of four portfolios."""
    rng = np.random.default_rng(0)
    state = process.start(np.arange(30, 34), draw_coverage(rng, 4, process.n_weights)[0])
    found = []
    for _ in range(steps):
        outcome = process.step(state, draw_coverage(rng, 4, process.n_weights)[0])
        state = outcome.state
        found.append(outcome.reward)
    return found


def collected(process: DecisionProcess, queue: RewardQueue) -> list[Any]:
    """Rewards of a few decisions, from the queue."""
    play(process)
    return queue.collect()


@pytest.mark.parametrize("names", [("builtin", "HonestForecast", "Observed"), ("ReturnOverThree",)])
def test_rewards_of_workers_have_the_bits_of_those_of_this_process(
    names: tuple[str, ...], process: DecisionProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = rewarded(process, *names, "Slow")
    expected = play(market)
    monkeypatch.setenv("SLOW_REWARDS", str(tmp_path))
    with queued_rewards(market, 2) as (queued, queue):
        assert queue is not None
        waiting = play(queued)
        assert all(np.isnan(reward).all() for reward in waiting)
        found = queue.collect()
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert queue.collect() == []
        assert (queued.reward_names, queued.reward_horizon) == (market.reward_names, market.reward_horizon)
    processes = {int(path.name) for path in tmp_path.iterdir()}
    assert 1 <= len(processes) <= 2  # one may have answered all before the other had begun
    assert os.getpid() not in processes


def test_without_workers_or_slow_rewards_the_market_is_as_it_was(process: DecisionProcess) -> None:
    own, ranking = rewarded(process, "Slow"), rewarded(process, "ranking")
    for market, workers in ((own, 0), (ranking, 2), (process, 2)):
        with queued_rewards(market, workers) as (same, queue):
            assert same is market
            assert queue is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NotANumber", "returned what is no finite number, first at bar 30"),
        ("WrongShape", r"returned the shape \(4, 1\), not \(4,\): one number a portfolio"),
        ("Raises", r"failed at the bars 30 to 33: ValueError: no answer from the model \(own_rewards.py, line \d+\)"),
    ],
)
def test_a_bad_reward_is_named_by_workers_as_by_this_process(
    name: str, words: str, process: DecisionProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARD_FAILS", str(tmp_path))
    market = rewarded(process, name)
    line = f"the reward '{OWN}:{name}' {words}"
    with pytest.raises(TrainingError, match=line):
        play(market)
    with queued_rewards(market, 1) as (queued, queue):
        assert queue is not None
        with pytest.raises(TrainingError, match=line):
            collected(queued, queue)
