"""Agents that learn from pairs by DPO or SimPO: their file is judged and traded, and says what it learned from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from finflow.agent.networks.decision import Blend
from finflow.agent.networks.policy_ensemble import PolicyEnsemble
from finflow.cli import main
from finflow.preferences.judged_pairs import judge_pairs, synthetic_judge
from finflow.preferences.pairs import SegmentMarket, write_pairs
from finflow.tensor_file import read_tensors, write_tensors
from finflow.training.checkpoints.checkpoint_reader import policy_of, read_checkpoint
from finflow.training.checkpoints.reference_policy import policy_tensors
from finflow.training.data.training_data import prepare
from finflow.training.trainer import FinFlowTrainer
from tests.commands import refusal
from tests.training.whole_trainings import latest, tiny_in

CPU = torch.device("cpu")
KEYS = ("preferences.policy.learning_rate=0.003", "preferences.policy.dpo_beta=0.05")
OPTIONS = [word for key in KEYS for word in ("--set", key)]


pytestmark = pytest.mark.usefixtures("few_epochs")


class Trained(NamedTuple):
    """A checkpoint of the offline phase, and pairs of its market."""

    run: Path
    pairs: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("preferred")
    config = tiny_in(folder)(
        preferences__judge__strategies=["equal-weight"], preferences__judge__random=8, preferences__judge__length=8
    )
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    trainer._begin().checkpoint()
    data = prepare(config)
    market = SegmentMarket(data.process, data.split.train, config.evaluation)
    judge = synthetic_judge(lambda path: float(path.filled[:, -1].mean()))  # the more cash, the better
    made = judge_pairs(market, judge, 150, config.preferences.judge, seed=0)
    write_pairs(folder / "pairs.jsonl", made.pairs)
    return Trained(latest(trainer), folder / "pairs.jsonl")


def command(trained: Trained, output: Path, *options: str) -> list[str]:
    files = ["--learn", str(trained.pairs), "--resume", str(trained.run), "--output", str(output)]
    return ["--mode", "prefer", *files, *OPTIONS, *options]


def test_an_agent_that_learned_from_pairs_is_backtested_and_not_trained_on(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = tmp_path / "agent.safetensors"
    assert main(command(trained, agent, "--method", "dpo")) == 0
    said = capsys.readouterr().out
    assert "held out, before: accuracy 0.500" in said
    assert f"agent: {agent}" in said
    again = tmp_path / "again.safetensors"
    assert main(command(trained, again, "--method", "dpo")) == 0
    assert again.read_bytes() == agent.read_bytes()
    found = read_checkpoint(agent).facts["preferences"]
    assert (found["method"], found["seed"], found["settings"]["dpo_beta"]) == ("dpo", 0, 0.05)
    assert found["divergence"] > 0.0
    assert main(["--mode", "backtest", "--resume", str(agent)]) == 0
    page = (tmp_path / "reports" / "report.html").read_text("utf-8")
    assert "dpo on" in page
    assert main(["--mode", "inspect", str(agent)]) == 0
    assert "learned from preferences" in refusal(capsys, "--mode", "train", "--resume", str(agent))


def test_wrong_commands_are_one_line_and_write_nothing(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "agent.safetensors"
    for options, said in (
        ((), "--resume) with --learn and --method dpo or simpo alone"),
        (("--method", "ppo"), "'ppo' is not one of reward-model, dpo, simpo"),
        (("--method", "dpo", "--set", "bcell.gamma=0.5"), "bcell.gamma belongs to training"),
        (("--method", "dpo", "--set", "preferences.policy.dpo_beta=0"), "dpo_beta"),
    ):
        assert said in refusal(capsys, *command(trained, output, *options))
    without = ["--mode", "prefer", "--learn", str(trained.pairs), "--output", str(output), "--method", "simpo"]
    assert "needs --resume" in refusal(capsys, *without)
    asked = ["--mode", "prefer", "--judge", "calmar", "--output", str(output), "--method", "dpo"]
    assert "--method belongs to --learn" in refusal(capsys, *asked)
    assert not output.exists()


@pytest.mark.parametrize("blend", ["none", "equal-weight"])
def test_an_agent_of_several_networks_is_written_as_it_decides(trained: Trained, tmp_path: Path, blend: str) -> None:
    """Every network that decides is kept under its own name, in the blend that was decided on."""
    tensors, facts = read_tensors(trained.run)
    own = {name.removeprefix("learner/policy/"): t for name, t in tensors.items() if name.startswith("learner/policy/")}
    noise = torch.Generator().manual_seed(0)
    places = ("bcell/policy/", "bcell/members/0.", "bcell/members/1.", "bcell/prior/")
    crafted = {
        f"{place}{n}": t + 0.05 * torch.randn(t.shape, generator=noise) for place in places for n, t in own.items()
    }
    if blend != "none":
        crafted["bcell/blend"] = Blend(0.6, blend, (3, 0.5)).to_tensor(CPU)
    write_tensors(tmp_path / "before.safetensors", crafted, facts)
    checkpoint = read_checkpoint(tmp_path / "before.safetensors")
    policy = policy_of(checkpoint, CPU)
    assert isinstance(policy, PolicyEnsemble) == (blend != "none")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.01
    written = policy_tensors(policy)
    used = {"none": places[:1], "equal-weight": places[:3]}[blend]
    assert {name for name in crafted if name.startswith(used)} == set(written) - {"bcell/blend"}
    write_tensors(tmp_path / "after.safetensors", written, facts)
    read = policy_of(read_checkpoint(tmp_path / "after.safetensors"), CPU)
    assert read.blend == policy.blend
    for one, other in zip(read.parameters(), policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_agent_that_holds_its_reference_portfolio_is_refused(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, facts = read_tensors(trained.run)
    blend = Blend(0.0, "inverse-volatility", (3, 0.5)).to_tensor(CPU)
    write_tensors(tmp_path / "held.safetensors", {**tensors, "bcell/blend": blend}, facts)
    held = trained._replace(run=tmp_path / "held.safetensors")
    said = refusal(capsys, *command(held, tmp_path / "agent.safetensors", "--method", "dpo"))
    assert "holds the portfolio inverse-volatility" in said
    assert "models/checkpoint_pretrained.safetensors" in said
