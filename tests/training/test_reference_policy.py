"""Fine-tuning against a frozen reference: the penalty holds the policy, beta follows the KL, the phase ends early."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from finflow.agent.on_policy.kl_controller import DoublingKL, FixedKL, ProportionalKL
from finflow.cli import main
from finflow.config import dump_config
from finflow.config.online_section import OnlineConfig
from finflow.errors import CheckpointError
from finflow.tensor_file import read_tensors, write_tensors
from finflow.training.on_policy.reference_policy import ReferenceControl
from finflow.training.trainer import FinFlowTrainer
from tests.training.test_guarding import events_of
from tests.training.test_on_policy_phase import SMALL
from tests.training.whole_trainings import Make, Stop, latest, train_through

FAST = {"bcell__actor_lr": 3e-2, "online__entropy_coefficient": 0.0, "online__critic_only_rollouts": 0}
SAC = {"online__algorithm": "sac", "train__critic_only_updates": 0, "bcell__anchor__weight": 0.0}


def apart(trainer: FinFlowTrainer) -> float:
    """KL of the trained policy from the reference, nats per free dimension, on the guard's recorded states."""
    run = trainer._begin()
    assert run.probe is not None
    with torch.no_grad():
        one, other = (policy(run.probe).distribution for policy in (trainer.agent.policy, trainer.agent.prior))
    change = one.log_scale - other.log_scale
    shift = (one.location - other.location) / other.log_scale.exp()
    return float((0.5 * ((2 * change).exp() + shift.square() - 1) - change).mean())


def test_the_controllers_follow_their_formulas() -> None:
    def control(name: str, **keys: Any) -> ReferenceControl:
        values = {"algorithm": "ppo", "reference_control": name, "reference_beta": 0.1, **keys}
        return ReferenceControl(OnlineConfig.model_validate(values), episode_length=100)

    fixed, adaptive, doubling = (control(name) for name in ("fixed", "adaptive", "doubling"))
    kinds = [type(one.controller) for one in (fixed, adaptive, doubling)]
    assert kinds == [FixedKL, ProportionalKL, DoublingKL]
    for one in (fixed, adaptive, doubling):
        one.look(0.066, decisions=2048)  # 6.6 nats an episode, the target is 6
    assert fixed.beta == 0.1
    assert adaptive.beta == pytest.approx(0.1 * (1.0 + 0.1 * 2048 / 10_000))
    assert doubling.beta == 0.1  # within 1.5 times of it
    for _ in range(9):
        adaptive.look(1.0, 10_000)
        doubling.look(0.1, 2048)
    assert doubling.beta == 0.5  # and held there
    assert adaptive.beta == pytest.approx(0.1 * (1.0 + 0.1 * 2048 / 10_000) * 1.2**9)


def test_several_looks_beyond_twice_the_target_end_the_phase() -> None:
    keys = OnlineConfig.model_validate({"algorithm": "ppo", "reference_target": 1.0, "reference_looks": 3})
    control = ReferenceControl(keys, episode_length=10)
    assert [control.look(value, 64) is None for value in (0.3, 0.3, 0.1, 0.3, 0.3)] == [True] * 5
    reason = control.look(0.3, 64)
    assert reason is not None
    assert "3 nats per free dimension and episode, over twice its target of 1 at 3 looks in a row" in reason
    assert control.stopped


@pytest.mark.parametrize("algorithm", ["ppo", "trpo"])
def test_a_penalty_holds_an_on_policy_algorithm_to_its_reference(algorithm: str, tiny: Make) -> None:
    """Without it the entropy draws the policy away."""
    keys = {
        **SMALL,
        **FAST,
        "online__algorithm": algorithm,
        "online__entropy_coefficient": 0.3,
        "bcell__actor_lr": 1e-2,
    }
    keys |= {"online__rollout": 256, "online__portfolios": 8, "online__minibatch": 64, "online__trust_region": 0.05}
    keys |= {"train__online_episodes": 100, "train__validation_updates": 10_000, "online__reference_looks": 1000}
    keys |= {"online__reference": "pretrained", "online__reference_control": "fixed"}
    free, held = (apart(train_through(tiny(**keys, online__reference_beta=beta))) for beta in (1e-9, 10.0))
    assert free > 4.0 * held


def test_a_penalty_holds_soft_actor_critic_to_its_reference_and_is_not_stored(tiny: Make) -> None:
    keys = {**SAC, "online__reference": "pretrained", "online__reference_control": "fixed", "bcell__actor_lr": 1e-2}
    keys |= {"online__reference_looks": 1000}
    loose, tight = (train_through(tiny(**keys, online__reference_beta=beta)) for beta in (1e-9, 100.0))
    assert apart(tight) < 0.2 * apart(loose)
    world = tight._begin().state.world
    assert world is not None
    assert float(world.replay.columns["reward"].abs().max()) < 1.0  # raw log returns, without a penalty


@pytest.mark.parametrize("keys", [{**SMALL, **FAST}, {**SAC, "bcell__actor_lr": 1e-2}])
def test_the_early_stop_is_an_event_of_the_guard_and_ends_the_phase(keys: dict[str, Any], tiny: Make) -> None:
    target = {"online__reference": "pretrained", "online__reference_target": 1e-6, "online__reference_looks": 2}
    config = tiny(**keys, **target, online__reference_control="fixed", online__reference_beta=1e-9)
    trainer = train_through(config)
    (event,) = [row for row in events_of(trainer) if row["signal"] == "reference"]
    assert "the online phase ends here" in event["message"]
    facts = read_tensors(latest(trainer))[1]["training"]
    assert facts["reference"]["stopped"]
    before = facts["counters"]
    again = FinFlowTrainer(config, resume=trainer.run_folder)
    again.finetune()
    assert read_tensors(latest(again))[1]["training"]["counters"] == before  # it is over


def test_soft_actor_critic_with_a_reference_resumes_to_the_same_bits(tiny: Make, stop_training: Stop) -> None:
    keys = {"online__reference": "pretrained", "online__algorithm": "sac"}
    whole = train_through(tiny(**keys))
    stopped = stop_training(tiny(**keys), 14 + 20 + 30)
    resumed = FinFlowTrainer(tiny(**keys), resume=stopped.run_folder)
    resumed.finetune()
    for name in ("models/checkpoint_latest.safetensors", "metrics.jsonl"):
        assert (resumed.run_folder / name).read_bytes() == (whole.run_folder / name).read_bytes(), name


def test_a_file_is_the_reference_and_a_resume_does_not_need_it(tiny: Make) -> None:
    first = train_through(tiny(**SMALL, bcell__hidden_dim=16))
    path = latest(first)
    keys = {**SMALL, "online__reference": str(path), "train__seed": 1}
    trainer = train_through(tiny(**keys))
    reference = first.agent.policy.state_dict()
    assert all(torch.equal(reference[name], tensor) for name, tensor in trainer.agent.prior.state_dict().items())
    path.unlink()
    FinFlowTrainer(tiny(**keys), resume=trainer.run_folder).finetune()


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


def test_a_blended_agent_is_no_reference(tiny: Make) -> None:
    path = latest(train_through(tiny(online__algorithm="rollouts", bcell__rollouts__blocks=1)))
    tensors, facts = read_tensors(path)
    tensors["bcell/blend"] = torch.tensor([0.5, 0.0, 0.0, 1.0], dtype=torch.float64)
    write_tensors(path, tensors, facts)
    with pytest.raises(CheckpointError, match="is blended with a fixed portfolio"):
        FinFlowTrainer(tiny(**SMALL, online__reference=str(path)))
