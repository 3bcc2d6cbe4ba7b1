"""Rewards by name and of one's own: what they are given, what they may return, and sums of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from finflow.config import ObjectivesConfig, load_config
from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess
from finflow.env.portfolio_state import PortfolioState
from finflow.env.rewards.chosen_reward import RewardSum, RewardTerm, named_rewards, user_reward, with_reward
from finflow.env.rewards.ranking_reward import create_reward_function
from finflow.env.rewards.reward_context import RewardContext
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError
from tests.env.conftest import build_process, in_torch, random_prices

OWN = "tests.env.rewards.own_rewards"


@pytest.fixture
def process() -> DecisionProcess:
    """A market of four assets, one of which is listed late."""
    close = random_prices()
    close[:20, 1] = np.nan
    return build_process(close, cash_rate=1e-4)


def rewarded(process: DecisionProcess, *names: str) -> DecisionProcess:
    """The market with some rewards in a sum of equal weights, units of one."""
    objectives = ObjectivesConfig(rewards=[{"name": name} for name in names], ranking={"k": 2})
    rewards = named_rewards(objectives, process.n_weights - 1)
    assert rewards is not None
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


@pytest.mark.parametrize("names", [("ranking",), (f"{OWN}:ReturnOverThree", "builtin"), (f"{OWN}:HonestForecast",)])
def test_torch_gives_what_numpy_gives(process: DecisionProcess, names: tuple[str, ...]) -> None:
    market = rewarded(process, *names)
    state, targets = decisions(process, range(25, 40))
    ours, theirs = market.step(state, targets), market.step(in_torch(state), torch.from_numpy(targets))
    np.testing.assert_allclose(theirs.components.numpy(), ours.components, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours.components.sum(axis=1), ours.reward, atol=1e-15)


def test_gradients_pass_through_a_differentiable_reward(process: DecisionProcess) -> None:
    """d reward / d target of the excess return, against central differences, at trades that no limit binds."""
    market = rewarded(process, f"{OWN}:ExcessReturn")
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
    assert rewards is not None
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
    market = rewarded(process, f"{OWN}:ReturnOverThree")
    assert market.decision_bars(range(10, 40)).stop + 3 == 40
    assert process.decision_bars(range(10, 40)).stop + 1 == 40
    env = PortfolioVectorEnv(market, range(10, 40), 2, 5)
    assert int(env.starts.max()) + 5 - 1 + 3 == 39  # the last decision of the last episode, and its last bar


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{OWN}:Missing", "cannot be imported: AttributeError"),
        ("no.such.module:Reward", "cannot be imported: ModuleNotFoundError"),
        (f"{OWN}:NoHorizon", "declares horizon = None"),
        (f"{OWN}:np", "cannot be called"),
    ],
)
def test_a_reward_that_cannot_be_used_is_refused(path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        user_reward(path)


def test_a_table_has_a_row_for_every_bar(process: DecisionProcess) -> None:
    with pytest.raises(ConfigError, match=r"ShortTable.*\(3,\): one row a bar"):
        rewarded(process, f"{OWN}:ShortTable")


def test_more_places_than_assets_are_refused(process: DecisionProcess) -> None:
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
