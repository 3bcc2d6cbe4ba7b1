"""Fine-tuning against a frozen reference, and agents that learn from pairs: what they are held to, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.decision import Blend
from finflow.agent.networks.distributions import log_portfolio
from finflow.agent.networks.policy_ensemble import FrozenPolicy, PolicyEnsemble
from finflow.cli import main
from finflow.config import dump_config
from finflow.config.learning_sections import OnlineConfig
from finflow.errors import CheckpointError
from finflow.preferences.judged_pairs import judge_pairs, synthetic_judge
from finflow.preferences.pairs import SegmentMarket, write_pairs
from finflow.tensor_file import read_tensors, write_tensors
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.reference_policy import ReferenceControl, policy_tensors, read_reference
from finflow.training.data.training_data import prepare
from finflow.training.on_policy.on_policy_market import Reference
from finflow.training.trainer import FinFlowTrainer
from tests.commands import refusal
from tests.training.test_guarding import events_of
from tests.training.test_on_policy_phase import SMALL, new_collector
from tests.training.whole_trainings import (
    WITH_BLOCKS,
    Make,
    Stop,
    check_same_files,
    checkpoint_of,
    latest,
    tiny_in,
    train_through,
)

pytestmark = pytest.mark.usefixtures("few_epochs")
CPU = torch.device("cpu")
FAST = {"online__learning_rate": 3e-2, "online__entropy_coefficient": 0.0}


def apart(trainer: FinFlowTrainer) -> float:
    """KL of the trained policy from what it is held to, nats per free dimension, on the guard's recorded states."""
    run = trainer._begin()
    assert run.probe is not None
    with torch.no_grad():
        one, other = (policy(run.probe).distribution for policy in (trainer.agent.policy, trainer.agent.held_to))
    change = one.log_scale - other.log_scale
    shift = (one.location - other.location) / other.log_scale.exp()
    return float((0.5 * ((2 * change).exp() + shift.square() - 1) - change).mean())


def test_the_coefficient_follows_its_formula_and_several_looks_beyond_twice_the_target_end_the_phase() -> None:
    keys = OnlineConfig.model_validate({"algorithm": "ppo", "reference_beta": 0.1})
    control = ReferenceControl(keys, episode_length=100)
    control.update(0.066, decisions=2048)  # 6.6 nats an episode, the target is 6
    assert control.controller.beta == pytest.approx(0.1 * (1.0 + 0.1 * 2048 / 10_000))
    for _ in range(9):
        control.update(1.0, 10_000)
    assert control.controller.beta == pytest.approx(0.1 * (1.0 + 0.1 * 2048 / 10_000) * 1.2**9)
    keys = OnlineConfig.model_validate({"algorithm": "ppo", "reference_target": 1.0})
    control = ReferenceControl(keys, episode_length=10)
    assert [control.update(value, 64) is None for value in (0.3, 0.3, 0.1, 0.3, 0.3)] == [True] * 5
    reason = control.update(0.3, 64)
    assert reason is not None
    assert "3 nats per free dimension and episode, over twice its target of 1 at 3 looks in a row" in reason
    assert control.stopped


def test_the_early_stop_is_an_event_of_the_guard_and_ends_the_phase(tiny: Make) -> None:
    target = {"online__reference": "pretrained", "online__reference_target": 1e-6, "train__online_episodes": 12}
    config = tiny(**{**SMALL, **FAST, **target}, online__reference_beta=1e-9)
    trainer = train_through(config)
    (event,) = [row for row in events_of(trainer) if row["signal"] == "reference"]
    assert "the online phase ends here" in event["message"]
    facts = read_tensors(latest(trainer))[1]["training"]
    assert facts["reference"]["stopped"]
    before = facts["counters"]
    again = train_through(config, resume=trainer.run_folder)
    assert read_tensors(latest(again))[1]["training"]["counters"] == before  # it is over


