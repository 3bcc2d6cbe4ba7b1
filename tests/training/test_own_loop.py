"""The loop of the documentation runs as written, and BCell.load opens every checkpoint that a run writes."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from finflow import BCell, ReplayBuffer, load_checkpoint, make_env, save_checkpoint
from finflow.config import dump_config
from finflow.errors import CheckpointError, ConfigError
from finflow.tensor_file import read_tensors
from finflow.training.trainer import FinFlowTrainer
from tests.training.test_on_policy_phase import SMALL
from tests.training.whole_trainings import Make, checkpoint_of, train_through

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "api.md"


@pytest.fixture(scope="module")
def trainer(shared: Make) -> FinFlowTrainer:
    """A run with checkpoints of both phases."""
    return train_through(shared(train__checkpoint_updates=5, train__max_checkpoints=50, train__online_episodes=4))


def test_the_loop_of_the_documentation_runs_as_written(
    trainer: FinFlowTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (loop,) = [block for block in blocks if "ReplayBuffer" in block]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "demo.yaml").write_text(dump_config(trainer.config), "utf-8")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "RUN").symlink_to(trainer.run_folder)
    names: dict[str, object] = {}
    exec(compile(loop, str(PAGE), "exec"), names)
    again = BCell.load(tmp_path / "mine.safetensors")
    agent = names["agent"]
    assert isinstance(agent, BCell)
    before = BCell.load(trainer.run_folder / "models" / "checkpoint_pretrained.safetensors").policy.state_dict()
    for name, tensor in agent.policy.state_dict().items():
        assert torch.equal(tensor, again.policy.state_dict()[name])
    assert any(not torch.equal(before[name], tensor) for name, tensor in agent.policy.state_dict().items())


def test_every_checkpoint_of_a_run_is_opened(trainer: FinFlowTrainer) -> None:
    models = sorted((trainer.run_folder / "models").glob("*.safetensors"))
    phases = set()
    for path in models:
        tensors, facts = read_tensors(path)
        agent, phase = BCell.load(path), facts["training"]["counters"]["phase"]
        phases.add(phase)
        owner = "learner" if phase == "offline" else "bcell"
        for name, tensor in agent.policy.state_dict().items():
            assert torch.equal(tensor, tensors[f"{owner}/policy/{name}"])
        value = "value" if phase == "offline" else "behaviour_value"
        for name, tensor in agent.behaviour_value.state_dict().items():
            assert torch.equal(tensor, tensors[f"{owner}/{value}/{name}"])
    assert phases == {"offline", "online"}


@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_checkpoints_of_other_algorithms_are_opened_too(algorithm: str, tiny: Make) -> None:
    keys = {**SMALL, "online__algorithm": algorithm, "out_of_fold__blocks": 2, "bcell__cql_mode": "lagrange"}
    trainer = FinFlowTrainer(tiny(**keys, bcell__averaging__kind="ema"))
    trainer.train_iql()
    trainer._hand_over(trainer._begin())
    trainer._begin().checkpoint()
    for path in (trainer.run_folder / "models").glob("*.safetensors"):
        assert BCell.load(path).average is not None


def test_a_buffer_holds_the_last_transitions_in_scaled_units(trainer: FinFlowTrainer) -> None:
    env = make_env(trainer.config, num_envs=3)
    buffer = ReplayBuffer(capacity=7, reward_scale=0.5)
    observation, _ = env.reset(seed=0)
    for step in range(4):
        action = np.full((3, env.process.n_weights), 1.0 / env.process.n_weights)
        buffer.push(observation, action, np.full(3, float(step)), observation, np.zeros(3), np.zeros(3))
    assert len(buffer) == 7
    batch = buffer.sample(200)
    assert set(batch.rewards.tolist()) == {2.0, 4.0, 6.0}  # step 0 is gone, and but one of step 1 is left
    assert batch.both.assets.shape[0] == 400
    assert batch.next_states.portfolio.shape[0] == 200


def test_done_is_taken_for_termination_and_said_once() -> None:
    observation = {"assets": np.ones((2, 4)), "market": np.zeros(3), "portfolio": np.zeros(6)}
    buffer = ReplayBuffer(10)
    with pytest.warns(UserWarning, match="done is taken for termination"):
        buffer.push(observation, [0.5, 0.5, 0.0], 0.0, observation, True)
    with warnings.catch_warnings(action="error"):
        for done in (False, True):
            buffer.push(observation, [0.5, 0.5, 0.0], 0.0, observation, done)
    assert 0.5 < buffer.sample(1000).outcomes.terminated.float().mean() < 0.8  # two of three


def test_the_state_of_an_agent_is_taken_over_by_another(trainer: FinFlowTrainer, tmp_path: Path) -> None:
    """As a dictionary, and through a file of one's own; one that does not fit changes nothing."""
    agent, path = trainer.agent, tmp_path / "mine.safetensors"
    other = BCell.load(checkpoint_of(trainer, "latest"))
    save_checkpoint({"agent": agent.state_dict(), "step": 3}, path)
    for parameter in other.policy.parameters():
        parameter.data.add_(1.0)
    other.load_state_dict(load_checkpoint(path)["agent"])
    assert all(torch.equal(mine, other.state_dict()[name]) for name, mine in agent.state_dict().items())
    with pytest.raises(CheckpointError, match=r"the state does not fit this finflow: .* is missing"):
        other.load_state_dict({})


def test_wrong_shapes_are_one_line() -> None:
    observation = {"assets": np.ones((2, 4)), "market": np.zeros(3), "portfolio": np.zeros(6)}
    buffer = ReplayBuffer(10)
    with pytest.raises(ConfigError, match="empty"):
        buffer.sample(4)
    with pytest.raises(ConfigError, match="an action has 3 weights"):
        buffer.push(observation, [0.5, 0.5], 0.0, observation, False, False)
    buffer.push(observation, [0.5, 0.5, 0.0], 0.0, observation, False, False)
    wider = {**observation, "market": np.zeros(4)}
    with pytest.raises(ConfigError, match="now/market has the shape"):
        buffer.push(wider, [0.5, 0.5, 0.0], 0.0, wider, False, False)
    with pytest.raises(ConfigError, match="at least 1 transition"):
        ReplayBuffer(0)
