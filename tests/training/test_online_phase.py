"""The online phase with its options: it resumes to the same bits, and what they are about is as configured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import load_config
from finflow.errors import CheckpointError
from finflow.tensor_file import read_tensors
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.training_data import offline_data, prepare
from finflow.training.off_policy.evidence import OutOfFold
from finflow.training.phases.finetune import offline_store, ramp_share
from finflow.training.phases.pretrain import learning_market
from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import write_market
from tests.training.test_datasets import called
from tests.training.whole_trainings import (
    WITH_BLOCKS,
    Make,
    Stop,
    check_same_files,
    checkpoint_of,
    latest,
    rows_of,
    train_through,
)

CPU = torch.device("cpu")
ALL: dict[str, object] = {
    "train__observation_noise": 0.05,
    "train__actor_ramp_updates": 40,
    "bcell__dropout": 0.1,
    "bcell__anchor__weight": 0.5,
    "bcell__anchor__final": 0.1,
    "bcell__anchor__updates": 30,
    "bcell__averaging__kind": "ema",
    "bcell__averaging__start": 0.3,
    "bcell__averaging__decay": 0.9,
    "offline__group_size": 4,
    "bcell__risk_measure": "cvar",
    "bcell__gamma": 0.9,
    "bcell__cql_mode": "lagrange",
    "bcell__calibration": "returns",
    "bcell__entropy_backup": "relative",
    "bcell__mixed_precision": True,
    "bcell__gradient_checkpointing": True,
    "bcell__online_schedule": "cosine",
}


@pytest.fixture(scope="module")
def whole(shared: Make) -> FinFlowTrainer:
    """Trained once with every option, for tests that change nothing of it."""
    return train_through(shared(**ALL))


@pytest.mark.parametrize("when", [5, 14 + 5 + 10])
def test_with_every_option_a_stop_changes_no_bit(
    whole: FinFlowTrainer, shared: Make, stop_training: Stop, when: int
) -> None:
    stopped = stop_training(shared(**ALL), when)
    resumed = train_through(shared(**ALL), resume=stopped.run_folder)
    check_same_files(resumed, whole)


def test_the_tuned_penalty_and_the_best_score_are_saved(whole: FinFlowTrainer) -> None:
    tensors, state = read_tensors(latest(whole))
    assert tensors["bcell/log_cql_alpha"].item() != pytest.approx(np.log(5.0), abs=1e-6)
    assert "bcell/cql_optimiser/0.exp_avg" in tensors
    scores = [row["validation_risk_value"] for row in rows_of(whole) if "validation_risk_value" in row]
    assert state["training"]["counters"]["best_score"] == max(scores)
    assert any(row.get("validation_risk_value") != row.get("validation_value") for row in rows_of(whole))


def test_the_data_do_not_depend_on_how_they_are_grouped_later(shared: Make) -> None:
    small, large = (prepare(shared(train__seed=3, offline__group_size=size)) for size in (2, 4))
    assert not offline_data(small.config, small).reused
    assert offline_data(large.config, large).reused


def test_the_deployed_policy_is_the_average(whole: FinFlowTrainer) -> None:
    bcell = whole._begin().state.bcell
    assert bcell is not None
    assert bcell.average is not None
    assert bcell.average.count == 23  # 32 updates, from 0.3 of them on
    checkpoint = read_checkpoint(latest(whole))
    deployed, own = checkpoint.agent.policy(CPU), bcell.average.policy.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in deployed.state_dict().items())
    assert not torch.equal(deployed.gate.weight, bcell.policy.gate.weight)
    assert whole.policy is bcell.average.policy
    for wrong in ({"gamma": "x"}, "x", {"cql_mode": "lagrange", "cql_alpha": 0.0}):
        with pytest.raises(CheckpointError, match="how its agent is configured"):
            checkpoint._replace(facts={**checkpoint.facts, "bcell": wrong}).agent.policy(CPU)


def test_rows_of_metrics_say_how_the_training_generalises(whole: FinFlowTrainer) -> None:
    rows = [row for row in rows_of(whole) if "generalisation_train_value" in row]
    online = [row for row in rows if row["phase"] == "online"]
    assert len(rows) > len(online) > 2
    assert "generalisation_kl" not in rows[0]
    assert online[0]["generalisation_kl"] == 0.0
    assert online[-1]["generalisation_kl"] > 0.0
    for row in rows:
        train, validation = (row[f"generalisation_{place}_value"] for place in ("train", "validation"))
        assert np.isfinite([train, validation]).all()
        assert row["generalisation_gap"] == pytest.approx(train - validation)


def test_the_policys_rate_rises_from_where_it_may_move() -> None:
    keys = {"train.critic_only_updates": 10, "train.actor_ramp_updates": 4}
    config = load_config(None, keys, environ={})
    assert [ramp_share(config, done) for done in (0, 9, 10, 11, 13, 14, 500)] == [0.0, 0.0, 0.25, 0.5, 1.0, 1.0, 1.0]
    without = load_config(None, keys | {"train.actor_ramp_updates": 0}, environ={})
    assert ramp_share(without, 0) == 1.0


def test_raw_returns_bound_what_is_pushed_down(tiny: Make) -> None:
    """To the end of each episode they are the discounted rewards, and V_mu of where it was cut."""
    trainer = train_through(tiny(bcell__calibration="returns", train__online_episodes=0, train__warmup_episodes=0))
    run, data, agent = trainer._begin(), trainer._begin().dataset, trainer.agent
    assert run.state.learners is not None
    _, market, units = whole = learning_market(run)
    store = offline_store(run, data, run.state.learners.everyone[0], whole)
    rows = np.flatnonzero(data.episode == data.episode[0])
    with torch.no_grad():
        last = market.states(store.columns["bar"][rows[-1:]] + 1, store.columns["next_portfolio"][rows[-1:]])
        expected = float(agent.behaviour_value.of_behaviour(last))
    rewards = units.scaled(store.columns["reward"], store.columns["bar"]).numpy()
    for row in rows[::-1]:
        expected = rewards[row] + 0.99 * expected
        assert store.columns["calibration"][row].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_critics_that_are_put_on_another_level_are_no_fault(tiny: Make) -> None:
    """They come from the offline phase's returns; where rewards have a large mean, exact ones lie far from them."""
    keys = {
        "objectives__reward": "tests.env.rewards.own_rewards:HighLevel",
        "train__reward_reference": "none",
        "guard__stability__check_interval": 1,
        "guard__stability__quiet": 0,
        "train__online_episodes": 8,
    }
    trainer = train_through(tiny(**keys))
    assert trainer._begin().state.watch.manager.rollback_count == 0


def test_the_spread_is_of_the_whole_reward_where_risk_counts(tiny: Make) -> None:
    """A batch then carries what its rewards are in excess of."""
    trainer = FinFlowTrainer(tiny(bcell__risk_measure="wang"))
    run, data = trainer._begin(), trainer._begin().dataset
    units, bars = learning_market(run).units, torch.from_numpy(data.bar[:5].astype(np.int64))
    torch.testing.assert_close(units.references(bars), units.reference[bars] / data.reward_scale)
    assert units.references(bars).abs().sum() > 0.0


# --- hand-overs


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
    pretrained = str(checkpoint_of(whole, "pretrained"))
    assert called("train.py", "--mode", "online", "--pretrained", pretrained, "--set", f"output.logs_dir={other}") == 0
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