def test_a_reference_that_does_not_fit_is_one_line_and_writes_nothing(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = latest(train_through(tiny(**SMALL, bcell__hidden_dim=32)))
    features = latest(train_through(tiny(**SMALL, features__filters="momentum")))
    runs = sorted((tmp_path / "logs").iterdir())
    capsys.readouterr()
    for path, words in (
        (wide, "networks of other sizes than configured"),
        (features, "was trained on other features"),
        (tmp_path / "none.safetensors", "does not exist"),
    ):
        config = tmp_path / "config.yaml"
        config.write_text(dump_config(tiny(**SMALL, online__reference=str(path))), "utf-8")
        assert main(["--mode", "train", "--config", str(config)]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
        assert sorted((tmp_path / "logs").iterdir()) == runs


#: Blends that an agent of the default training may be deployed with, as its checkpoint keeps them.
DEPLOYED = {
    "undecided": Blend.to_tensor(Blend(-1.0, "equal-weight", (0, 1.0)), CPU),
    "patient": Blend(0.0, "inverse-volatility", (3, 0.5)).to_tensor(CPU),
    "several": Blend(0.5, "equal-weight", (3, 0.5)).to_tensor(CPU),
}
MEMBERS = {"undecided": 1, "patient": 1, "several": 3}  # of two blocks


@pytest.fixture(scope="module")
def default_agents(shared: Make, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of agents with evidence out of fold, each with a blend of another kind."""
    tensors, facts = read_tensors(latest(train_through(shared(**WITH_BLOCKS))))
    files = {}
    for number, (name, blend) in enumerate(DEPLOYED.items()):
        files[name] = tmp_path_factory.mktemp("agents") / f"checkpoint_{name}.safetensors"
        noise = torch.Generator().manual_seed(number)
        moved = {  # each policy of it decides in its own way
            key: tensor + 0.05 * torch.randn(tensor.shape, generator=noise)
            if key.startswith(("bcell/members/", "bcell/prior/"))
            else tensor
            for key, tensor in tensors.items()
        }
        write_tensors(files[name], moved | {"bcell/blend": blend}, facts)
    return files


@pytest.mark.parametrize("deployed", DEPLOYED)
def test_an_agent_of_the_default_training_is_a_reference_as_it_was_deployed(
    deployed: str, default_agents: dict[str, Path], tiny: Make
) -> None:
    config = tiny(**{**SMALL, "train__online_episodes": 2}, online__reference=str(default_agents[deployed]))
    trainer = train_through(config)
    reference, run = trainer.agent.reference, trainer._begin()
    assert reference is not None
    assert len(reference.policies()) == MEMBERS[deployed]
    assert run.probe is not None
    wanted = read_checkpoint(default_agents[deployed]).agent.policy(CPU)
    if wanted.blend is not None and wanted.blend.reference == "inverse-volatility":
        wanted.blend = wanted.blend._replace(volatility=trainer.training_data.log_volatility)
    for name in ("centre", "log_scale"):
        of_reference, of_file = (getattr(one(run.probe), name) for one in (reference, wanted))
        torch.testing.assert_close(of_reference, of_file, rtol=1e-5, atol=1e-6)
    learner = read_tensors(checkpoint_of(trainer, "pretrained"))[0]
    for name, tensor in trainer.agent.prior.state_dict().items():  # the anchor's is the policy as it was handed over
        assert torch.equal(tensor, learner[f"learner/policy/{name}"])


@pytest.mark.parametrize("deployed", DEPLOYED)
def test_the_reward_is_charged_the_log_ratio_per_free_dimension(
    deployed: str, default_agents: dict[str, Path], tiny: Make
) -> None:
    """On the same draws, with and without a reference; densities are those of the weights."""
    played = []
    for beta in (None, 70.0):
        config = tiny(**SMALL, online__reference=str(default_agents[deployed]))
        collector = new_collector(config)
        policy = read_reference(config, prepare(config), CPU)
        assert policy is not None
        played.append(collector.collect(8, None if beta is None else Reference(policy, beta)))
    (free, free_earnings), (charged, charged_earnings) = played
    assert torch.equal(free.actions, charged.actions)
    states = collector.agent.states(tuple(part.flatten(0, 1) for part in free.observations))
    portfolios = log_portfolio(free.actions.flatten(0, 1)).exp()
    with torch.no_grad():
        own, other = (one(states).distribution.log_density(portfolios) for one in (collector.agent.policy, policy))
    cost = 70.0 * (own - other).view_as(free.log_prob) / free.actions.shape[-1]
    assert float(cost.abs().max()) > 0.2  # ten times what is tolerated
    torch.testing.assert_close(free_earnings.rewards - charged_earnings.rewards, cost, rtol=1e-3, atol=2e-2)


def test_what_an_agent_saved_itself_is_a_reference_too(
    default_agents: dict[str, Path], tiny: Make, tmp_path: Path
) -> None:
    saved = tmp_path / "mine.safetensors"
    BCell.load(default_agents["several"]).save(saved)
    BCell.load(saved).save(saved)  # which keeps the names of its features
    by_checkpoint, by_file = (
        FinFlowTrainer(tiny(**SMALL, online__reference=str(path)))._reference
        for path in (default_agents["several"], saved)
    )
    assert by_checkpoint is not None
    assert by_file is not None
    assert len(by_file.policies()) == MEMBERS["several"]
    for name, tensor in by_checkpoint.state_dict().items():
        assert torch.equal(tensor, by_file.state_dict()[name]), name


@pytest.mark.parametrize(
    ("tensor", "fact", "words"),
    [
        ({}, {"features": None}, "does not say which features"),
        ({}, {"features": {"assets": ["x"], "market": []}}, "was trained on other features"),
        ({"policy/gate.bias": torch.full((5,), float("nan"))}, {}, "contains values that are not finite"),
        ({"blend": torch.ones(3, dtype=torch.float64)}, {}, "does not fit this finflow"),
        ({"policy/gate.bias": torch.zeros(4)}, {}, "does not fit this finflow"),
    ],
)
def test_what_an_agent_saved_is_refused_in_one_line_where_it_is_none(
    tensor: dict[str, torch.Tensor],
    fact: dict[str, Any],
    words: str,
    default_agents: dict[str, Path],
    tiny: Make,
    tmp_path: Path,
) -> None:
    saved = tmp_path / "mine.safetensors"
    BCell.load(default_agents["patient"]).save(saved)
    tensors, facts = read_tensors(saved)
    write_tensors(saved, tensors | tensor, facts | fact)
    with pytest.raises(CheckpointError, match=words) as refused:
        FinFlowTrainer(tiny(**SMALL, online__reference=str(saved)))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("algorithm", "deployed"), [("ppo", "several"), ("trpo", "patient")])
def test_a_training_held_to_a_blended_agent_resumes_to_the_same_bits(
    algorithm: str, deployed: str, default_agents: dict[str, Path], tiny: Make, stop_training: Stop, tmp_path: Path
) -> None:
    """Without the agent's file, and with a rollback's snapshots in memory."""
    path = tmp_path / "agent.safetensors"
    path.write_bytes(default_agents[deployed].read_bytes())
    keys = {**SMALL, "online__algorithm": algorithm, "online__reference": str(path)}
    whole = train_through(tiny(**keys))
    stopped = stop_training(tiny(**keys), 14 + 4)
    path.unlink()
    resumed = train_through(tiny(**keys), resume=stopped.run_folder)
    check_same_files(resumed, whole)
    assert isinstance(resumed.agent.held_to, FrozenPolicy)
    BCell.load(latest(resumed))  # which needs none


def test_a_penalty_holds_the_policy_to_a_blended_agent(
    default_agents: dict[str, Path], tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finflow.training.phases.finetune_on_policy.CRITIC_ONLY_ROLLOUTS", 0)
    keys = {**SMALL, **FAST, "online__learning_rate": 1e-2}
    keys |= {"online__rollout": 128, "online__portfolios": 8, "train__online_episodes": 32}
    keys |= {"train__validation_updates": 10_000, "online__reference_target": 1e6}
    keys |= {"online__reference": str(default_agents["several"])}
    free, held = (apart(train_through(tiny(**keys, online__reference_beta=beta))) for beta in (1e-9, 100.0))
    assert free > 2.0 * held


OPTIONS = ("--set", "preferences.policy.learning_rate=0.003", "--set", "preferences.policy.dpo_beta=0.05")


class Trained(NamedTuple):
    """A checkpoint of the offline phase, and pairs of its market."""

    run: Path
    pairs: Path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("preferred")
    judge = {"preferences__judge__strategies": ["equal-weight"], "preferences__judge__random": 8}
    config = tiny_in(folder)(**judge, objectives__preference__segment=8)
    trainer = FinFlowTrainer(config)
    trainer.train_iql()
    trainer._begin().checkpoint()
    data = prepare(config)
    market = SegmentMarket(data.process, data.split.train, config)
    saver = synthetic_judge(lambda path: float(path.filled[:, -1].mean()))  # the more cash, the better
    made = judge_pairs(market, saver, 150, seed=0)
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
    policy = checkpoint.agent.policy(CPU)
    assert isinstance(policy, PolicyEnsemble) == (blend != "none")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.01
    written = policy_tensors(policy)
    used = {"none": places[:1], "equal-weight": places[:3]}[blend]
    assert {name for name in crafted if name.startswith(used)} == set(written) - {"bcell/blend"}
    write_tensors(tmp_path / "after.safetensors", written, facts)
    read = read_checkpoint(tmp_path / "after.safetensors").agent.policy(CPU)
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
