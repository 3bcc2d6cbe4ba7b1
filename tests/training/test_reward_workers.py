"""Trainings whose rewards workers compute: the same bits, killed workers, and rewards that fail."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from finflow.cli import main
from finflow.config import dump_config
from finflow.env.rewards.reward_queue import RewardQueue
from finflow.errors import ConfigError, TrainingError
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import prepare
from finflow.training.judging.agent_strategy import check_alike
from finflow.training.phases import finetune, finetune_on_policy
from finflow.training.trainer import FinFlowTrainer
from tests.training.test_on_policy_phase import SMALL
from tests.training.whole_trainings import Make, check_same_files, check_same_learning, latest, train_through

pytestmark = pytest.mark.usefixtures("ready_workers")

OWN = "tests.env.rewards.own_rewards"
FOUR_ROLLOUTS: dict[str, Any] = {**SMALL, "train__online_episodes": 6}


def test_workers_change_no_bit_of_a_training(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behaviour data, rollouts and the effects of noise; the dataset of the one would be found by the other."""
    keys = FOUR_ROLLOUTS | {"train__reward_normalization__enabled": True}
    keys |= {"objectives__rewards": [{"name": "builtin"}, {"name": f"{OWN}:ReturnOverThree"}]}
    serial = train_through(tiny(**keys))
    (dataset,) = Path(serial.config.output.offline_dir).glob("dataset-*.npz")
    rows = dict(np.load(dataset))
    dataset.unlink()
    counted: list[int] = []  # rewards that each call of a queue brings
    collect = RewardQueue.collect

    def counting(queue: RewardQueue) -> list[Any]:
        found = collect(queue)
        counted.append(len(found))
        return found

    monkeypatch.setattr(RewardQueue, "collect", counting)
    parallel = train_through(tiny(**keys, objectives__workers=2))
    check_same_learning(serial, parallel)
    assert counted[0] == parallel.config.env.episode_length  # steps of the behaviour data
    assert len(counted) > 4
    again = dict(np.load(dataset))  # by the same name
    for name, column in rows.items():
        np.testing.assert_array_equal(column, again[name])
    check_alike([read_checkpoint(latest(trainer)) for trainer in (serial, parallel)])  # they may act as one


def test_a_worker_killed_in_a_training_changes_no_bit(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark = tmp_path / "killed"
    mark.touch()
    monkeypatch.setenv("KILLED_ONCE", str(mark))
    config = tiny(**FOUR_ROLLOUTS, objectives__reward=f"{OWN}:KillsOnce", objectives__workers=2)
    whole = train_through(config)
    mark.unlink()
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    assert not mark.exists()  # the behaviour data were there
    trainer.finetune()
    assert mark.exists()
    assert latest(whole).read_bytes() == latest(trainer).read_bytes()


@pytest.mark.parametrize(
    ("keys", "module", "function", "when"),
    [
        # PPO, before it learns from the second rollout; SAC, which decides and learns in turn, at no checkpoint.
        ({**FOUR_ROLLOUTS, "objectives__workers": 1}, finetune_on_policy, "learn_from", 1),
        ({"train__online_episodes": 4}, finetune, "validate_and_save", 12),
    ],
)
def test_a_reward_that_fails_ends_the_run_and_loses_nothing(
    keys: dict[str, Any],
    module: ModuleType,
    function: str,
    when: int,
    tiny: Make,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fails = tmp_path / "fails"
    monkeypatch.setenv("REWARD_FAILS", str(fails))
    config = tiny(**keys, objectives__reward=f"{OWN}:Raises")
    whole = train_through(config)
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    real = getattr(module, function)

    def failing(*given: Any, **named: Any) -> Any:
        if trainer._begin().state.counters.phase_update >= when:
            fails.touch()
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, function, failing)
        with pytest.raises(
            TrainingError, match=rf"the reward '{OWN}:Raises' failed at the bars \d+ to \d+: ValueError"
        ):
            trainer.finetune()
    assert f"nothing is lost: --resume {trainer.run_folder}" in capsys.readouterr().out
    fails.unlink()
    resumed = FinFlowTrainer(config, resume=trainer.run_folder)
    assert resumed._begin().state.counters.phase_update >= when
    resumed.finetune()
    check_same_files(resumed, whole)


def test_a_reward_that_fails_is_one_line_of_the_command(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REWARD_FAILS", str(tmp_path))
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(tiny(**FOUR_ROLLOUTS, objectives__reward=f"{OWN}:Raises", objectives__workers=1)))
    assert main(["--mode", "train", "--config", str(file)]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"error: the reward '{OWN}:Raises' failed at the bars ")
    assert "\n" not in said
    assert list((tmp_path / "offline").glob("*")) == []


def test_workers_without_a_reward_of_ones_own_are_refused(tiny: Make) -> None:
    for changes in ({}, {"objectives__reward": "ranking", "objectives__ranking__k": 2}):
        with pytest.raises(ConfigError, match=r"objectives.workers = 2 has nothing to compute: builtin and ranking"):
            _ = prepare(tiny(**changes, objectives__workers=2)).learning


def test_soft_actor_critic_says_that_it_waits_for_no_worker(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    keys = {"objectives__reward": f"{OWN}:ReturnOverThree", "train__online_episodes": 0, "train__warmup_episodes": 0}
    trainer = FinFlowTrainer(tiny(**keys, objectives__workers=1, bcell__expansion=0))
    trainer.train_iql()
    capsys.readouterr()
    trainer.finetune()
    assert "objectives.workers: sac learns from every reward before its next decision" in capsys.readouterr().out
