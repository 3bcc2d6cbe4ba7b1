"""Learners in a second process: the same bits as in one, whatever happens to that process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from finflow import cores
from finflow.errors import MarketError
from finflow.tensor_file import read_tensors
from finflow.training.off_policy import learners
from finflow.training.phases import finetune as phase
from finflow.training.phases.run_guard import RunGuard, restore_snapshot
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import WITH_BLOCKS, Make, check_same_learning, latest, train_through

#: Of 5 learners: 3 and 2.
FOUR = {**WITH_BLOCKS, "out_of_fold__blocks": 4, "guard__rollback__save_interval": 3, "train__online_episodes": 12}


@pytest.fixture(scope="module")
def here(shared: Make) -> FinFlowTrainer:
    """The training in one process."""
    return train_through(shared(**FOUR))


class LearnerCalls(cores.ForkedCalls[Any, Any]):
    """Calls of learners: evidence and growth fork processes of their own."""

    started: ClassVar[list[cores.ForkedCalls[Any, Any]]] = []

    @classmethod
    def start(cls, function: Callable[[Any], Any]) -> cores.ForkedCalls[Any, Any] | None:
        one = super().start(function)
        if one is not None:
            cls.started.append(one)
        return one


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[cores.ForkedCalls[Any, Any]]:
    """Two cores, and the processes that were forked for learners."""
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    monkeypatch.setattr(LearnerCalls, "started", started := [])
    monkeypatch.setattr(learners, "ForkedCalls", LearnerCalls)
    return started


def test_in_a_second_process_they_learn_the_same_bits(
    here: FinFlowTrainer, tiny: Make, calls: list[cores.ForkedCalls[Any, Any]]
) -> None:
    check_same_learning(train_through(tiny(**FOUR)), here)
    assert len(calls) == 1
    assert not calls[0].process.is_alive()


@pytest.mark.parametrize("place", [13, 14])
def test_where_that_process_is_killed_they_learn_the_same_bits(
    place: int,
    here: FinFlowTrainer,
    tiny: Make,
    calls: list[cores.ForkedCalls[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed in a piece of work, and when the state is asked for: what came after the last state is done again."""
    original, begun = LearnerCalls.begin, []

    def begin(self: cores.ForkedCalls[Any, Any], work: Any) -> None:
        begun.append(work)
        if len(begun) == place:
            self.process.kill()
            self.process.join()
        original(self, work)

    monkeypatch.setattr(LearnerCalls, "begin", begin)
    check_same_learning(train_through(tiny(**FOUR)), here)
    assert None in begun[: place - 1]
    assert (begun[-1] is None) == (place == 14)
    assert len(begun) == place
    assert len(calls) == 1


def test_an_error_in_their_decisions_loses_nothing(
    here: FinFlowTrainer,
    tiny: Make,
    calls: list[cores.ForkedCalls[Any, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The checkpoint is of before the vector step, for the learners of both processes."""
    original = phase.step_portfolios
    trainer = FinFlowTrainer(tiny(**FOUR))
    trainer.train_iql()

    def failing(market: Any, group: Any, config: Any) -> Any:
        if len(group) == 2 and group[0].replay.written > 200:
            raise MarketError("no price")
        return original(market, group, config)

    with monkeypatch.context() as patch:
        patch.setattr(phase, "step_portfolios", failing)
        with pytest.raises(MarketError, match="no price"):
            trainer.finetune()
    assert f"--resume {trainer.run_folder}" in capsys.readouterr().out
    assert calls
    check_same_learning(train_through(tiny(**FOUR), resume=trainer.run_folder), here)


def test_what_the_guard_does_reaches_them(
    here: FinFlowTrainer, tiny: Make, calls: list[cores.ForkedCalls[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lowered learning rates, and a rollback that forgets transitions, in one process and in two."""
    original = RunGuard.after_update

    def after_update(self: RunGuard, *given: Any) -> bool:
        done, manager = self.state.counters.phase_update, self.memory.manager
        if self.state.counters.phase == "online" and done == 2:
            manager.share = 0.25
        if self.state.counters.phase == "online" and done == 5 and not manager.phase_rollbacks:
            manager.phase_rollbacks = 1
            assert manager.last_healthy is not None
            restore_snapshot(self.state, self.config.train.seed, manager.last_healthy, quarantine=True)
            return True
        return original(self, *given)

    monkeypatch.setattr(RunGuard, "after_update", after_update)
    apart = train_through(tiny(**FOUR))
    assert len(calls) == 2  # the rollback brings them back, and they leave again
    monkeypatch.setattr(cores, "available_cores", lambda: 1)
    check_same_learning(train_through(tiny(**FOUR)), apart)
    tensors, others = (read_tensors(latest(trainer))[0] for trainer in (here, apart))
    name = next(name for name in tensors if name.startswith("learners/4/agent/policy"))
    assert not torch.equal(tensors[name], others[name])
