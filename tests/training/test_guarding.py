"""A fault is seen, what it did is taken back, and a training without one is left as it is."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import gradient_step, make_optimiser
from finflow.errors import CheckpointError, TrainingError
from finflow.guard.rollback import RollbackManager
from finflow.guard.signals import Event
from finflow.tensor_file import read_tensors
from finflow.training.data.replay import Transitions
from finflow.training.logs.run_log import RunLog
from finflow.training.phases import run_guard
from finflow.training.trainer import FinFlowTrainer
from scripts.evidence.guard_faults import FAULTS, Fault, injected
from tests.training.whole_trainings import (
    Make,
    Stop,
    best,
    check_same_files,
    checkpoint_of,
    latest,
    rows_of,
    train_through,
)

#: A guard for trainings of 60 online updates.
QUICK = {
    "train__online_episodes": 12,
    "guard__rollback__save_interval": 10,
    "guard__rollback__probation": 10,
    "guard__rollback__recovery": 30,
    "guard__stability__check_interval": 5,
    "guard__stability__quiet": 5,
    "guard__stability__warmup": 10,
}
AT = 35
BY_NAME = {fault.name: fault for fault in FAULTS}


def events_of(trainer: FinFlowTrainer) -> list[dict[str, Any]]:
    """What the guard saw and did, but for low validation figures: the market of these tests falls."""
    return [row for row in rows_of(trainer, "events.jsonl") if row["signal"] != "sharpe"]


Faulty = Callable[[str], tuple[FinFlowTrainer, list[int]]]


@pytest.fixture(scope="module")
def faulty(shared: Make) -> Faulty:
    """Trains with a fault by name, and tells at which updates it struck; the same training happens once."""

    @functools.cache
    def train(name: str) -> tuple[FinFlowTrainer, list[int]]:
        with injected(BY_NAME[name], AT) as struck:
            return train_through(shared(**QUICK)), struck

    return train


@pytest.fixture(scope="module")
def undisturbed(shared: Make) -> FinFlowTrainer:
    """A training without a fault."""
    return train_through(shared(**QUICK))


def learned(trainer: FinFlowTrainer) -> dict[str, torch.Tensor]:
    """Everything in the latest checkpoint but the guard's own and the order of the replay."""
    tensors, _ = read_tensors(latest(trainer))
    return {name: t for name, t in tensors.items() if not name.startswith("watch/") and "/replay/" not in name}


def test_a_healthy_training_learns_bit_for_bit_what_it_learns_unguarded(
    tiny: Make, undisturbed: FinFlowTrainer
) -> None:
    alone = train_through(tiny(**QUICK, guard__enabled=False))
    assert events_of(undisturbed) == []
    one, other = learned(undisturbed), learned(alone)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    tensors, facts = read_tensors(latest(undisturbed))
    assert any(name.startswith("watch/") for name in tensors)
    assert facts["training"]["watch"]["manager"]["rollback_count"] == 0


@pytest.mark.parametrize("name", ["poisoned batches, NaN", "poisoned batches, 1e30"])
def test_a_poisoned_batch_is_skipped_and_never_reaches_the_parameters(faulty: Faulty, name: str) -> None:
    trainer, struck = faulty(name)
    assert [(row["signal"], row["update"] - struck[0]) for row in events_of(trainer)] == [("non_finite", 1)]
    assert all(bool(tensor.isfinite().all()) for tensor in learned(trainer).values() if tensor.is_floating_point())


@pytest.mark.parametrize(
    "name", ["learning rates x 1000", "critic explodes", "policy collapses onto one asset", "gate dies"]
)
def test_a_fault_is_seen_and_taken_back(undisturbed: FinFlowTrainer, faulty: Faulty, name: str) -> None:
    trainer, struck = faulty(name)
    assert len(struck) == BY_NAME[name].lasts
    (done,) = [row for row in events_of(trainer) if row["signal"] == "rollback"]
    assert done["update"] - struck[0] <= 15
    counters = read_tensors(latest(trainer))[1]["training"]["counters"]
    assert counters["phase_update"] == 60  # what was lost was done again
    assert counters["update"] > 14 + 60  # and counted
    ends = [one.agent.policy.gate.bias for one in (trainer, undisturbed)]
    torch.testing.assert_close(*ends, atol=0.2, rtol=0.0)
    for part in ("noise", "exploration"):  # other random numbers are drawn after it
        assert not torch.equal(*(read_tensors(latest(one))[0][part] for one in (trainer, undisturbed)))
    lengths = [float(one.agent.critic.mean.weight.detach().norm()) for one in (trainer, undisturbed)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.2)
    assert best(trainer).is_file()


