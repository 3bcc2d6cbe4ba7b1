"""Learning from a reward model by name: every kind of learner takes it, and data know it by what is in its file."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from finflow.errors import CheckpointError, ConfigError
from finflow.offline.collection import made_by
from finflow.preferences.judged_pairs import judge_pairs, make_judge
from finflow.preferences.model_training import learn_model
from finflow.preferences.pairs import SegmentMarket
from finflow.preferences.preference_reward import pair_tensors, save_model
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import Make, tiny_in

JUDGED = {
    "preferences__judge__strategies": ["equal-weight", "momentum"],
    "preferences__judge__random": 6,
    "objectives__preference__segment": 10,
}
OWN = "tests.env.rewards.own_rewards"
SHORT = {
    "train__online_episodes": 2,
    "online__rollout": 20,
    "online__portfolios": 2,
    "online__minibatch": 10,
    "guard__enabled": False,
}


pytestmark = pytest.mark.usefixtures("few_epochs")


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


def test_mistakes_are_one_line(tiny: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs objectives\.preference\.model: the file that --mode prefer --learn"):
        tiny(objectives__reward="preference")
    missing = tiny(objectives__reward="preference", objectives__preference__model=tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match=r"none\.safetensors"):
        _ = prepare(missing).learning
