"""PPO, TRPO and the others learn on the market: seeded from IQL, guarded, resumed bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from finflow.agent.on_policy.on_policy_settings import Rollout
from finflow.config import Config, load_config
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.errors import ConfigError
from finflow.tensor_file import read_tensors
from finflow.training.on_policy.on_policy_market import RolloutCollector, rollouts_of, steps_per_rollout
from finflow.training.phases import finetune_on_policy as phase
from finflow.training.phases.pretrain import learning_market
from finflow.training.trainer import FinFlowTrainer
from tests.training.test_guarding import BY_NAME, QUICK, events_of
from tests.training.whole_trainings import Make, Stop, check_same_files, checkpoint_of, latest, rows_of, train_through

#: Rollouts of 32 decisions, 5 of them in a training.
SMALL: dict[str, Any] = {
    "online__algorithm": "ppo",
    "online__rollout": 32,
    "online__portfolios": 4,
    "online__minibatch": 16,
    "online__epochs": 2,
    "train__online_episodes": 8,
}
ROLLOUTS = 5
LOGGED = {
    "sharpe",
    "cvar",
    "kl",
    "approximate_kl",
    "clip_fraction",
    "entropy",
    "explained_variance",
    "value_loss",
    "beta",
    "reward",
}


@pytest.mark.parametrize("algorithm", ["ppo", "ppo-kl", "trpo", "a2c", "reinforce"])
def test_every_algorithm_learns_and_logs(algorithm: str, tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finflow.training.phases.training_run.LOG_EVERY", 1)
    config = tiny(**SMALL | {"online__algorithm": algorithm})
    assert rollouts_of(config) == ROLLOUTS
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    before = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    trainer.finetune()
    assert any(not torch.equal(before[name], tensor) for name, tensor in trainer.policy.state_dict().items())
    logged = rows_of(trainer)
    rows = [row for row in logged if row["phase"] == "online" and "kl" in row]
    assert len(rows) == ROLLOUTS - 2 * (algorithm != "reinforce")  # the first two teach the value function alone
    assert set(rows[-1]) >= LOGGED - ({"value_loss"} if algorithm == "reinforce" else set())
    assert all(math.isfinite(row[name]) for row in rows for name in ("kl", "entropy"))
    assert all(-0.2 < row["cvar"] < 0.0 for row in rows)  # of days
    for row in rows:
        assert (row["entropy_band_low"], row["entropy_band_high"]) == (0.1, 1.0)
        assert 0.0 <= row["policy_entropy"] <= 1.0
        assert 0.0 <= row["concentration"] <= 1.0
    if algorithm == "trpo":
        assert all(row["kl"] <= 0.01 * 1.001 for row in rows)
    counters = read_tensors(latest(trainer))[1]["training"]["counters"]
    assert counters["phase_update"] == ROLLOUTS * steps_per_rollout(config)
    episodes = [row for row in logged if row["phase"] == "online" and "return" in row]
    assert [row["episode"] for row in episodes] == list(range(1, 1 + 8))
    assert all(math.isfinite(row["return"]) and math.isfinite(row["sharpe"]) for row in episodes)


def test_the_phase_begins_with_the_policy_and_the_value_of_the_offline_phase(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = FinFlowTrainer(tiny(**SMALL))
    trainer.train_iql()
    learner = trainer._begin().state.learner
    assert learner is not None
    policy = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    value = {name: tensor.clone() for name, tensor in learner.value.state_dict().items()}
    seen: list[bool] = []
    learn = phase.learn_from

    def first(on_policy: Any, rollout: Rollout, config: Config, state: Any, done: int) -> Any:
        if done == 0:
            seen.extend(torch.equal(policy[name], tensor) for name, tensor in state.bcell.policy.state_dict().items())
            seen.extend(torch.equal(value[name], tensor) for name, tensor in on_policy.value.state_dict().items())
        figures = learn(on_policy, rollout, config, state, done)
        if done == 0:  # the value function first
            seen.extend(torch.equal(policy[name], tensor) for name, tensor in state.bcell.policy.state_dict().items())
            assert not torch.equal(value["own.readout.weight"], on_policy.value.state_dict()["own.readout.weight"])
        return figures

    monkeypatch.setattr(phase, "learn_from", first)
    trainer.finetune()
    assert seen
    assert all(seen)


def new_collector(config: Config) -> RolloutCollector:
    """Collector of rollouts of a pretrained policy."""
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    run = trainer._begin()
    trainer._hand_over(run)
    state = run.state.on_policy
    assert state is not None
    units = learning_market(run).units
    return RolloutCollector(state.played, state.agent, units, run.state.exploration, lambda _: None)


def test_it_starts_from_scratch_without_an_offline_phase(tiny: Make) -> None:
    trainer = FinFlowTrainer(tiny(**SMALL, offline__method="none"))
    assert "v_loss" not in trainer.train_iql()
    assert trainer._begin().state.counters.update == 0
    assert math.isfinite(trainer.finetune()["sharpe"])


@pytest.mark.parametrize(("algorithm", "when"), [("ppo", 14 + 1), ("trpo", 14 + 4)])  # offline updates come first
def test_a_resumed_run_equals_one_that_never_stopped(
    algorithm: str, when: int, tiny: Make, stop_training: Stop
) -> None:
    keys = {**SMALL, "online__algorithm": algorithm, "bcell__averaging__kind": "swa", "online__reference": "pretrained"}
    whole = train_through(tiny(**keys))
    stopped = stop_training(tiny(**keys), when)
    resumed = train_through(tiny(**keys), resume=stopped.run_folder)
    check_same_files(resumed, whole)


# --- faults

Strike = Callable[[Any, Any, Rollout], Rollout]


def poisoned(value: float) -> Strike:
    def strike(on_policy: Any, bcell: Any, rollout: Rollout) -> Rollout:
        advantages = rollout.advantages.clone()
        advantages[::4] = value
        return rollout._replace(advantages=advantages, returns=rollout.returns + advantages)

    return strike


def learning_rates(on_policy: Any, bcell: Any, rollout: Rollout) -> Rollout:
    for group in on_policy.optimiser.param_groups:
        group["lr"] *= 1000.0
    return rollout


@torch.no_grad()
def critic_explodes(on_policy: Any, bcell: Any, rollout: Rollout) -> Rollout:
    for parameter in on_policy.value.own.parameters():
        parameter.mul_(1000.0).add_(10.0)
    return rollout


def one_asset(on_policy: Any, bcell: Any, rollout: Rollout) -> Any:
    return BY_NAME["policy collapses onto one asset"].strike(bcell, rollout)  # type: ignore[arg-type]


def dead_gate(on_policy: Any, bcell: Any, rollout: Rollout) -> Any:
    return BY_NAME["gate dies"].strike(bcell, rollout)  # type: ignore[arg-type]


def train_with(config: Config, strike: Strike, monkeypatch: pytest.MonkeyPatch, at: int = 4) -> FinFlowTrainer:
    """Train with a fault at one call, counted through rollbacks."""
    calls, learn = 0, phase.learn_from

    def struck(on_policy: Any, rollout: Rollout, config: Config, state: Any, done: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            rollout = strike(on_policy, state.bcell, rollout)
        return learn(on_policy, rollout, config, state, done)

    monkeypatch.setattr(phase, "learn_from", struck)
    return train_through(config)


def finite(trainer: FinFlowTrainer) -> bool:
    tensors, _ = read_tensors(latest(trainer))
    parts = [tensor for name, tensor in tensors.items() if name.startswith(("bcell/", "on_policy/"))]
    return all(bool(tensor.isfinite().all()) for tensor in parts if tensor.is_floating_point())


@pytest.mark.parametrize(("algorithm", "value"), [("ppo", math.nan), ("ppo", 1e30), ("trpo", math.nan)])
def test_poisoned_rollouts_never_reach_the_parameters(
    value: float, algorithm: str, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = train_with(tiny(**SMALL | QUICK | {"online__algorithm": algorithm}), poisoned(value), monkeypatch)
    assert finite(trainer)
    if math.isnan(value):
        assert "non_finite" in {row["signal"] for row in events_of(trainer)}


@pytest.mark.parametrize(
    ("algorithm", "strike"),
    [*(("ppo", strike) for strike in (learning_rates, critic_explodes, one_asset, dead_gate)), ("trpo", dead_gate)],
)
def test_a_fault_is_seen_and_taken_back(
    strike: Strike, algorithm: str, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"online__algorithm": algorithm, "train__online_episodes": 24, "bcell__online_schedule": "constant"}
    config = tiny(**SMALL | QUICK | keys)  # a cosine would set the rates anew
    trainer = train_with(config, strike, monkeypatch, at=8)
    assert any(row["signal"] == "rollback" for row in events_of(trainer))
    assert finite(trainer)
    counters = read_tensors(latest(trainer))[1]["training"]["counters"]
    assert counters["phase_update"] == rollouts_of(config) * steps_per_rollout(config)  # what was lost was done again
    assert counters["update"] > 14 + counters["phase_update"]  # and counted
    assert float(trainer.agent.policy.gate.bias.detach().abs().max()) < 1.0
    assert checkpoint_of(trainer, "best").is_file()


def test_rewards_beyond_reason_are_not_learned_from(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    step, calls = PortfolioVectorEnv.step, 0

    def poisoned_step(self: PortfolioVectorEnv, actions: Any) -> Any:
        nonlocal calls
        observation, reward, *rest = step(self, actions)
        calls += 1
        if calls in (20, 21):
            reward = np.where(np.arange(len(reward)) == 0, math.nan, reward)
        return observation, reward, *rest

    sizes: list[int] = []
    learn = phase.learn_from

    def sized(on_policy: Any, rollout: Rollout, *rest: Any) -> Any:
        sizes.append(len(rollout.log_prob))
        assert bool(rollout.advantages.isfinite().all())
        return learn(on_policy, rollout, *rest)

    trainer = FinFlowTrainer(tiny(**SMALL | QUICK))
    trainer.train_iql()
    monkeypatch.setattr(PortfolioVectorEnv, "step", poisoned_step)
    monkeypatch.setattr(phase, "learn_from", sized)
    trainer.finetune()
    assert finite(trainer)
    assert sorted(sizes)[0] == 30
    assert "rewards" in {row["signal"] for row in events_of(trainer)}


# --- wrong input


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"online.rollout": 32}, "online.rollout = 32 is shorter than online.minibatch = 64"),
        ({"online.rollout": 2050}, "online.rollout = 2050 must be a multiple of online.portfolios = 8"),
        ({"bcell.risk_measure": "cvar"}, "needs online.algorithm = sac: ppo maximises the mean"),
        ({"online.algorithm": "poo"}, "must be one of sac, ppo"),
    ],
)
def test_keys_that_do_not_go_together_are_one_line(keys: dict[str, object], words: str) -> None:
    with pytest.raises((ConfigError, ValidationError)) as caught:
        load_config(None, {"online.algorithm": "ppo", **keys}, {})
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
