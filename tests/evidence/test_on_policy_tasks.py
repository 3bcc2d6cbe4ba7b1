"""Evidence on on-policy learning: its small trainings, and its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from finflow.agent.on_policy.on_policy_settings import OnPolicySettings
from finflow.config import load_config
from finflow.errors import EvidenceError
from scripts.evidence import on_policy_tasks
from scripts.evidence.on_policy_tasks import (
    TASKS,
    measure_task,
    on_policy_table,
    on_policy_variants,
    train_peers,
)


def test_a_training_is_measured_twice_and_its_table_names_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_policy_tasks, "EPISODES", 2)
    monkeypatch.setattr(on_policy_tasks, "LOOKS", 2)
    task = TASKS[0]
    measured = measure_task(replace(task, decisions=2 * task.rollout), load_config(None, {}, environ={}))
    result = measured | {"variant": f"on-policy-{task.key}", "seed": 0}
    assert [decisions for decisions, _, _ in result["curve"]] == [task.rollout, 2 * task.rollout]
    assert result["kl"] > 0.0
    peer = {"variant": "pendulum-ppo", "final": -200.0, "seconds": {"learning": 3.0}, "version": "2.9.2"}
    table = on_policy_table([result], [peer, peer | {"final": -100.0}])
    assert "cartpole-ppo" in table
    assert "-150.0 ± 50.0" in table
    assert "rollouts of 128" in table


def test_every_setting_is_one_that_there_is() -> None:
    assert all(isinstance(task.on_policy(), OnPolicySettings) for task in TASKS)
    assert len({variant.name for variant in on_policy_variants(2)}) == len(TASKS)


def test_a_peer_without_a_result_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"sb3_on_policy\.py ended without a result"):
        train_peers(Path("/bin/false"), 1, tmp_path / "page.json")
    assert not list(tmp_path.iterdir())
