"""Snapshots are healthy only after probation, the ladder ends, and a loop of one's own goes back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from finflow.agent.on_policy.on_policy_settings import EntropyScheduler
from finflow.config import RollbackConfig, load_config
from finflow.errors import CheckpointError, ConfigError, OutputError
from finflow.guard.checkpoint_manager import CheckpointManager, read_loop_state
from finflow.guard.checkpoint_settings import CheckpointConfig, CheckpointMetrics
from finflow.guard.rollback import LOWER, MOST_ROLLBACKS, ROLLBACK, STOP, RollbackManager


def filled(config: RollbackConfig | None = None, upto: int = 500) -> RollbackManager:
    """One that has seen a clean stretch."""
    manager = RollbackManager(config)
    manager.begin_phase(0)
    for step in range(upto + 1):
        if step % manager.config.save_interval == 0:
            manager.save(step, {"w": torch.tensor(float(step))}, {"step": step}, score=-abs(step - 200.0))
        if step:
            manager.advance(step, alarmed=False)
    return manager


def test_a_snapshot_is_healthy_only_after_its_probation() -> None:
    manager = filled(upto=250)
    assert [(one.update, one.healthy) for one in manager.snapshots] == [(0, True), (100, True), (200, False)]
    manager.advance(251, alarmed=True)
    assert [one.update for one in manager.snapshots] == [0, 100]
    assert manager.last_healthy is not None
    assert manager.last_healthy.update == 100


def test_the_newest_are_kept_and_always_the_best() -> None:
    manager = filled(RollbackConfig(max_checkpoints=3), upto=1000)
    assert [one.update for one in manager.snapshots] == [800, 900, 1000]
    assert manager.get_statistics() == {
        "num_checkpoints": 4,
        "best_checkpoint_step": 200,
        "best_reward": 0.0,
        "rollback_count": 0,
        "last_rollback_step": None,
    }


def test_with_room_for_one_a_healthy_one_is_never_given_up_for_one_on_probation() -> None:
    manager = RollbackManager(RollbackConfig(max_checkpoints=1, save_interval=10, probation=100))
    for step in range(0, 95, 10):
        manager.save(step, {}, {})
        assert manager.last_healthy is not None


def test_the_ladder_lowers_then_goes_back_then_further_back_and_ends() -> None:
    assert filled().respond(gently=False) == ROLLBACK  # what a lower learning rate cannot mend
    manager = filled()
    answers, went_to = [], []
    for number in range(10):
        step = 510 + 40 * number
        manager.advance(step, alarmed=True)
        answers.append(manager.respond(gently=True))
        if answers[-1] == STOP:
            break
        if answers[-1] == ROLLBACK:
            went_to.append(manager.take(step).update)
    assert answers == [LOWER, ROLLBACK, ROLLBACK, ROLLBACK, STOP]
    assert went_to == [400, 300, 200]
    assert manager.share == 0.5**4
    assert manager.get_statistics()["last_rollback_step"] == 630
    assert manager.get_statistics()["rollback_count"] == 3


def test_learning_rates_grow_back_after_a_clean_stretch() -> None:
    manager = filled()
    manager.take(501)
    assert manager.share == 0.5
    grew = [manager.advance(step, alarmed=False) for step in range(502, 502 + 200)]
    assert grew.index(True) == 199
    assert manager.share == 1.0
    assert manager.retries == 0
    manager.take(702)
    assert manager.advance(702 + 200, alarmed=True) is False  # no alarm raises a learning rate
    assert manager.share == 0.5
    manager.begin_phase(1000)
    assert (manager.share, manager.lowered) == (1.0, False)


def test_rollbacks_of_a_phase_are_bounded_even_where_each_seems_to_help() -> None:
    manager, step, count = filled(), 500, 0
    while manager.respond(gently=False) == ROLLBACK:
        manager.take(step)
        count += 1
        for _ in range(250):
            step += 1
            manager.advance(step, alarmed=False)
    assert count == MOST_ROLLBACKS


def looks(manager: RollbackManager, **values: list[float]) -> list[bool]:
    """What is answered to each look."""
    rows = zip(*values.values(), strict=True)
    return [manager.should_rollback(**dict(zip(values, row, strict=True)))[0] for row in rows]


def test_a_loss_that_triples_is_a_reason_at_the_second_look_also_where_it_is_negative() -> None:
    usual = [2.0, 2.1, 1.9, 2.2, 2.0, 1.8]
    assert looks(RollbackManager(), loss=[*usual, 6.5, 6.5]) == [False] * 7 + [True]
    assert not any(looks(RollbackManager(), loss=[*usual, 5.5, 5.5, 6.5, 2.0, 6.5]))
    negative = [-2.0, -2.1, -1.9, -2.2, -2.0]
    assert not any(looks(RollbackManager(), loss=[*negative, 0.0, 1.0]))
    assert any(looks(RollbackManager(), actor_loss=[*negative, 4.0, 4.0]))


def test_rewards_around_zero_give_no_false_reason_and_a_fall_gives_one() -> None:
    rng = np.random.default_rng(0)
    usual = (rng.standard_t(3, size=(2000, 160)).mean(axis=1) - 0.02).tolist()
    manager = RollbackManager()
    assert not any(looks(manager, reward=usual))
    should, reason = [manager.should_rollback(reward=-3.0) for _ in range(2)][-1]
    assert should
    assert "mean reward fell to -3" in reason


def test_a_policy_that_leaps_is_a_reason_and_one_that_learns_fast_is_not() -> None:
    manager = RollbackManager()
    assert not any(looks(manager, kl=[0.02 * n for n in range(30)]))
    assert any(looks(manager, kl=[20.0, 20.0]))
    unknown = 100.0 * RollbackConfig().kl_threshold  # before the usual distance is known
    assert looks(RollbackManager(), kl=[1.01 * unknown, 1.01 * unknown]) == [False, True]
    assert not any(looks(RollbackManager(), kl=[0.99 * unknown, 0.99 * unknown]))
    slow = RollbackManager()
    assert not any(looks(slow, kl=[0.001] * 10))
    assert looks(slow, kl=[0.11, 0.11]) == [False, True]


def test_the_presets_are_those_promised_and_keys_that_are_given_win() -> None:
    names = ("save_interval", "max_checkpoints", "kl_threshold", "loss_spike", "reward_drop")
    values = {
        preset: [getattr(RollbackManager.preset(preset).config, name) for name in names]
        for preset in ("default", "conservative", "standard", "aggressive")
    }
    assert values == {
        "default": [100, 5, 0.1, 3.0, 0.5],
        "conservative": [50, 10, 0.05, 2.0, 0.7],
        "standard": [100, 5, 0.1, 3.0, 0.5],
        "aggressive": [200, 3, 0.15, 5.0, 0.3],
    }
    given = load_config(None, {"guard.rollback.preset": "aggressive", "guard.rollback.save_interval": 70}, {})
    assert (given.guard.rollback.save_interval, given.guard.rollback.max_checkpoints) == (70, 3)


PRESETS = ("conservative", "standard", "aggressive")


def first_reasons(mode: Literal["strict", "robust"], usual: dict[str, float], then: dict[str, float]) -> list[bool]:
    """What each preset answers at the second look at ``then``, after twenty looks at ``usual``."""
    answers = []
    for preset in PRESETS:
        manager = RollbackManager.preset(preset, mode)
        for _ in range(20):
            manager.should_rollback(**usual)
        answers.append([manager.should_rollback(**then)[0] for _ in range(2)][-1])
    return answers


@pytest.mark.parametrize("usual", [2.0, -2.0])  # where the mean is negative, rise and drop are of its magnitude
@pytest.mark.parametrize("signal", ["loss", "actor_loss", "reward"])
@pytest.mark.parametrize(
    ("preset", "spike", "drop"), [("conservative", 2.0, 0.7), ("standard", 3.0, 0.5), ("aggressive", 5.0, 0.3)]
)
def test_strict_losses_and_rewards_are_compared_with_the_recent_mean(
    usual: float, signal: str, preset: str, spike: float, drop: float
) -> None:
    limit = usual + (drop - 1.0 if signal == "reward" else spike - 1.0) * abs(usual)
    worse = -1e-6 if signal == "reward" else 1e-6
    for value, expected in ((limit + worse, True), (limit - worse, False)):
        manager = RollbackManager.preset(preset, "strict")
        assert looks(manager, **{signal: [usual] * 12 + [value]}) == [False] * 12 + [expected]


def test_strict_limits_are_absolute_and_those_of_the_robust_mode_follow_what_is_usual() -> None:
    assert first_reasons("strict", {"kl": 0.2}, {"kl": 1.1}) == [True] * 3
    assert first_reasons("robust", {"kl": 0.2}, {"kl": 1.1}) == [True, False, False]
    assert first_reasons("robust", {"kl": 0.2}, {"kl": 2.0}) == [True, True, False]
    assert first_reasons("robust", {"loss": 2.0}, {"loss": 5.0}) == [True, False, False]


def test_a_manager_goes_on_from_its_saved_state() -> None:
    manager, other = filled(), RollbackManager()
    looks(manager, loss=[2.0] * 6 + [9.0], kl=[0.1] * 7)
    manager.take(501)
    tensors, state = manager.capture()
    other.restore(tensors, json.loads(json.dumps(state)))
    assert other.capture()[1] == state
    for one in (manager, other):
        one.advance(540, alarmed=True)
    assert other.should_rollback(loss=9.0) == manager.should_rollback(loss=9.0)
    mine, its = manager.take(541), other.take(541)
    assert (mine.update, mine.state) == (its.update, its.state)
    assert torch.equal(mine.tensors["w"], its.tensors["w"])
    assert math.isclose(other.share, manager.share)


def test_the_only_healthy_snapshot_is_gone_back_to_again() -> None:
    manager = RollbackManager()
    assert manager.respond(gently=False) == STOP  # without one there is nothing to go back to
    manager.save(0, {}, {})
    assert [manager.take(step).update for step in (5, 10, 15)] == [0, 0, 0]


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    network = nn.Linear(3, 2)
    with torch.no_grad():
        network.weight.fill_(1.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    return network, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def learn(network: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> None:
    optimizer.zero_grad()
    network(torch.ones(3)).sum().backward()
    optimizer.step()
    scheduler.step()


def metrics(step: int = 0, **changes: Any) -> CheckpointMetrics:
    figures = {"policy_loss": 0.2, "value_loss": 0.8, "kl_divergence": 0.01, "mean_reward": 10.0}
    return CheckpointMetrics(step, 0.0, explained_variance=None, **(figures | changes))


def test_a_loop_goes_back_to_what_it_was(tmp_path: Path) -> None:
    network, optimizer, scheduler = loop = parts()
    manager = CheckpointManager(CheckpointConfig(tmp_path, save_interval=2))
    for step in range(5):
        if manager.should_save_checkpoint(step):
            manager.save_checkpoint(step, *loop, metrics(step, mean_reward=10.0 + step))
            assert manager.should_rollback(metrics(step)) == (False, "")
            kept = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            rate, moments = optimizer.param_groups[0]["lr"], len(optimizer.state)
        learn(*loop)
    should, reason = manager.should_rollback(metrics(5, kl_divergence=0.11))
    assert should
    assert "0.11" in reason
    assert manager.rollback(*loop) == 4
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, kept[name])
    assert optimizer.param_groups[0]["lr"] == rate
    assert len(optimizer.state) == moments
    assert scheduler.last_epoch == 4
    statistics = manager.get_statistics()
    assert statistics["rollback_count"] == 1
    assert statistics["best_checkpoint_step"] == 4


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("rewards", [(7.0, 3.0, 6.0, 2.0), (1.0, 7.0, 3.0, 2.0)])
def test_the_best_is_kept_beside_the_newest_and_found_by_another_process(
    rewards: tuple[float, ...], folder: bool, tmp_path: Path
) -> None:
    """The first checkpoint may be the best; it is healthy, and no check has passed since: so it is kept, too."""
    loop = parts()
    manager = CheckpointManager(CheckpointConfig(tmp_path if folder else None, max_checkpoints=2))
    for place, reward in enumerate(rewards):
        manager.save_checkpoint(100 * place, *loop, metrics(mean_reward=reward))
        if reward == 7.0:
            best, step = loop[0].weight.detach().clone(), 100 * place
        learn(*loop)
    assert (manager.get_statistics()["best_reward"], manager.load_best_checkpoint(*loop)) == (7.0, step)
    assert torch.equal(loop[0].weight, best)
    if folder:
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == [f"checkpoint_{name}.safetensors" for name in ("000000000", "000000300", "best", "latest")]
        assert read_loop_state(tmp_path / "checkpoint_latest.safetensors")[0] == 300
        fresh = parts()
        assert CheckpointManager(CheckpointConfig(tmp_path)).load_best_checkpoint(fresh[0]) == step
        assert torch.equal(fresh[0].weight, best)
        assert not fresh[1].state


def test_a_checkpoint_without_a_reward_is_never_the_best() -> None:
    loop, manager = parts(), CheckpointManager(CheckpointConfig(None))
    manager.save_checkpoint(0, *loop, metrics(mean_reward=math.nan))
    with pytest.raises(CheckpointError, match="none was saved with a reward"):
        manager.load_best_checkpoint(*loop)
    manager.save_checkpoint(100, *loop, metrics(mean_reward=-3.0))
    manager.save_checkpoint(200, *loop, metrics(mean_reward=math.nan))
    assert manager.load_best_checkpoint(*loop) == 100


def test_the_next_time_an_older_checkpoint_is_taken() -> None:
    loop, manager = parts(), CheckpointManager(CheckpointConfig(None))
    for step in (0, 100, 200):
        manager.save_checkpoint(step, *loop, metrics())
        manager.should_rollback(metrics())
        learn(*loop)
    assert [manager.rollback(*loop) for _ in range(2)] == [200, 100]
    assert not manager.should_save_checkpoint(150)
    assert manager.should_save_checkpoint(200)


def test_schedulers_of_ones_own_are_kept_too() -> None:
    network, scheduler, manager = nn.Linear(1, 1), EntropyScheduler(), CheckpointManager(CheckpointConfig(None))
    scheduler.step(7)
    manager.save_checkpoint(0, network, None, scheduler, metrics())
    scheduler.step(7)
    manager.rollback(network, None, scheduler)
    assert scheduler.taken == 7


def test_faults_are_one_line(tmp_path: Path) -> None:
    loop, manager = parts(), CheckpointManager(CheckpointConfig(None))
    with pytest.raises(CheckpointError, match="no healthy checkpoint to go back to"):
        manager.rollback(*loop)
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        manager.load_best_checkpoint(*loop)
    manager.save_checkpoint(0, *loop, metrics())
    with pytest.raises(CheckpointError, match="does not fit at network"):
        manager.rollback(nn.Linear(5, 5), *loop[1:])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        CheckpointManager(CheckpointConfig(tmp_path / "file")).save_checkpoint(0, *loop, metrics())


def test_the_only_checkpoint_that_is_kept_moves_on_once_it_is_healthy(tmp_path: Path) -> None:
    loop, manager = parts(), CheckpointManager(CheckpointConfig(tmp_path, max_checkpoints=1))
    for step in (0, 100, 200):
        manager.save_checkpoint(step, *loop, metrics(step, mean_reward=10.0 + step))
        if step < 200:
            assert manager.should_rollback(metrics(step)) == (False, "")
    assert manager.should_rollback(metrics(201, kl_divergence=1.0))[0]
    assert (manager.rollback(*loop), manager.get_statistics()["best_checkpoint_step"]) == (100, 100)
    assert [path.name for path in tmp_path.glob("checkpoint_0*")] == ["checkpoint_000000100.safetensors"]


def test_a_spike_does_not_hide_the_next_one() -> None:
    manager = CheckpointManager(CheckpointConfig(None))
    for step in range(10):
        manager.should_rollback(metrics(step))
    assert [manager.should_rollback(metrics(step, value_loss=loss))[0] for step, loss in ((10, 1e6), (11, 1e4))] == [
        True,
        True,
    ]


def test_numbers_of_any_library_masks_and_other_optimisers_are_taken(tmp_path: Path) -> None:
    network = nn.Linear(3, 2)
    network.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
    optimizer = torch.optim.NAdam(network.parameters())
    learn(network, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer))
    manager = CheckpointManager(CheckpointConfig(tmp_path))
    figures = {"policy_loss": network.weight.sum(), "value_loss": np.float32(1.0), "mean_reward": torch.tensor(2.0)}
    manager.save_checkpoint(0, network, optimizer, None, metrics(np.int64(0), **figures))  # type: ignore[arg-type]
    assert manager.rollback(network, optimizer, None) == 0
    network.register_buffer("mask", torch.full((2, 2), math.nan))
    manager.save_checkpoint(100, network, optimizer, None, metrics(100))
    assert manager.get_statistics()["num_checkpoints"] == 1
    with pytest.raises(ConfigError, match="policy_loss of CheckpointMetrics is a number, not 'low'"):
        metrics(0, policy_loss="low")
    lbfgs = torch.optim.LBFGS(network.parameters())
    lbfgs.step(lambda: network(torch.ones(3)).sum())  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="LBFGS keeps"):
        manager.save_checkpoint(200, network, lbfgs, None, metrics(200))


def test_a_rollback_of_one_s_own_is_not_that_of_an_old_fault() -> None:
    loop, manager = parts(), CheckpointManager(CheckpointConfig(None))
    manager.save_checkpoint(0, *loop, metrics())
    assert manager.should_rollback(metrics(30, kl_divergence=1.0))[0]
    manager.rollback(*loop)
    manager.should_rollback(metrics(31))
    manager.save_checkpoint(100, *loop, metrics(100))
    manager.should_rollback(metrics(101))
    assert manager.rollback(*loop, reason="my own") == 100
    assert (manager.get_statistics()["last_rollback_step"], manager.last_reason) == (100, "my own")