def test_stopped_after_snapshots_and_resumed_meets_a_fault_as_if_never_stopped(
    shared: Make, faulty: Faulty, stop_training: Stop
) -> None:
    fault, (whole, _), before = BY_NAME["gate dies"], faulty("gate dies"), 28
    stopped = stop_training(shared(**QUICK), 14 + 5 + before)  # updates offline, and steps of warm-up
    assert stopped._begin().state.counters.phase_update == before
    with injected(fault, AT - before):
        resumed = train_through(shared(**QUICK), resume=stopped.run_folder)
    assert [row for row in events_of(whole) if row["signal"] == "rollback"]
    check_same_files(resumed, whole, "events.jsonl")


def test_a_permanent_fault_ends_in_a_report_and_leaves_the_best_checkpoint(tiny: Make) -> None:
    trainer = FinFlowTrainer(tiny(**QUICK))
    permanent = Fault("permanent", 10_000, BY_NAME["poisoned batches, NaN"].strike)
    with injected(permanent, AT), pytest.raises(TrainingError) as stopped:
        trainer.train()
    message = str(stopped.value)
    assert "\n" not in message
    assert "after 3 rollback(s)" in message
    assert "missing, infinite or impossibly large prices" in message
    report = (trainer.run_folder / "guard-report.md").read_text()
    assert "What to try" in report
    assert "rollback_count | 3" in report
    rows = events_of(trainer)
    assert [row["signal"] for row in rows].count("rollback") == 3
    assert rows[-1]["signal"] == "stop"
    for name in ("best", "latest"):
        tensors, _ = read_tensors(checkpoint_of(trainer, name))
        assert all(bool(t.isfinite().all()) for t in tensors.values() if t.is_floating_point())


def test_the_offline_phase_is_guarded_too(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from finflow.agent.learners.offline_learner import IQL

    original, calls = IQL.update, []

    def update(self: IQL, batch: Batch, *rest: Any) -> dict[str, torch.Tensor]:
        calls.append(1)
        if len(calls) == 20:
            with torch.no_grad():
                for parameter in self.policy.parameters():
                    parameter.fill_(float("nan"))
        return original(self, batch, *rest)

    monkeypatch.setattr(IQL, "update", update)
    trainer = FinFlowTrainer(tiny(**QUICK, train__offline_training_epochs=6))
    result = trainer.train_iql()
    assert np.isfinite(list(result.values())).all()
    assert "rollback" in [row["signal"] for row in events_of(trainer)]


def test_a_policy_that_moves_at_every_second_update_is_looked_at_then_and_resumes_to_the_same_bits(
    tiny: Make, stop_training: Stop
) -> None:
    config = tiny(**QUICK, offline__method="td3bc")
    whole = FinFlowTrainer(config)
    whole.train_iql()
    assert whole._begin().guard.memory.monitor.windows["actor_loss"].count == 7  # of 14 updates
    resumed = FinFlowTrainer(config, resume=stop_training(config, 6).run_folder)
    resumed.train_iql()
    assert latest(resumed).read_bytes() == latest(whole).read_bytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_careful_optimiser_leaves_out_a_step_that_is_not_finite(value: float) -> None:
    net = torch.nn.Linear(2, 1)
    with torch.no_grad():
        net.weight.fill_(0.5)
        net.bias.fill_(0.0)
    optimiser = make_optimiser(net, 0.1)
    optimiser.skip_nonfinite = True
    gradient_step(net(torch.ones(1, 2)).square().sum(), optimiser, 10.0)
    before = [p.detach().clone() for p in net.parameters()]
    moments = [{k: v.clone() for k, v in optimiser.state[p].items()} for p in net.parameters()]
    length = gradient_step(net(torch.tensor([[value, 1.0]])).square().sum(), optimiser, 10.0)
    assert not length.isfinite()
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), before, strict=True))
    for parameter, kept in zip(net.parameters(), moments, strict=True):
        assert all(torch.equal(optimiser.state[parameter][name], kept[name]) for name in kept)
    gradient_step(net(torch.ones(1, 2)).square().sum(), optimiser, 10.0)
    assert not torch.equal(net.weight, before[0])
    assert bool(net.weight.isfinite().all())


def _rows(start: int, count: int) -> dict[str, Any]:
    numbers = np.arange(start, start + count)
    return {"bar": numbers, "reward": numbers.astype(np.float32)}


