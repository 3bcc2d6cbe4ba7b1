"""Rollouts that workers play: every number of workers gives the same bits, also where one is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from finflow.config import Config, config_hash, load_config
from finflow.errors import TrainingError
from finflow.training.phases import finetune_on_policy as phase
from finflow.training.rollouts import rollout_workers as workers
from finflow.training.rollouts.rollout_workers import (
    PartDecisions,
    RolloutWorkers,
    WorkerMarket,
    count_parts,
    decide_part,
)
from finflow.training.trainer import FinFlowTrainer
from tests.training.test_reward_workers import GROUPS, OWN, SMALL, learned, same
from tests.training.whole_trainings import Make, Stop, train_through

pytestmark = pytest.mark.usefixtures("ready_workers")

WORLDS = {"worlds__assets": 3, "worlds__cost_low": 0.5, "worlds__cost_high": 2.0}


class Here:
    """Plays every part in this process, in the reverse order."""

    def __init__(self, function: Any, shared: WorkerMarket, *_: Any) -> None:
        self.shared = shared
        self.parts: list[tuple[Any, ...]] = []

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def submit(self, *arguments: Any) -> None:
        self.parts.append(arguments)

    def results(self) -> list[PartDecisions]:
        found = [decide_part(self.shared, *arguments) for arguments in reversed(self.parts)]
        self.parts = []
        return found[::-1]

    def discard(self) -> None:
        self.parts = []


def killing(shared: WorkerMarket, part: Any) -> PartDecisions:
    """Play a part, and kill the process at the first one that is played after the file KILLED_ONCE is gone."""
    killed = Path(os.environ["KILLED_ONCE"])
    if not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return decide_part(shared, part)


@pytest.mark.parametrize(
    "changes",
    [
        {"online__reference": "pretrained", "objectives__reward": f"{OWN}:Observed"},
        GROUPS | {"online__portfolios": 8, "online__rollout": 64},
        WORLDS,
    ],
    ids=["reference", "groups", "worlds"],
)
def test_every_number_of_workers_gives_the_same_bits(
    changes: dict[str, Any], tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = SMALL | changes
    with monkeypatch.context() as patch:
        patch.setattr(workers, "OrderedPool", Here)
        expected = learned(train_through(tiny(**keys, train__rollout_workers=1)))
    assert same(expected, learned(train_through(tiny(**keys, train__rollout_workers=2))))


def test_a_killed_worker_changes_no_bit(tiny: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "killed"
    mark.touch()
    monkeypatch.setenv("KILLED_ONCE", str(mark))
    monkeypatch.setattr(workers, "decide_part", killing)
    config = tiny(**SMALL, train__rollout_workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "OrderedPool", Here)
        whole = train_through(config)
    mark.unlink()
    again = train_through(config)
    assert mark.exists()
    assert same(learned(whole), learned(again))


def test_a_resumed_run_equals_one_that_never_stopped(
    tiny: Make, stop_training: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another number of workers, too; but not in one process."""
    with monkeypatch.context() as patch:
        patch.setattr(workers, "OrderedPool", Here)
        whole = train_through(tiny(**SMALL, train__rollout_workers=1))
        stopped = stop_training(tiny(**SMALL, train__rollout_workers=1), 14 + 2)
    resumed = FinFlowTrainer(tiny(**SMALL, train__rollout_workers=2), resume=stopped.run_folder)
    resumed.finetune()
    assert same(learned(whole), learned(resumed))
    hashes = [config_hash(tiny(**SMALL, train__rollout_workers=count)) for count in (0, 1, 2)]
    assert hashes[0] != hashes[1] == hashes[2]


def test_a_reward_that_fails_in_a_worker_loses_nothing(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fails = tmp_path / "fails"
    monkeypatch.setenv("REWARD_FAILS", str(fails))
    config = tiny(**SMALL, objectives__reward=f"{OWN}:Raises", train__rollout_workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "OrderedPool", Here)
        whole = train_through(config)
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    learn = phase.learn_from

    def failing(on_policy: Any, rollout: Any, config: Any, state: Any, done: int) -> Any:
        if done == 1:
            fails.touch()
        return learn(on_policy, rollout, config, state, done)

    with monkeypatch.context() as patch:
        patch.setattr(phase, "learn_from", failing)
        with pytest.raises(TrainingError, match=f"the reward '{OWN}:Raises' failed at the bars"):
            trainer.finetune()
    fails.unlink()
    resumed = FinFlowTrainer(config, resume=trainer.run_folder)
    resumed.finetune()
    assert same(learned(whole), learned(resumed))


def test_parts_draw_apart_and_begin_where_the_environments_stand(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = FinFlowTrainer(tiny(**SMALL, train__rollout_workers=1))
    trainer.train_iql()
    run = trainer._begin()
    trainer._hand_over(run)
    state = run.state.on_policy
    assert state is not None
    env, policy = state.played.env, state.agent.policy
    before = env.state
    monkeypatch.setattr(workers, "OrderedPool", Here)
    with workers.rollout_workers(env, policy, trainer.config) as player:
        assert isinstance(player, RolloutWorkers)
        found = player.decide(env, policy, 5, None, torch.device("cpu"))
    np.testing.assert_array_equal(found.states[0].bar, before.bar)
    np.testing.assert_array_equal(found.states[0].weights, before.weights)
    assert found.actions.shape[:2] == (5, 4)
    assert len({tuple(row.tolist()) for row in found.actions[0]}) == 4
    stayed = found.ended[-1] == 0.0
    np.testing.assert_array_equal(env.state.bar[stayed.numpy()], (found.states[-1].bar + 1)[stayed.numpy()])


@pytest.mark.parametrize(
    ("portfolios", "size", "advantages", "expected"),
    [(8, 2, "gae", 4), (6, 2, "gae", 3), (7, 2, "gae", 1), (1, 2, "gae", 1), (8, 4, "group", 2), (12, 4, "group", 3)],
)
def test_parts_are_fixed_by_the_portfolios(portfolios: int, size: int, advantages: str, expected: int) -> None:
    keys = {"online.portfolios": portfolios, "online.group_size": size, "online.advantages": advantages}
    config = load_config(None, {"online.algorithm": "ppo", "online.rollout": 168, **keys}, {})
    assert count_parts(config) == expected


def test_workers_need_rollouts_and_are_of_one_kind() -> None:
    with pytest.raises(
        ValidationError, match=r"train.rollout_workers = 2 needs online.algorithm = ppo, .*: sac has no"
    ):
        Config.model_validate({"train": {"rollout_workers": 2}, "online": {"algorithm": "sac"}})
    both = {"train": {"rollout_workers": 2}, "online": {"algorithm": "ppo"}, "objectives": {"workers": 1}}
    with pytest.raises(ValidationError, match=r"train.rollout_workers = 2 and objectives.workers = 1 are both set"):
        Config.model_validate(both)
