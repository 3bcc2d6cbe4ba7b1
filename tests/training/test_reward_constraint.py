"""A limit on the mean of one reward: a known optimum and its multiplier, what learners see, resumed and refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from finflow.config import Config, ConstraintConfig
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError
from finflow.training.data.reward_choice import constraint_units_of
from finflow.training.data.reward_constraint import INFEASIBLE, LARGEST, RewardConstraint, constrained_score
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import as_tensors
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Stop, latest, train_through

MakeTiny = Callable[..., Config]
CPU = torch.device("cpu")
OWN = "tests.env.rewards.own_rewards"
#: The log return alone, without costs, at the prices of the decision.
PLAIN = {
    "objectives__sharpe_beta": 0.0,
    "objectives__lambda_turn": 0.0,
    "objectives__lambda_cvar": 0.0,
    "env__commission_bps": 0.0,
    "env__slippage_bps": 0.0,
    "env__execution_lag": 0,
}
#: Rollouts of 32 decisions, 8 of them in a training.
SMALL: dict[str, Any] = {
    "online__algorithm": "ppo",
    "online__rollout": 32,
    "online__portfolios": 4,
    "online__minibatch": 16,
    "online__epochs": 2,
}
LIMIT = {"objectives__constraint__reward": "turnover", "objectives__constraint__at_least": -0.001}
LIMITED = {**SMALL, **LIMIT}
#: Vector steps of 32 decisions, 80 of them in a training, each with an update whose actor looks 32 decisions ahead.
EXACT: dict[str, Any] = {
    "out_of_fold__blocks": 2,
    "out_of_fold__looks": 1,
    "bcell__actor_lr": 0.03,
    "train__n_envs": 8,
    "train__online_batch_size": 32,
    "train__updates_per_vector_step": 1,
    "train__critic_only_updates": 0,
    "train__offline_training_epochs": 1,
    "offline__method": "bc",  # limits are held online
    "train__online_episodes": 128,
    "train__generalisation": False,
}


class Optimum(NamedTuple):
    """Share of one asset, the rest in cash, with the largest mean log return within a limit on its mean square."""

    share: float
    price: float


def optimum_of(returns: NDArray[np.float64], limit: float) -> Optimum:
    """By the closed form: the share at the limit, and ``f' / g'`` there, of the mean and of the mean square."""
    share = float(brentq(lambda w: -np.mean(np.log1p(w * returns) ** 2) - limit, 1e-6, 1.0))
    growth = 1.0 + share * returns
    mean, square = np.mean(returns / growth), np.mean(2.0 * np.log(growth) * returns / growth)
    return Optimum(share, float(mean / square))


@pytest.mark.parametrize(("part", "start"), [(0.25, 0.0), (0.6, 3.0)])
def test_the_multiplier_and_the_share_become_those_of_the_closed_form(
    tiny: MakeTiny, part: float, start: float
) -> None:
    """By gradients through the ledger of what learners see; a part of the variance of the whole asset is allowed."""
    config = tiny(**PLAIN, online__algorithm="ppo", objectives__constraint__reward="variance",
                  objectives__constraint__at_least=-1.0)  # fmt: skip
    process = prepare(config).learning
    bars = np.arange(process.first_bar, process.first_bar + 300)
    asset = int(process.growth[bars + 1].prod(axis=0).argmax())
    returns = process.growth[bars + 1, asset] - 1.0
    limit = -part * float(np.mean(np.log1p(returns) ** 2))
    keys = ConstraintConfig(reward="variance", at_least=limit, rate=0.02, multiplier=start)
    constraint = RewardConstraint(keys, constraint_units_of(process, "variance", [range(bars[0], bars[-1])]))
    units = RewardUnits.of(process, 0.01, "none", CPU)._replace(constraint=constraint)
    logit = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([logit], lr=0.05)
    for _ in range(900):
        weights = torch.zeros(len(bars), process.n_weights, dtype=torch.float64)
        weights[:, asset], weights[:, -1] = torch.sigmoid(logit), torch.sigmoid(-logit)
        outcome = process.step(as_tensors(process.start(bars, weights.detach().numpy()), CPU), weights)
        seen = units.scaled(outcome.reward, torch.from_numpy(bars), outcome.constrained)
        optimiser.zero_grad()
        (-seen.mean()).backward()
        optimiser.step()
        constraint.update(float(outcome.constrained.detach().mean()))
    found = optimum_of(returns, limit)
    assert float(torch.sigmoid(logit.detach())) == pytest.approx(found.share, rel=1e-3)
    assert constraint.price == pytest.approx(found.price, rel=0.01)
    assert constraint.mean == pytest.approx(limit, rel=1e-3)


def test_a_limit_that_does_not_bind_leaves_the_reward_as_it_is(tiny: MakeTiny) -> None:
    keys = ConstraintConfig(reward="turnover", at_least=-0.5, multiplier=2.0)
    constraint = RewardConstraint(keys, (0.01, 0.2))
    rewards, constrained = torch.randn(8), -torch.rand(8) * 0.1
    assert not torch.equal(constraint.combined(rewards, constrained), rewards)
    for _ in range(20):
        constraint.update(float(constrained.mean()))
    assert constraint.multiplier == 0.0
    assert torch.equal(constraint.combined(rewards, constrained), rewards)


def test_the_multiplier_ascends_by_the_violation_in_its_unit_and_stays_finite() -> None:
    keys = ConstraintConfig(reward="turnover", at_least=-0.1, rate=0.5, proportional=0.0)
    constraint = RewardConstraint(keys, (0.01, 0.2))
    constraint.update(-0.3)
    assert constraint.multiplier == pytest.approx(0.5 * 0.2 / 0.2)
    assert constraint.price == pytest.approx(0.5 * 0.01 / 0.2)
    expected = (0.02 + 0.025 * (-0.3 + 0.1)) / 1.5
    assert float(constraint.combined(torch.tensor(0.02), torch.tensor(-0.3))) == pytest.approx(expected)
    constraint.update(math.nan)
    assert (constraint.multiplier, constraint.mean) == (pytest.approx(0.5), -0.3)
    constraint.update(-1e9)
    assert constraint.multiplier == LARGEST


def test_the_proportional_term_follows_the_violation_and_is_gone_with_it() -> None:
    keys = ConstraintConfig(reward="turnover", at_least=-0.1, rate=0.5, proportional=2.0)
    constraint = RewardConstraint(keys, (0.01, 0.2))
    constraint.update(-0.3)
    assert (constraint.integral, constraint.multiplier) == (pytest.approx(0.5), pytest.approx(2.5))
    constraint.update(-0.1)
    assert (constraint.integral, constraint.multiplier) == (pytest.approx(0.5), pytest.approx(0.5))


def test_policies_within_the_limit_are_better_than_all_others() -> None:
    keys = ConstraintConfig(reward="turnover", at_least=-0.1)
    within, better = constrained_score(-5.0, -0.1, keys), constrained_score(0.3, -0.05, keys)
    over, further = constrained_score(9.0, -0.11, keys), constrained_score(10.0, -0.2, keys)
    assert further < over < INFEASIBLE < within < better == 0.3


def test_the_reward_with_a_limit_is_told_beside_the_reward(tiny: MakeTiny) -> None:
    free, limited = prepare(tiny(**SMALL)), prepare(tiny(**LIMITED))
    infos, rewards = [], []
    for data in (free, limited):
        process = data.learning
        env = PortfolioVectorEnv(process, data.train, 4, 20)
        env.reset(seed=0)
        _, reward, _, _, info = env.step(np.full((4, process.n_weights), 1.0 / process.n_weights))
        infos.append(info)
        rewards.append(reward)
    np.testing.assert_array_equal(rewards[0], rewards[1])
    np.testing.assert_array_equal(infos[1]["constraint"], -infos[1]["turnover"])
    assert "constraint" not in infos[0]
    assert infos[0].keys() | {"constraint"} == infos[1].keys()


def test_the_windows_are_purged_by_the_horizon_of_the_limit(tiny: MakeTiny) -> None:
    config = tiny(**SMALL, objectives__constraint__reward=f"{OWN}:ReturnOverThree",
                  objectives__constraint__at_least=0.0)  # fmt: skip
    assert prepare(config).learning.reward_horizon == 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"online__algorithm": "trpo"},
        {"online__advantages": "group", "online__group_size": 2, "online__group_noise": 2},
    ],
)
def test_training_logs_the_multiplier_and_resumes_bit_for_bit(
    changes: dict[str, Any], tiny: MakeTiny, stop_training: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finflow.training.phases.training_run.LOG_EVERY", 1)
    keys = {**LIMITED, **changes}
    whole = train_through(tiny(**keys))
    rows = [json.loads(line) for line in (whole.run_folder / "metrics.jsonl").read_text().splitlines()]
    looked = [row for row in rows if "constraint_multiplier" in row]
    assert len(looked) == 8
    multipliers = [row["constraint_multiplier"] for row in looked]
    assert multipliers[:2] == [0.0, 0.0]  # of the rollouts that teach the value function, and of the first after
    assert min(multipliers[2:]) > 0.0
    assert all(-1.0 <= row["constraint_mean"] < -0.001 for row in looked)
    validated = [row["validation_constraint"] for row in rows if "validation_constraint" in row]
    assert len(validated) >= 2
    stopped = stop_training(tiny(**keys), 14 + 4)  # offline updates come first
    resumed = FinFlowTrainer(tiny(**keys), resume=stopped.run_folder)
    resumed.finetune()
    assert latest(resumed).read_bytes() == latest(whole).read_bytes()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"objectives__constraint__reward": "turnover"}, "needs both reward, the one with a limit, and at_least"),
        ({"objectives__constraint__at_least": 0.0}, "needs both reward, the one with a limit, and at_least"),
        (LIMITED | {"objectives__constraint__reward": "turnovr"}, "objectives.constraint.reward names 'turnovr'"),
        (LIMIT | {"bcell__expansion": 0}, "needs bcell.expansion above 0"),
        (LIMIT | {"bcell__counterfactual": False}, "bcell.counterfactual = true"),
        (LIMITED | {"train__reward_normalization__enabled": True}, "train.reward_normalization.enabled must be false"),
    ],
)
def test_a_limit_that_cannot_be_held_is_one_line(tiny: MakeTiny, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        tiny(**keys)
    assert "\n" not in str(caught.value)


def test_a_limit_is_held_with_workers(tiny: MakeTiny) -> None:
    """To the same bits with any number of those that compute the reward."""
    keys = LIMITED | {"objectives__reward": f"{OWN}:ExcessReturn", "train__online_episodes": 4}
    alone, beside = (train_through(tiny(**keys, objectives__workers=count)) for count in (0, 1))
    assert alone._begin().state.constraint is not None
    assert alone._begin().state.constraint.multiplier > 0.0
    tensors = [run.policy.state_dict() for run in (alone, beside)]
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())


def test_a_limit_on_what_no_decision_changes_is_refused(tiny: MakeTiny) -> None:
    config = tiny(**LIMITED | {"objectives__constraint__reward": f"{OWN}:Constant"})
    with pytest.raises(ConfigError, match="Constant is the same for every decision"):
        train_through(config)


def test_exact_decisions_hold_a_limit(tiny: MakeTiny, stop_training: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the variance: a mean of 20 updates depends on the bars that they lived through."""
    monkeypatch.setattr("finflow.training.phases.training_run.LOG_EVERY", 1)
    keys = {
        **EXACT,
        **PLAIN,
        **LIMIT,
        "objectives__constraint__reward": "variance",
        "objectives__constraint__at_least": -4e-5,
        "objectives__constraint__rate": 0.1,
    }
    whole = train_through(tiny(**keys))
    rows = [json.loads(line) for line in (whole.run_folder / "metrics.jsonl").read_text().splitlines()]
    looked = [row for row in rows if "constraint_multiplier" in row]
    assert len(looked) == 80
    assert max(row["constraint_multiplier"] for row in looked) > 0.1
    limited = np.mean([row["constraint_mean"] for row in looked[60:80]])
    free = train_through(tiny(**keys | {"objectives__constraint__at_least": -1.0}))
    rows = [json.loads(line) for line in (free.run_folder / "metrics.jsonl").read_text().splitlines()]
    unlimited = np.mean([row["constraint_mean"] for row in rows if "constraint_mean" in row][60:80])
    assert unlimited < -7e-5
    assert limited == pytest.approx(-4e-5, abs=1.5e-5)
    stopped = stop_training(tiny(**keys), 7 + 40)  # offline updates come first
    resumed = FinFlowTrainer(tiny(**keys), resume=stopped.run_folder)
    resumed.finetune()
    assert latest(resumed).read_bytes() == latest(whole).read_bytes()


def test_a_limited_reward_without_a_gradient_is_refused_where_it_is_followed(tiny: MakeTiny) -> None:
    config = tiny(**EXACT | LIMIT | {"objectives__constraint__reward": f"{OWN}:ReturnOverThree"})
    with pytest.raises(ConfigError, match="ReturnOverThree declares no gradient"):
        train_through(config)