@pytest.mark.parametrize(("slack", "left"), [(6, 10), (2, 6), (0, 4)])
def test_a_replay_forgets_the_newest_and_has_the_older_again(slack: int, left: int) -> None:
    store = Transitions(10, 3, 6, torch.device("cpu"), slack=slack)
    store.add(**_rows(0, 15))
    store.add(**_rows(100, 6))
    assert store.forget_after(15) == 6
    assert len(store) == left
    generator = torch.Generator().manual_seed(0)
    assert set(store.draw(300, generator)["bar"].tolist()) == set(range(15 - left, 15))
    store.add(**_rows(200, 3))
    expected = [*range(15 - left, 15), 200, 201, 202][-10:]
    assert set(store.draw(300, generator)["bar"].tolist()) == set(expected)


def test_events_are_written_for_programs_and_for_tensorboard(tmp_path: Path) -> None:
    row = {"update": 7, "phase": "online", "level": "alarm", "signal": "q", "message": "q is 500", "value": 500.0}
    with closing(RunLog(tmp_path)) as log:
        log.record("online", 7, {"sharpe": 0.1})
        log.event(row)
        position = log.position()
        log.event(row | {"update": 9})
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2
    with closing(RunLog(tmp_path, resume_at=position)):
        pass
    assert [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [row]
    shown = EventAccumulator(str(tmp_path))
    shown.Reload()
    assert [(point.step, point.value) for point in shown.Scalars("guard_events/q")] == [(7, 3.0)]
    assert b"q is 500" in shown.Tensors("guard/q/text_summary")[0].tensor_proto.string_val[0]
    (tmp_path / "events.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="events"):
        RunLog(tmp_path, resume_at=position)


def test_rewards_beyond_reason_are_not_remembered(undisturbed: FinFlowTrainer) -> None:
    guard = undisturbed._begin().guard
    assert guard.learnable(np.array([0.001, np.nan, 1e30, -0.002])).tolist() == [True, False, False, True]
    assert guard.learnable(np.full(4, 0.001)).all()


def test_transitions_since_the_snapshot_are_forgotten_or_kept(undisturbed: FinFlowTrainer) -> None:
    run = undisturbed._begin()
    run.progress.start_phase("online", 60, done=60)
    learners, healthy = run.state.learners, run.state.watch.manager.last_healthy
    assert learners is not None
    assert healthy is not None
    replay = learners.everyone[0].replay
    written, then = replay.written, healthy.state["training"]["learners"]["learners"][0]["written"]
    assert run_guard.restore_snapshot(run.state, 0, healthy, quarantine=False) == 0
    assert replay.written == written
    assert run_guard.restore_snapshot(run.state, 0, healthy, quarantine=True) == written - then > 0
    assert replay.written == then
    assert run.state.counters.vector_step == healthy.state["training"]["counters"]["vector_step"]


@pytest.mark.parametrize(("signals", "quarantined"), [({"q", "critic_loss"}, False), ({"q", "kl"}, True)])
def test_only_where_the_critic_alone_is_at_fault_are_transitions_kept(
    undisturbed: FinFlowTrainer, monkeypatch: pytest.MonkeyPatch, signals: set[str], quarantined: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(run_guard, "restore_snapshot", lambda *given, quarantine: asked.append(quarantine) or 0)
    guard = undisturbed._begin().guard
    guard.memory.manager.retries = 0
    assert guard._respond([Event(9, "online", "alarm", signal, "words") for signal in sorted(signals)])
    assert asked == [quarantined]


@pytest.mark.parametrize(
    ("keys", "distances"),
    [
        ({}, {"offline": {False}, "online": {False}}),
        ({"bcell__iql_extraction": "awr", "bcell__expansion": 0}, {"offline": {True}, "online": {False}}),
        ({"offline__method": "td3bc"}, {"offline": {True}, "online": {False}}),
    ],
    ids=str,
)
def test_the_distance_of_a_policy_that_climbs_is_no_alarm(
    keys: dict[str, object], distances: dict[str, set[bool]], tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that imitates is compared with the last healthy one."""
    looked: dict[str, list[bool]] = {"offline": [], "online": []}
    judge = RollbackManager.should_rollback
    trainer = FinFlowTrainer(tiny(**{"guard__stability__check_interval": 1, "train__online_episodes": 4, **keys}))

    def recorded(manager: RollbackManager, **given: Any) -> tuple[bool, str]:
        looked[trainer._begin().state.counters.phase].append(given["kl"] is not None)
        return judge(manager, **given)

    monkeypatch.setattr(RollbackManager, "should_rollback", recorded)
    trainer.train_iql()
    trainer.finetune()
    assert {phase: set(found) for phase, found in looked.items()} == distances
