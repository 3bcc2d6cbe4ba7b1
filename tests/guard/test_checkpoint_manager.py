"""Checkpoints and rollback in a loop of one's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from finflow.agent.on_policy.on_policy_settings import EntropyScheduler
from finflow.config import RollbackConfig
from finflow.errors import CheckpointError, OutputError
from finflow.guard.checkpoint_manager import CheckpointManager, CheckpointMetrics, read_checkpoint


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


def metrics(**changes: Any) -> CheckpointMetrics:
    return CheckpointMetrics(**({"loss": 1.0, "reward": 10.0} | changes))


def test_a_loop_goes_back_to_what_it_was(tmp_path: Path) -> None:
    network, optimizer, scheduler = loop = parts()
    manager = CheckpointManager(RollbackConfig(mode="strict", save_interval=2), tmp_path)
    for step in range(5):
        if manager.should_save_checkpoint(step):
            manager.save_checkpoint(step, *loop, metrics(reward=float(step)))
            kept = {name: tensor.clone() for name, tensor in network.state_dict().items()}
            rate, moments = optimizer.param_groups[0]["lr"], len(optimizer.state)
        learn(*loop)
    should, reason = manager.should_rollback(metrics(kl=0.11))
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
    """The first checkpoint may be the best; the newest two of four are kept."""
    loop = parts()
    manager = CheckpointManager(RollbackConfig(mode="strict", max_checkpoints=2), tmp_path if folder else None)
    for place, reward in enumerate(rewards):
        manager.save_checkpoint(100 * place, *loop, metrics(reward=reward))
        if reward == 7.0:
            best, step = loop[0].weight.detach().clone(), 100 * place
        learn(*loop)
    assert (manager.get_statistics()["best_reward"], manager.load_best_checkpoint(*loop)) == (7.0, step)
    assert torch.equal(loop[0].weight, best)
    if folder:
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == [f"checkpoint_{name}.safetensors" for name in ("000000200", "000000300", "best", "latest")]
        assert read_checkpoint(tmp_path / "checkpoint_latest.safetensors")[0] == 300
        fresh = parts()
        assert CheckpointManager(folder=tmp_path).load_best_checkpoint(fresh[0]) == step
        assert torch.equal(fresh[0].weight, best)
        assert not fresh[1].state


def test_a_checkpoint_without_a_reward_is_never_the_best() -> None:
    loop = parts()
    manager = CheckpointManager(None, None)
    manager.save_checkpoint(0, *loop, metrics(reward=math.nan))
    with pytest.raises(CheckpointError, match="none was saved with a reward"):
        manager.load_best_checkpoint(*loop)
    manager.save_checkpoint(100, *loop, metrics(reward=-3.0))
    manager.save_checkpoint(200, *loop, metrics(reward=math.nan))
    assert manager.load_best_checkpoint(*loop) == 100


def test_the_next_time_an_older_checkpoint_is_taken() -> None:
    loop = parts()
    manager = CheckpointManager(None, None)
    for step in (0, 100, 200):
        manager.save_checkpoint(step, *loop, metrics())
        learn(*loop)
    assert [manager.rollback(*loop) for _ in range(2)] == [200, 100]
    assert not manager.should_save_checkpoint(150)
    assert manager.should_save_checkpoint(200)


def test_schedulers_of_ones_own_are_kept_too() -> None:
    network = nn.Linear(1, 1)
    scheduler = EntropyScheduler()
    manager = CheckpointManager(None, None)
    scheduler.step(7)
    manager.save_checkpoint(0, network, None, scheduler, metrics())
    scheduler.step(7)
    manager.rollback(network, None, scheduler)
    assert scheduler.taken == 7


def test_faults_are_one_line(tmp_path: Path) -> None:
    loop = parts()
    manager = CheckpointManager(None, None)
    with pytest.raises(CheckpointError, match="no checkpoint to go back to"):
        manager.rollback(*loop)
    with pytest.raises(CheckpointError, match="no best checkpoint"):
        manager.load_best_checkpoint(*loop)
    manager.save_checkpoint(0, *loop, metrics())
    with pytest.raises(CheckpointError, match="does not fit at network"):
        manager.rollback(nn.Linear(5, 5), *loop[1:])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError):
        CheckpointManager(None, tmp_path / "file").save_checkpoint(0, *loop, metrics())
