"""Every promised key and override acts: changed alone, it changes decisions, the data, or the files that it names."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from finflow.agent.batch import states_of
from finflow.cli.option_table import OPTIONS
from finflow.config import Config, flatten
from finflow.guard.rollback import RollbackManager
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import SHORT, SHORT_MARKET, config_in

DECIDED: dict[str, list[np.ndarray]] = {}
LEFT: dict[str, list[str]] = {}
PREPARED: dict[str, TrainingData] = {}


class Case(NamedTuple):
    """A change of one key, what else both trainings have, and what the change is seen in."""

    value: object
    seen_in: str = "decisions"
    given: Mapping[str, object] = {}


LOSSES = {"market.synthetic.volatility": 0.5}  # days beyond the target of CVaR
ANNEALED = {"bcell.alpha_mode": "annealed"}
NORMALISED = {"train.reward_normalization.enabled": True, "train.reward_normalization.warmup": 2}
FILES = {"train.checkpoint_updates": 3, "train.validation_updates": 3, "train.updates_per_vector_step": 4}
#: Of one update after each vector step.
FEW: dict[str, object] = {**SHORT, **SHORT_MARKET, "train.updates_per_vector_step": 1, "train.warmup_episodes": 2}
#: Every row of the table of keys that users were promised, and the keys of their other tables.
CASES: dict[str, Case] = {
    "market.source": Case("embedded", "data", {"market.tickers": None}),
    "market.path": Case("other.csv", "data", {"market.source": "csv", "market.path": "prices.csv"}),
    "market.tickers": Case(["a", "b"], "data", {"market.source": "csv", "market.path": "prices.csv"}),
    "market.start": Case("2020-09-01", "data"),
    "market.train_end": Case("2021-11-30", "data"),
    "market.validation_end": Case("2022-07-29", "data"),
    "market.test_end": Case("2022-10-31", "data"),
    "market.cash_rate": Case(0.03, "data"),
    "env.execution_lag": Case(2),
    "env.fill": Case("open", "data", {"market.source": "csv", "market.path": "opens.csv"}),
    "env.initial_capital": Case(2e6, given={"env.costs.minimum": 50.0}),
    "env.episode_length": Case(15),
    "train.seed": Case(1),
    "train.offline_episodes": Case(7),
    "train.offline_training_epochs": Case(2),
    "train.online_episodes": Case(8),
    "train.offline_batch_size": Case(24),
    "train.online_batch_size": Case(16),
    "train.n_envs": Case(5),
    "train.updates_per_vector_step": Case(3),
    "train.checkpoint_interval": Case(2, "files", {"train.checkpoint_updates": 10_000, "train.online_episodes": 12}),
    "train.save_best": Case(False, "files", FILES),
    "train.save_latest": Case(False, "files", FILES),
    "train.max_checkpoints": Case(1, "files", FILES),
    "train.observation_noise": Case(0.05),
    "train.entropy_schedule.kind": Case("exponential", given={**ANNEALED, "train.entropy_schedule.initial": 1.0}),
    "train.entropy_schedule.initial": Case(1.0, given=ANNEALED),
    "train.entropy_schedule.final": Case(0.5, given={**ANNEALED, "train.entropy_schedule.initial": 1.0}),
    "train.entropy_schedule.steps": Case(2, given={**ANNEALED, "train.entropy_schedule.initial": 1.0}),
    "train.target_entropy_schedule.enabled": Case(True, given={"bcell.alpha_lr": 0.1}),
    "train.reward_normalization.enabled": Case(True, given={"train.reward_normalization.warmup": 2}),
    "train.reward_normalization.window_size": Case(20, given=NORMALISED),
    "train.reward_normalization.clip": Case(0.5, given=NORMALISED),
    "bcell.iql_expectile": Case(0.9),
    "offline.counterfactual": Case(False),
    "bcell.iql_temperature": Case(1.0),
    "bcell.alpha_init": Case(1.0),
    "bcell.alpha_mode": Case("fixed", given={"bcell.alpha_lr": 0.1}),
    "bcell.cql_alpha": Case(10.0),
    "bcell.actor_lr": Case(1e-3),
    "bcell.critic_lr": Case(3e-3),
    "bcell.expansion": Case(3),
    "bcell.counterfactual": Case(False),
    "bcell.gamma": Case(0.9),
    "bcell.tau": Case(0.1),
    "bcell.n_quantiles": Case(8),
    "bcell.hidden_dim": Case(16),
    "bcell.memory_capacity": Case(20, given={"guard.enabled": False}),
    "bcell.dropout": Case(0.1),
    "bcell.risk_measure": Case("cvar"),
    "objectives.lambda_cvar": Case(10.0, given=LOSSES),
    "objectives.lambda_turn": Case(0.5),
    "objectives.lambda_dd": Case(1.0),
    "objectives.sharpe_beta": Case(0.0),
    "objectives.cvar_alpha": Case(0.1, given=LOSSES),
    "objectives.cvar_target": Case(-0.01, given=LOSSES),
    **{
        f"guard.rollback.{name}": Case(value, "guard")
        for name, value in {
            "save_interval": 7,
            "max_checkpoints": 2,
            "kl_threshold": 0.2,
            "loss_spike": 4.0,
            "reward_drop": 0.3,
            "metric_window_size": 5,
            "preset": "conservative",
        }.items()
    },
}


@pytest.mark.parametrize("key", CASES)
def test_a_promised_key_acts(key: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    case, tmp_path = CASES[key], tmp_path_factory.getbasetemp()
    given = case.given
    changed = {**given, key: case.value}
    if case.seen_in == "decisions":  # after the offline phase, or, where those are equal, after the online phase
        both = zip(plainly(tmp_path, given), decided(tmp_path, changed), strict=True)
        assert any(not np.array_equal(one, other) for one, other in both)
    elif case.seen_in == "guard":
        assert answers(tmp_path, given) != answers(tmp_path, changed)
    elif case.seen_in == "files":
        assert files(tmp_path, given) != files(tmp_path, changed)
    else:
        assert data(tmp_path, given) != data(tmp_path, changed)


def test_every_override_of_the_command_line_names_a_key_that_has_a_case() -> None:
    """Options that stand for keys are covered by the keys' cases, or are listed with their own tests."""
    own = {
        *("train.device", "train.profile", "bcell.mixed_precision", "bcell.gradient_checkpointing"),
        *("online.algorithm", "online.minibatch", "online.learning_rate", "train.seeds", "market.use_cache"),
    }
    keys = {key for group in OPTIONS.values() for one in group for key in one.settings.get("keys", ())}
    learning = {key for key in keys if key.startswith(("train.", "bcell.", "market.", "env.", "online."))}
    assert learning - own <= CASES.keys()


