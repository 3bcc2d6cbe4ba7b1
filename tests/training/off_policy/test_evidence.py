"""Evidence of a training: judged once, kept in the agent's file, the same bits after a stop and on two cores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.agent.batch import states_of
from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.decision import REFERENCES, Blend
from finflow.agent.networks.policy import blended
from finflow.config import Config
from finflow.errors import TrainingError
from finflow.tensor_file import read_tensors
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.phases import finetune as phase
from finflow.training.phases.finetune import stage_updates
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import WITH_BLOCKS, Make, best, latest, train_through

CPU = torch.device("cpu")
UPDATES = 8  # 12 episodes of 20 decisions, 32 decisions an update
Trained = Any


def check_same(path: Path, other: Path) -> None:
    """Hold all of two states against each other, bit for bit; their configurations name other folders."""
    (tensors, facts), (others, told) = read_tensors(path), read_tensors(other)
    assert tensors.keys() == others.keys()
    assert [name for name, tensor in tensors.items() if not torch.equal(tensor, others[name])] == []
    assert facts["training"] == told["training"]


def test_the_last_stage_is_always_kept() -> None:
    assert stage_updates(985, 6) == [165, 329, 493, 657, 821, 985]
    assert stage_updates(3, 6) == [1, 2, 3]
    assert stage_updates(0, 6) == []


@pytest.mark.parametrize("when", [7 + 2, 7 + 3 + 4])
def test_a_resumed_run_equals_one_that_never_stopped(
    when: int, trained: Trained, tiny: Make, stop_training: Callable[[Config, int], FinFlowTrainer]
) -> None:
    """Stopped while portfolios warm up, and with the blocks in flight: replays, portfolios, generators and looks."""
    stopped = stop_training(tiny(**WITH_BLOCKS), when)  # an epoch of 7 updates comes first, then 3 warm-up steps
    counters = read_checkpoint(latest(stopped)).counters
    assert (counters["phase"], counters["vector_step"] < 3 + UPDATES) == ("online", True)
    resumed = train_through(tiny(**WITH_BLOCKS), resume=stopped.run_folder)
    for path in (latest, best):
        check_same(path(resumed), path(trained.trainer))
    rows = [(one.run_folder / "metrics.jsonl").read_bytes() for one in (resumed, trained.trainer)]
    assert rows[0] == rows[1]


def test_the_finished_agent_is_judged_once_and_says_what_it_holds(trained: Trained) -> None:
    trainer = trained.trainer
    rows = [json.loads(line) for line in (trainer.run_folder / "metrics.jsonl").read_text().splitlines()]
    judged = [row for row in rows if "validation_sharpe" in row and row["phase"] == "online"]
    assert len(judged) == 2  # the policy at the hand-over, and the finished agent
    assert {"confidence", "out_of_fold_t", "training_advantage_slope"} <= set(judged[-1])
    checkpoint = read_checkpoint(best(trainer))
    assert checkpoint.counters["update"] == trainer._begin().state.counters.update
    assert "out of fold t =" in (trainer.run_folder / "console.log").read_text()
    before = latest(trainer).read_bytes()
    again = train_through(trained.make(**WITH_BLOCKS), resume=trainer.run_folder)
    assert len((again.run_folder / "metrics.jsonl").read_text().splitlines()) == len(rows)  # not a second time
    assert latest(again).read_bytes() == before


def test_the_policies_of_the_blocks_and_the_blend_are_part_of_the_agent_s_one_file(
    trained: Trained, tmp_path: Path
) -> None:
    """They decide with the agent's own in every way in which an agent is opened."""
    trainer = trained.trainer
    agent, process = trainer.agent, trainer.training_data.process
    assert agent.blend is not None
    assert agent.members is not None
    agent.blend.copy_(Blend(0.7, "inverse-volatility", trainer.training_data.log_volatility).to_tensor(CPU))
    learned = [one.agent.policy.state_dict() for one in trained.learners.of_blocks]
    for member, own in zip(agent.members, learned, strict=True):
        member.load_state_dict(own)
    trainer._begin().checkpoint()
    saved = read_checkpoint(trainer.run_folder)
    observation = process.observe(process.start(np.arange(process.first_bar + 50, process.first_bar + 60)))
    states = states_of(observation, CPU)
    with torch.no_grad():
        alone = [blended(one, Blend.from_tensor(agent.blend))(states) for one in (agent.policy, *agent.members)]
        mean = torch.stack([one.distribution.centre() for one in alone]).mean(dim=0).numpy()
        opened = saved.agent.policy(CPU)(states).distribution.centre().numpy()
    assert np.allclose(agent.act(observation), mean, atol=1e-6)  # float32
    assert not np.allclose(alone[0].distribution.centre().numpy(), mean, atol=1e-4)  # the others count
    agent.save(tmp_path / "agent.safetensors")
    for one in (agent, BCell.load(saved.path), BCell.load(tmp_path / "agent.safetensors")):
        assert np.array_equal(one.act(observation), opened)
    explained = agent.explain(observation)
    mixed = np.einsum("be,bek->bk", explained["gate"], explained["experts"])
    assert mixed == pytest.approx(explained["aim"], abs=1e-6)  # float32
    assert explained["gate"][:, -1] == pytest.approx(0.3)  # the reference's share


def test_a_block_s_learner_that_breaks_is_caught_by_the_guard(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    original = phase.update_group

    def broken(*given: Any) -> Any:
        found = original(*given)
        metrics = found[-1]
        if "actor_loss" in metrics:  # the agent's own is the first
            metrics["actor_loss"] = metrics["actor_loss"] * float("nan")
        return found

    monkeypatch.setattr(phase, "update_group", broken)
    trainer = FinFlowTrainer(tiny(**WITH_BLOCKS))
    trainer.train_iql()
    with pytest.raises(TrainingError, match="skipped"):
        trainer.finetune()


def test_the_report_shows_what_holds_out_of_sample(
    tiny: Make, quick_reports: None, read_page: Callable[[str], Any], fits_schema: Callable[..., list[str]]
) -> None:
    """The validation window has room for the critics' judgement: 64 decisions follow each action."""
    keys = WITH_BLOCKS | {"market__train_end": "2011-06-30"}
    outcome = FinFlowTrainer(tiny(**keys)).train()
    content = json.loads((outcome.run_folder / "reports" / "metrics.json").read_text())
    assert fits_schema(content) == []
    found = content["out_of_fold"]
    assert found["reference"] in REFERENCES
    assert 0.0 <= found["confidence"] <= found["confidence_unshrunk"] <= 1.0
    assert set(found["critics"]) == {"training", "validation"}
    page = read_page(outcome.report.read_text())
    shown = {number.path: float(number.value) for number in page.numbers if number.path.startswith("out_of_fold/")}
    assert shown["out_of_fold/confidence"] == found["confidence"]
    assert shown["out_of_fold/critics/validation/slope"] == found["critics"]["validation"]["slope"]
    words = " ".join(page.words)
    nothing = "Nothing was found that holds out of sample; this agent holds"
    assert (nothing in words) == (found["confidence"] == 0.0)
