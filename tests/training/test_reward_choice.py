"""The configured reward in a training: units, references, purged bars, what algorithms can follow, reward models."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.env.coverage import draw_coverage
from finflow.env.decision_process import DecisionProcess, with_growths
from finflow.env.rewards.chosen_reward import RewardSum
from finflow.errors import CheckpointError, ConfigError
from finflow.evaluation.backtest import run_backtests
from finflow.offline.collection import made_by
from finflow.preferences.judged_pairs import judge_pairs, make_judge
from finflow.preferences.model_training import learn_model
from finflow.preferences.pairs import SegmentMarket
from finflow.preferences.preference_reward import pair_tensors, save_model
from finflow.strategies.classical import EqualWeight
from finflow.training.data.rewards import RewardUnits, equal_weight_rewards
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, tiny_in

OWN = "tests.env.rewards.own_rewards"
CPU = torch.device("cpu")
RANKING = {"objectives__reward": "ranking", "objectives__ranking__k": 2}
PUBLISHED = {"bcell__expansion": 0}  # soft actor-critic on the critics alone follows no reward's gradient


def rewards_of(process: DecisionProcess, bars: Sequence[int], seed: int = 0) -> Any:
    """Rewards of random decisions at some bars."""
    rng = np.random.default_rng(seed)
    held, targets = (draw_coverage(rng, len(bars), process.n_weights)[0] for _ in range(2))
    return process.step(process.start(np.asarray(bars), held), targets)


def test_units_are_deviations_between_decisions_of_a_bar(tiny: Make) -> None:
    terms = [{"name": "ranking", "weight": 1.0}, {"name": f"{OWN}:ExcessReturn", "weight": 2.0}]
    data = prepare(tiny(objectives__ranking__k=2, objectives__rewards=terms))
    rewards = data.learning.reward
    assert isinstance(rewards, RewardSum)
    assert [term.weight for term in rewards.terms] == [1.0, 2.0]
    process = data.learning
    components = rewards_of(process, np.repeat(np.arange(300, 500), 40)).components
    spread = np.sqrt(components.reshape(200, 40, 2).var(axis=1, ddof=1).mean(axis=0))
    np.testing.assert_allclose(spread, [1.0, 2.0], rtol=0.1)


def test_the_reference_of_a_ranking_is_zero_where_no_reward_is(tiny: Make) -> None:
    process = prepare(tiny(**RANKING, env__execution_lag=0)).learning
    found = equal_weight_rewards(process)
    assert (found[: process.first_bar] == 0.0).all()
    assert (found[-process.reward_horizon :] == 0.0).all()
    assert (found[process.first_bar : -process.reward_horizon] > 0.0).all()


def test_no_reward_of_training_reaches_into_validation(tiny: Make) -> None:
    """Prices after the training window changed altogether: every reward that a training may see stays bit for bit."""
    config = tiny(**RANKING, objectives__ranking__horizon=7)
    data = prepare(config)
    process = data.learning
    assert process.reward_horizon == 7
    bars = process.decision_bars(data.split.train)
    assert bars.stop - 1 + 7 == data.split.train_end - 1
    other = with_growths(process, [])
    after = other.growth[data.split.train_end :, :-1]
    after *= np.random.default_rng(0).uniform(0.5, 2.0, after.shape)
    np.testing.assert_array_equal(rewards_of(other, bars).reward, rewards_of(process, bars).reward)
    later = range(bars.stop, bars.stop + 5)
    assert (rewards_of(other, later).reward != rewards_of(process, later).reward).any()


def test_a_reward_without_gradient_is_refused_where_it_is_followed(tiny: Make) -> None:
    with pytest.raises(ConfigError, match=r"declares no gradient.*bcell\.expansion = 4 .*set bcell\.expansion=0"):
        _ = prepare(tiny(objectives__reward=f"{OWN}:ReturnOverThree")).learning
    for keys in (PUBLISHED, {"online__algorithm": "ppo"}):
        config = tiny(objectives__reward=f"{OWN}:ReturnOverThree", **keys)
        assert prepare(config).learning.reward_horizon == 3


def test_a_reward_that_is_always_the_same_is_refused_in_a_sum(tiny: Make) -> None:
    with pytest.raises(ConfigError, match=r"Constant is the same for every decision"):
        _ = prepare(tiny(objectives__rewards=[{"name": "builtin"}, {"name": f"{OWN}:Constant"}], **PUBLISHED)).learning


# --- in excess of what nobody's action changed


def test_rewards_are_in_excess_of_those_of_equal_weight(tiny: Make) -> None:
    """At lag 0 and without costs it is restored at every bar: its log return is the reference."""
    free = {"env__commission_bps": 0.0, "env__slippage_bps": 0.0, "env__execution_lag": 0}
    alone = {"objectives__sharpe_beta": 0.0, "objectives__lambda_turn": 0.0, "objectives__lambda_cvar": 0.0}
    data = prepare(tiny(**free, **alone))
    run = run_backtests(data.process, data.split.validation, [EqualWeight()])[0]
    first = data.process.decision_bars(data.split.validation).start
    rewards, bars = torch.from_numpy(run.rewards), torch.arange(first, first + len(run.rewards))
    units = RewardUnits.of(data.process, 0.01, "equal-weight", CPU)
    np.testing.assert_allclose(units.scaled(rewards, bars).numpy(), 0.0, atol=1e-5)  # float32 of returns over 0.01
    better = units.scaled(rewards + 0.03, bars).numpy()
    np.testing.assert_allclose(better, 3.0, atol=1e-5)
    raw = RewardUnits.of(data.process, 0.01, "none", CPU).scaled(rewards, bars)
    torch.testing.assert_close(raw, 100.0 * rewards)


# --- a reward model


JUDGED = {
    "preferences__judge__strategies": ["equal-weight", "momentum"],
    "preferences__judge__random": 6,
    "objectives__preference__segment": 10,
}
SHORT = {
    "train__online_episodes": 2,
    "online__rollout": 20,
    "online__portfolios": 2,
    "online__minibatch": 10,
    "guard__enabled": False,
}


@pytest.fixture(scope="module")
def models(few_epochs: None, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two reward models of the tiny market, from different seeds."""
    folder = tmp_path_factory.mktemp("models")
    config = tiny_in(folder)(**JUDGED)
    data = prepare(config)
    market = SegmentMarket(data.process, data.split.train, config)
    made = judge_pairs(market, make_judge("log-growth", config.preferences.judge, 252), 60, seed=0)
    pairs = pair_tensors(market, made)
    files = [folder / f"model-{seed}.safetensors" for seed in range(2)]
    for seed, file in enumerate(files):
        model, learned = learn_model(pairs, data.shape, seed=seed)
        save_model(file, model, learned.report(), ())
    return files


