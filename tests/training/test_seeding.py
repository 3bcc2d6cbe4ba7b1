"""Hand-overs: after each offline method, and from a file, the online phase begins with what the offline phase left."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.agent.networks.policy import ExpertPolicy
from finflow.cli.exit_status import run_safely
from finflow.training.off_policy.evidence import OutOfFold
from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import write_market
from tests.training.whole_trainings import WITH_BLOCKS, Make, checkpoint_of, train_through


def counted_stages(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Stages that are kept for the evidence from here on: each with the policies of the agent and of two blocks."""
    kept: list[int] = []
    keep = OutOfFold.keep

    def counted(evidence: OutOfFold, policies: Sequence[ExpertPolicy]) -> None:
        kept.append(len(policies))
        keep(evidence, policies)

    monkeypatch.setattr(OutOfFold, "keep", counted)
    return kept


#: Of an offline learner, by its names in the agent.
PARTS = {"policy": "policy", "critic": "critic", "target_critic": "target_critic", "behaviour_value": "value"}


def parts_of(learner: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Copies of its networks' tensors."""
    parts = {own: getattr(learner, part).state_dict() for own, part in PARTS.items()}
    return {own: {name: tensor.clone() for name, tensor in state.items()} for own, state in parts.items()}


@pytest.mark.parametrize("method", ["iql", "td3bc", "bc", "none"])
def test_the_agent_begins_as_every_method_left_it(
    method: str, shared: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fitted critics in each case: without a method they are fitted, and one line says so."""
    trainer = FinFlowTrainer(shared(**WITH_BLOCKS, offline__method=method, train__online_episodes=4))
    before = parts_of(trainer._begin().state.learner)
    trainer.train_iql()
    left = parts_of(trainer._begin().state.learner)
    moved = {name: any(not torch.equal(left[name][n], t) for n, t in state.items()) for name, state in before.items()}
    assert moved == dict.fromkeys(PARTS, True) | {"policy": method != "none"}
    trainer._hand_over(trainer._begin())
    for name, state in left.items():
        handed = getattr(trainer.agent, name).state_dict()
        assert all(torch.equal(handed[n], tensor) for n, tensor in state.items()), name
    stages = counted_stages(monkeypatch)
    assert np.isfinite(list(trainer.finetune().values())).all()
    assert len(stages) == (2 if method == "none" else 3)  # initial weights are no stage
    said = capsys.readouterr().out.count("critics alone are fitted to the behaviour")
    assert said == (1 if method == "none" else 0)


def test_the_script_goes_online_from_a_file(tiny: Make, tmp_path: Path) -> None:
    """The bits of the whole training, whose offline phase is read from its file."""
    config = tiny(**WITH_BLOCKS, train__online_episodes=4)
    whole = train_through(config)
    other = tmp_path / "other"
    file = checkpoint_of(whole, "pretrained")
    script = Path(__file__).parents[2] / "scripts" / "train.py"
    arguments = ["--mode", "online", "--pretrained", str(file), "--set", f"output.logs_dir={other}"]
    assert run_safely(runpy.run_path(str(script))["main"], arguments) == 0
    (run,) = (path for path in other.iterdir() if path.is_dir())
    ours = FinFlowTrainer(config, resume=run).agent.policy.state_dict()
    assert all(torch.equal(ours[name], tensor) for name, tensor in whole.agent.policy.state_dict().items())


def test_networks_from_another_market_are_no_stage(tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks' pretrained policies learned in this market: they are no evidence about one that came from another."""
    first = FinFlowTrainer(tiny(**WITH_BLOCKS, train__online_episodes=2))
    first.train_iql()
    first._hand_over(first._begin())
    prices = write_market(tmp_path / "others.csv", seed=2, assets=[f"B{n}" for n in range(6)])
    config = tiny(**WITH_BLOCKS, train__online_episodes=2, market__path=str(prices))
    other = FinFlowTrainer(config, pretrained=checkpoint_of(first, "pretrained"))
    stages = counted_stages(monkeypatch)
    other.finetune()
    assert len(stages) == 2
