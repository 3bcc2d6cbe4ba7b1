"""Rewards by name and of one's own: what they are given and may return, sums of them, and those of workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.config import ObjectivesConfig, load_config
from finflow.config.market_sections import REWARDS
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.env.reward_context import RewardContext
from finflow.env.rewards.chosen_reward import RewardSum, RewardTerm, named_rewards, user_reward, with_reward
from finflow.env.rewards.ranking_reward import create_reward_function
from finflow.env.rewards.reward_queue import RewardQueue, queued_rewards
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError, TrainingError
from tests.env.conftest import build_process, in_torch, random_prices

OWN = "tests.env.rewards.own_rewards"


@pytest.fixture
def process() -> DecisionProcess:
    """A market of four assets, one of which is listed late."""
    close = random_prices()
    close[:20, 1] = np.nan
    return build_process(close, cash_rate=1e-4)


def rewarded(process: DecisionProcess, *names: str) -> DecisionProcess:
    """The market with some rewards in a sum of equal weights, units of one; those of `OWN` by their class."""
    chosen = [{"name": name if name in REWARDS else f"{OWN}:{name}"} for name in names]
    objectives = ObjectivesConfig(rewards=chosen, ranking={"k": 2})
    rewards = named_rewards(objectives, process.n_weights - 1)
    return with_reward(process, rewards.with_tables(process.panel))


def decisions(process: DecisionProcess, bars: range, seed: int = 0) -> tuple[PortfolioState, Any]:
    """A random portfolio at each bar, and where it wants to go."""
    rng = np.random.default_rng(seed)
    held, targets = (draw_coverage(rng, len(bars), process.n_weights)[0] for _ in range(2))
    return process.start(np.asarray(bars), held), targets


def test_a_reward_is_given_what_was_known_done_and_brought(process: DecisionProcess) -> None:
    seen: list[RewardContext] = []

    class Seeing:
        horizon = 2

        def __call__(self, context: RewardContext) -> Any:
            seen.append(context)
            return context.log_return

    market = with_reward(process, RewardSum([RewardTerm("seeing", Seeing())]))
    state, targets = decisions(process, range(30, 34))
    step, plain = market.step(state, targets), process.step(state, targets)
    context = seen[0]
    np.testing.assert_array_equal(step.reward, plain.components[:, 0])
    np.testing.assert_array_equal(context.builtin, plain.components)
    np.testing.assert_array_equal(context.filled, plain.filled)
    np.testing.assert_array_equal(context.turnover, plain.turnover)
    for row, bar in enumerate(range(30, 34)):
        np.testing.assert_array_equal(context.growth[row], process.growth[bar + 1 : bar + 3])
        np.testing.assert_array_equal(context.listed[row], process.listed[bar : bar + 3])
    known = process.observe(state)
    np.testing.assert_array_equal(context.observation["assets"], known["assets"])
    assert context.observation["assets"][0, 0, 0] == 29.0  # the features of the bar before the fill
    np.testing.assert_allclose(context.cash_return, np.log1p(1e-4), rtol=1e-11)  # 1e-4 is kept to 1e-16
    for name, value in vars(plain.state).items():
        np.testing.assert_array_equal(getattr(step.state, name), value)


def test_an_asset_that_is_not_listed_is_not_ranked(process: DecisionProcess) -> None:
    market = with_reward(process, RewardSum([RewardTerm("ranking", create_reward_function("mrr", k=4, horizon=2))]))
    state, targets = decisions(process, range(15, 25))
    brought = np.prod([process.growth[np.arange(15, 25) + step] for step in (1, 2)], axis=0)[:, :-1]
    brought[:5, 1] = -np.inf  # listed from bar 20 on
    expected = []
    for target, returns in zip(targets[:, :-1], brought, strict=True):
        order = [asset for asset in np.argsort(-target) if np.isfinite(returns[asset])]
        expected.append(1.0 / (1 + order.index(int(returns.argmax()))))
    np.testing.assert_allclose(market.step(state, targets).reward, expected, atol=1e-12)


@pytest.mark.parametrize("names", [("ranking",), ("ReturnOverThree", "builtin"), ("HonestForecast",)])
def test_torch_gives_what_numpy_gives(process: DecisionProcess, names: tuple[str, ...]) -> None:
    market = rewarded(process, *names)
    state, targets = decisions(process, range(25, 40))
    ours, theirs = market.step(state, targets), market.step(in_torch(state), torch.from_numpy(targets))
    np.testing.assert_allclose(theirs.components.numpy(), ours.components, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.components.sum(axis=1), ours.reward, atol=1e-15)


def test_gradients_pass_through_a_differentiable_reward(process: DecisionProcess) -> None:
    """d reward / d target of the excess return, against central differences, at trades that no limit binds."""
    market = rewarded(process, "ExcessReturn")
    state, targets = decisions(process, range(30, 33))
    leaf = torch.tensor(targets, requires_grad=True)
    (gradient,) = torch.autograd.grad(market.step(in_torch(state), leaf).reward.sum(), leaf)
    toward = np.array([1.0, -1.0, 0.0, 0.0, 0.0]) * 1e-6
    ahead, behind = (market.step(state, targets + sign * toward).reward for sign in (1.0, -1.0))
    np.testing.assert_allclose((gradient.numpy() * toward).sum(axis=1), (ahead - behind) / 2.0, rtol=1e-4, atol=1e-13)


def test_components_of_a_sum_are_reported_on_their_own(process: DecisionProcess) -> None:
    objectives = ObjectivesConfig(
        ranking={"k": 2, "horizon": 3}, rewards=[{"name": "builtin", "weight": 2.0}, {"name": "ranking"}]
    )
    rewards = named_rewards(objectives, 4)
    assert rewards.log_return_weight == 2.0
    market = with_reward(process, rewards)
    env = PortfolioVectorEnv(market, range(0, 60), 3, 10)
    env.reset(seed=0)
    state = env.state
    _, reward, _, _, info = env.step(np.full((3, 5), 0.2))
    plain = process.step(state, np.full((3, 5), 0.2))
    np.testing.assert_array_equal(info["reward_log_return"], 2.0 * plain.components[:, 0])
    names = [f"reward_{name}" for name in market.reward_names]
    assert names[-1] == "reward_ranking"
    np.testing.assert_allclose(sum(info[name] for name in names), reward, atol=1e-15)


def test_turnover_and_variance_are_punished(process: DecisionProcess) -> None:
    market = rewarded(process, "turnover", "variance")
    state, targets = decisions(process, range(30, 35))
    step, plain = market.step(state, targets), process.step(state, targets)
    np.testing.assert_array_equal(step.components[:, 0], -plain.turnover)
    np.testing.assert_array_equal(step.components[:, 1], -(plain.components[:, 0] ** 2))


def test_no_decision_is_rewarded_with_bars_beyond_its_window(process: DecisionProcess) -> None:
    market = rewarded(process, "ReturnOverThree")
    assert market.decision_bars(range(10, 40)).stop + 3 == 40
    assert process.decision_bars(range(10, 40)).stop + 1 == 40
    env = PortfolioVectorEnv(market, range(10, 40), 2, 5)
    assert int(env.starts.max()) + 5 - 1 + 3 == 39  # the last decision of the last episode, and its last bar


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{OWN}:Missing", "cannot be imported: AttributeError"),
        ("no.such.module:Reward", "cannot be imported: ModuleNotFoundError"),
        ("json:loads", "declares horizon = None"),
        (f"{OWN}:np", "cannot be called"),
    ],
)
def test_a_reward_that_cannot_be_used_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        user_reward(path)


def test_a_table_has_a_row_for_every_bar(process: DecisionProcess) -> None:
    with pytest.raises(ConfigError, match=r"ShortTable.*\(3,\): one row a bar"):
        rewarded(process, "ShortTable")


def test_more_places_than_assets_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"ranking.k = 10: the market has 4 assets"):
        named_rewards(ObjectivesConfig(reward="ranking"), 4)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"objectives.reward": "rnking"}, "names 'rnking', which is none of builtin, ranking"),
        ({"objectives.rewards": [{"name": "ranking"}, {"name": "ranking"}]}, "names ranking twice"),
        ({"objectives.rewards": [{"name": "ranking", "weight": 0.0}]}, "no weight but zero"),
        ({"objectives.reward": "ranking", "objectives.rewards": [{"name": "builtin"}]}, "are both set"),
        ({"objectives.rewards": "ranking"}, "must be a list of mappings"),
        ({"objectives.rewards": [{"nme": "ranking"}]}, "must be a list of mappings"),
        ({"objectives.ranking.type": "map"}, "one of ndcg, hit, mrr, mixed"),
    ],
)
def test_wrong_keys_are_one_line(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, keys, environ={})


def test_a_sum_is_read_from_one_line() -> None:
    text = "[{name: builtin, weight: 0.5}, {name: ranking, weight: 2}]"
    config = load_config(None, {"objectives.rewards": text}, environ={})
    assert [(term.name, term.weight) for term in config.objectives.terms] == [("builtin", 0.5), ("ranking", 2.0)]


def test_the_built_in_reward_alone_needs_no_sum() -> None:
    """Alone, whatever its weight, it is what the ledger computes."""
    assert named_rewards(ObjectivesConfig(rewards=[{"name": "builtin", "weight": 0.5}]), 4) is None


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


def test_rewards_of_workers_have_the_bits_of_those_of_this_process(
    process: DecisionProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    market = rewarded(process, "builtin", "HonestForecast", "ReturnOverThree", "Observed")
    expected = play(market)
    monkeypatch.setenv("OBSERVED_REWARDS", str(tmp_path))
    with queued_rewards(market, 2) as (queued, queue):
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
    own, ranking = rewarded(process, "Observed"), rewarded(process, "ranking")
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
    with queued_rewards(market, 1) as (queued, queue), pytest.raises(TrainingError, match=line):
        collected(queued, queue)