@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_every_kind_of_learner_takes_it(tiny: Make, models: list[Path], algorithm: str) -> None:
    """Offline and online, in a sum with the built-in reward, a ranking and one of a user's own."""
    names = ("builtin", "ranking", f"{OWN}:ExcessReturn", "preference")
    config = tiny(
        objectives__rewards=[{"name": name, "weight": 1.0} for name in names],
        objectives__ranking__k=2,
        objectives__preference__model=models[0],
        online__algorithm=algorithm,
        **SHORT,
    )
    trainer = FinFlowTrainer(config)
    assert np.isfinite(trainer.train_iql()["q_loss"])
    assert all(np.isfinite(value) for value in trainer.finetune().values() if isinstance(value, float))


def test_data_know_a_model_by_its_content(tiny: Make, models: list[Path], tmp_path: Path) -> None:
    moved = Path(shutil.copy(models[0], tmp_path / "moved.safetensors"))

    def facts(file: Path) -> str:
        config = tiny(objectives__reward="preference", objectives__preference__model=file)
        data = prepare(config)
        return made_by(config, data.learning, data.split.train)["objectives"]

    assert facts(models[0]) == facts(moved)
    assert facts(models[0]) != facts(models[1])


def test_a_reward_model_that_is_not_there_is_refused_in_one_line(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs objectives\.preference\.model: the file that --mode prefer --learn"):
        tiny(objectives__reward="preference")
    missing = tiny(objectives__reward="preference", objectives__preference__model=tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match=r"none\.safetensors"):
        _ = prepare(missing).learning