def prepared(config: Config) -> TrainingData:
    """What a training learns from; trainings of one market prepare it once."""
    market = repr([config.market, config.env, config.features, config.objectives])
    if market not in PREPARED:
        PREPARED[market] = prepare(config)
    return dataclasses.replace(PREPARED[market], config=config)


def trainer_of(folder: Path, changes: Mapping[str, object]) -> FinFlowTrainer:
    """Trains for a second with these keys."""
    config = config_in(folder, {**FEW, **changes})
    return FinFlowTrainer(config, training_data=prepared(config))


def trained(folder: Path, changes: Mapping[str, object]) -> FinFlowTrainer:
    """Trained through both phases with these keys."""
    trainer = trainer_of(folder, changes)
    trainer.train_iql()
    trainer.finetune()
    return trainer


def decided(folder: Path, changes: Mapping[str, object]) -> Iterator[np.ndarray]:
    """What is decided in a few states of the usual market after the offline phase, and, when asked, by the agent."""
    process, trainer = prepared(config_in(folder, FEW)).process, trainer_of(folder, changes)
    seen = process.observe(process.start(np.array([400, 420, 440])))
    trainer.train_iql()
    with torch.no_grad():
        yield trainer.policy(states_of(seen, torch.device("cpu"))).distribution.centre().numpy()
    trainer.finetune()
    yield np.asarray(trainer.agent.act(seen))


def plainly(folder: Path, given: Mapping[str, object]) -> list[np.ndarray]:
    """What is decided without the change; the same training happens once."""
    name = repr(sorted(given.items()))
    if name not in DECIDED:
        DECIDED[name] = list(decided(folder, given))
    return DECIDED[name]


def answers(folder: Path, changes: Mapping[str, object]) -> object:
    """Answers of a training's guard, as strict as written, to losses, rewards and divergences that vary widely."""
    manager = RollbackManager(config_in(folder, {**FEW, **changes, "guard.rollback.mode": "strict"}).guard.rollback)
    rng, found = np.random.default_rng(0), []
    for update in range(1, 400):
        loss, reward, kl = rng.lognormal(0.0, 1.0), rng.lognormal(0.0, 0.5), rng.uniform(0.0, 0.12)
        if update % manager.config.save_interval == 0:
            manager.save(update, {}, {}, reward)
        found.append((manager.should_rollback(loss=loss, reward=reward, kl=kl)[0], len(manager.snapshots)))
    return found


def files(folder: Path, changes: Mapping[str, object]) -> list[str]:
    """Checkpoints that a training leaves; the same training happens once."""
    name = repr(sorted(changes.items()))
    if name not in LEFT:
        LEFT[name] = sorted(path.name for path in (trained(folder, changes).run_folder / "models").iterdir())
    return LEFT[name]


def data(folder: Path, changes: Mapping[str, object]) -> tuple[object, ...]:
    """What a training learns from and is judged by."""
    write_prices(folder)
    paths = {"market.path": str(folder / str(changes["market.path"]))} if changes.get("market.path") else {}
    found = prepare(config_in(folder, {**FEW, **changes, **paths}))
    return found.split, found.process.panel.sha256, found.process.growth.tobytes()


def write_prices(folder: Path) -> None:
    """Files of random walks in the folder: closes, other closes, and closes with opens."""
    dates = pd.bdate_range("2020-01-01", periods=700, name="Date")
    for name, seed in (("prices.csv", 0), ("other.csv", 1)):
        steps = np.random.default_rng(seed).normal(0.0003, 0.01, size=(len(dates), 3))
        named = pd.DataFrame(100.0 * np.exp(np.cumsum(steps, axis=0)), dates, list("abc"))
        named.to_csv(folder / name)
    both = {ticker: pd.DataFrame({"Open": own.shift(1).fillna(100.0), "Close": own}) for ticker, own in named.items()}
    pd.concat(both, names=["Ticker", "Date"]).reset_index().to_csv(folder / "opens.csv", index=False)


@pytest.mark.parametrize("preset", ["volatile", "calm"])
def test_a_preset_changes_the_checkpoint(preset: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All weights of the policy and of the critics differ from those of a training without it."""
    folder = tmp_path_factory.getbasetemp()
    keys = flatten(yaml.safe_load((Path(__file__).parents[2] / "configs" / f"{preset}.yaml").read_text("utf-8")))
    changed, plain = weights(folder, keys), weights(folder, {})
    assert len(plain) > 20
    assert [name for name, tensor in plain.items() if torch.equal(changed[name], tensor)] == []


def weights(folder: Path, keys: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Weights of the policy and of the critics of a training."""
    agent = trained(folder, {"train.updates_per_vector_step": 4, **keys}).agent  # calm differs little from the default
    named = [*agent.policy.named_parameters("policy"), *agent.critic.named_parameters("critic")]
    return {name: tensor.detach() for name, tensor in named if name.endswith("weight")}
