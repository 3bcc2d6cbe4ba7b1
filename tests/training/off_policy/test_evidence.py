"""Evidence of a training: blocks that no learner of theirs sees, backtests of blends there, and the judgement, kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finflow import cores
from finflow.agent.batch import states_of
from finflow.agent.learners.bcell import BCell
from finflow.agent.networks.decision import REFERENCES, Blend
from finflow.agent.networks.policy import blended
from finflow.errors import TrainingError
from finflow.evaluation.analysis import training_sections
from finflow.offline.dataset import WIDE
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.data.replay import MarketTensors, Transitions
from finflow.training.data.training_data import prepare
from finflow.training.off_policy.evidence import (
    CONFIDENCES,
    Block,
    backtest_blends,
    make_blocks,
    training_blocks,
    training_segments,
    transitions_outside,
    weigh_evidence,
)
from finflow.training.off_policy.learners import Learners
from finflow.training.phases import finetune as phase, pretrain as pretraining
from finflow.training.phases.finetune import stage_updates
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import (
    WITH_BLOCKS,
    Make,
    Stop,
    best,
    check_same_learning,
    checkpoint_of,
    latest,
    rows_of,
    train_through,
)

CPU = torch.device("cpu")
UPDATES = 4  # 6 episodes of 20 decisions, 32 decisions an update


@pytest.fixture(scope="module")
def trainer(shared: Make) -> FinFlowTrainer:
    """A training that is over."""
    return train_through(shared(**WITH_BLOCKS))


def learners_of(trainer: FinFlowTrainer) -> Learners:
    learners = trainer._begin().state.learners
    assert learners is not None
    return learners


def test_blocks_are_contiguous_purged_and_cover_every_bar() -> None:
    blocks = make_blocks([range(10, 110)], 4, purge=3)
    assert [block.held_out for block in blocks] == [range(10, 35), range(35, 60), range(60, 85), range(85, 110)]
    assert blocks[1].learned == (range(10, 32), range(63, 110))
    assert blocks[0].learned == (range(38, 110),)
    for block in blocks:
        assert all(abs(bar - held) > 3 for one in block.learned for bar in one for held in block.held_out)


@pytest.mark.parametrize(("lag", "horizon"), [(1, 1), (2, 1), (1, 7)])
def test_rewards_of_what_is_learned_end_before_the_block(tiny: Make, lag: int, horizon: int) -> None:
    """A decision's features come from ``lag`` bars before it; its reward may reach further than a bar after it."""
    keys: dict[str, object] = {"env__execution_lag": lag}
    if horizon > 1:
        keys |= {"objectives__reward": "ranking", "objectives__ranking__k": 2}
        keys["objectives__ranking__horizon"] = horizon
    config = tiny(**WITH_BLOCKS | keys)
    blocks = training_blocks(config, prepare(config))
    assert len(blocks) == 2
    for block in blocks:
        for one in block.learned:
            assert one.stop - 1 + horizon < block.held_out.start or one.start - lag > block.held_out.stop - 1
    assert blocks[1].learned[0].stop == blocks[1].held_out.start - lag - horizon


def test_learners_of_blocks_begin_and_stay_outside_of_them(trainer: FinFlowTrainer) -> None:
    """Portfolios, the replay, and the behaviour's data: the agent that is delivered alone sees all bars."""
    learners, evidence = learners_of(trainer), trainer._begin().state.out_of_fold
    assert evidence is not None
    dataset = trainer.collect_offline_data()
    (whole,) = training_segments(trainer.training_data)
    assert learners.everyone[0].portfolios.starts[-1] == whole.stop - 4
    for learner, block in zip(learners.of_blocks, evidence.blocks, strict=True):
        seen = learner.replay.columns["bar"][: learner.replay.occupied].numpy()
        assert len(seen) > 0
        held = np.arange(block.held_out.start - 1, block.held_out.stop + 1)
        kept = transitions_outside(dataset, block).bar
        assert 0 < len(kept) < len(dataset)
        assert not np.isin(kept, held).any()
        assert not np.isin(seen, held).any()
        assert not np.isin(learner.portfolios.state.bar, held).any()
        assert not np.isin(learner.portfolios.starts[:, None] + np.arange(4), held).any()
    own = learners.everyone[0].replay.columns["bar"].numpy()
    assert any(np.isin(own, np.array(block.held_out)).any() for block in evidence.blocks)


def test_learners_of_blocks_read_the_behaviour_from_one_memory(trainer: FinFlowTrainer) -> None:
    """With 500 assets a copy of the data for each block is more than a computer has."""
    dataset, evidence, cpu = trainer.collect_offline_data(), trainer._begin().state.out_of_fold, torch.device("cpu")
    assert evidence is not None
    whole = Transitions.of(dataset, cpu)
    for block in evidence.blocks:
        part = transitions_outside(dataset, block)
        store, kept = Transitions.of(part, cpu), np.flatnonzero(np.isin(dataset.bar, part.bar))
        for name in WIDE:
            assert store.columns[name].data_ptr() == getattr(dataset, name).ctypes.data
        expected, rows = whole.rows(torch.from_numpy(kept)), store.rows(torch.arange(len(store)))
        assert len(store) == len(kept) < len(dataset)
        for name, column in expected.items():
            assert torch.equal(rows[name], column)
        assert all(len(column) == len(part) for column in part.arrays().values())  # as it is saved
        fewer = Transitions.of(part.part(np.arange(len(part)) % 2 == 1), cpu)
        assert torch.equal(fewer.rows(torch.arange(len(fewer)))["action"], expected["action"][1::2])


def test_no_learner_of_a_block_sees_a_price_of_its_block(trainer: FinFlowTrainer, shared: Make) -> None:
    """Other prices within a block change what the others learn, but not a bit of its own: policy, critics, replay.

    Rewards are changed in the tables of growth, which are all that decisions earn; features are left as they are.
    """
    finals = []
    keys = {**WITH_BLOCKS, "train__online_episodes": 6}
    for held in (None, 1):
        other = FinFlowTrainer(shared(**keys), pretrained=checkpoint_of(trainer, "pretrained"))
        run = other._begin()
        process = other.training_data.learning
        if held is not None:
            other._hand_over(run)
            assert run.state.out_of_fold is not None
            block = run.state.out_of_fold.blocks[held].held_out
            process.growth[block.start : block.stop + 1, :-1] *= 1.01
        other.finetune()
        everyone = learners_of(other).everyone
        finals.append([one.agent.policy.state_dict() | one.agent.critic.state_dict() for one in everyone])
        finals[-1][-1] |= dict(everyone[-1].replay.columns)
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(*finals, strict=True)]
    assert same == [False, False, True]


# --- offline learning without a block


def test_learners_of_blocks_are_pretrained_no_longer_than_the_agent(tiny: Make) -> None:
    assert tiny(**WITH_BLOCKS, out_of_fold__pretraining_epochs=0).fold_epochs == 0
    assert tiny(**WITH_BLOCKS).fold_epochs == 1
    assert tiny(**WITH_BLOCKS | {"train__offline_training_epochs": 3}, offline__method="none").fold_epochs == 1
    assert tiny(**WITH_BLOCKS | {"out_of_fold__blocks": 1}).fold_epochs == 0


@pytest.mark.parametrize("fails", [False, True])
def test_pretraining_during_the_offline_phase_changes_no_bit(
    fails: bool, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own while the agent learns offline; where that process fails, in this one."""
    keys = {**WITH_BLOCKS, "train__offline_training_epochs": 2, "out_of_fold__pretraining_epochs": 1}
    keys |= {"train__online_episodes": 2, "train__reward_normalization__enabled": True}
    alone = train_through(tiny(**keys))
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    pretrain, here, learned_here = pretraining._pretrain_block, os.getpid(), []

    def pretrain_or_fail(*arguments: Any) -> Any:
        learned_here.append(arguments[-1])  # in the other process a copy is written to
        if fails and os.getpid() != here:
            raise RuntimeError
        return pretrain(*arguments)

    monkeypatch.setattr(pretraining, "_pretrain_block", pretrain_or_fail)
    beside = FinFlowTrainer(tiny(**keys))
    with pretraining.pretraining_in_parallel(run := beside._begin()):
        beside.train_iql()
    predicted = set(run.predictions)
    beside.finetune()
    assert set(run.predictions) == predicted != set()  # the online phase had no more returns to predict
    if fails:
        assert sorted(learned_here) == list(range(beside.config.out_of_fold.blocks))
    assert latest(beside).read_bytes() == latest(alone).read_bytes()


# --- backtests of blends


def test_without_confidence_the_agent_holds_the_reference(trainer: FinFlowTrainer) -> None:
    process, policy = trainer.training_data.process, trainer.agent.policy
    volatility = trainer.training_data.log_volatility
    states = states_of(process.observe(process.start(np.array([process.first_bar + 9]))), CPU)
    equal = blended(policy, Blend(0.0, "equal-weight", volatility))(states).aim[0]
    assert torch.allclose(equal, torch.tensor([0.25, 0.25, 0.25, 0.25, 0.0]))
    inverse = blended(policy, Blend(0.0, "inverse-volatility", volatility))(states).aim[0, :-1]
    bar = process.first_bar + 9 - process.lag
    returns = np.diff(np.log(process.panel.close[: bar + 1]), axis=0)[-252:]
    expected = 1.0 / returns.std(axis=0, ddof=1)
    # the feature is clipped at five deviations and stored in float32
    assert np.allclose(inverse.detach().numpy(), expected / expected.sum(), atol=2e-3)
    own = policy(states)
    assert torch.equal(blended(policy, Blend(1.0, "equal-weight", volatility))(states).aim, own.aim)


def test_blends_are_played_by_the_ledger(trainer: FinFlowTrainer) -> None:
    """Patient equal weight, played by hand; a blend without confidence is the same whatever the policy."""
    process, policy = trainer.training_data.process, trainer.agent.policy
    tensors, volatility = MarketTensors.of(process, CPU), trainer.training_data.log_volatility
    bars = range(process.first_bar, process.first_bar + 40)
    whole, shorter = backtest_blends([(policy, bars), (policy, bars[:39])], process, tensors, volatility)
    assert np.array_equal(shorter, whole[:, :39])
    assert whole.shape == (2 * len(CONFIDENCES), 40)
    equal = np.array([[0.25, 0.25, 0.25, 0.25, 0.0]])
    state = process.start(np.array([bars.start]), equal)
    for step in range(40):
        taken = process.step(state, state.weights + 0.05 * (equal - state.weights))
        assert whole[0, step] == pytest.approx(taken.reward[0], abs=1e-6)  # decisions are float32
        state = taken.state


def test_evidence_prefers_the_stage_and_the_reference_that_gain() -> None:
    blocks = (Block(range(0, 300), ()), Block(range(300, 600), ()))
    rng = np.random.default_rng(0)
    early = 1e-3 * rng.standard_normal((10, 600))
    early[5] += 2e-3  # inverse volatility is the better reference
    later = early.copy()
    later[6:] = later[5] + 1e-3 * np.array(CONFIDENCES[1:])[:, None] + 2e-4 * rng.standard_normal((4, 600))
    for one in (early, later):
        one[1:5] = one[0]
    early[6:] = early[5]
    evidence = weigh_evidence([early, later], blocks, (0, 1.0), seed=0)
    assert (evidence.look, evidence.blend.reference) == (1, "inverse-volatility")
    assert evidence.blend.confidence > 0.95
    nothing = weigh_evidence([early], blocks, (0, 1.0), seed=0)
    assert nothing.blend.confidence == 0.0
    assert "nothing was found that holds out of sample; this agent holds inverse volatility" in nothing.describe()


def test_the_report_and_the_agent_number_the_references_alike() -> None:
    """The report reads a number that training logged; rooms below training cannot import the agent's list."""
    assert training_sections.REFERENCES == REFERENCES


# --- the judgement


def test_the_last_stage_is_always_kept() -> None:
    assert stage_updates(985, 6) == [165, 329, 493, 657, 821, 985]
    assert stage_updates(3, 6) == [1, 2, 3]
    assert stage_updates(0, 6) == []


@pytest.mark.parametrize("when", [7 + 2, 7 + 3 + 3])
def test_a_resumed_run_equals_one_that_never_stopped(
    when: int, trainer: FinFlowTrainer, tiny: Make, stop_training: Stop
) -> None:
    """Stopped while portfolios warm up, and with the blocks in flight: replays, portfolios, generators and looks."""
    stopped = stop_training(tiny(**WITH_BLOCKS), when)  # an epoch of 7 updates comes first, then 3 warm-up steps
    counters = read_checkpoint(latest(stopped)).counters
    assert (counters["phase"], counters["vector_step"] < 3 + UPDATES) == ("online", True)
    resumed = train_through(tiny(**WITH_BLOCKS), resume=stopped.run_folder)
    for name in ("latest", "best"):
        check_same_learning(resumed, trainer, name)


def test_the_finished_agent_is_judged_once_and_says_what_it_holds(trainer: FinFlowTrainer, shared: Make) -> None:
    rows = rows_of(trainer)
    judged = [row for row in rows if "validation_sharpe" in row and row["phase"] == "online"]
    assert len(judged) == 2  # the policy at the hand-over, and the finished agent
    assert {"confidence", "out_of_fold_t", "training_advantage_slope"} <= set(judged[-1])
    checkpoint = read_checkpoint(best(trainer))
    assert checkpoint.counters["update"] == trainer._begin().state.counters.update
    assert "out of fold t =" in (trainer.run_folder / "console.log").read_text()
    before = latest(trainer).read_bytes()
    again = train_through(shared(**WITH_BLOCKS), resume=trainer.run_folder)
    assert len(rows_of(again)) == len(rows)  # not a second time
    assert latest(again).read_bytes() == before


def test_the_policies_of_the_blocks_and_the_blend_are_part_of_the_agent_s_one_file(
    trainer: FinFlowTrainer, tmp_path: Path
) -> None:
    """They decide with the agent's own in every way in which an agent is opened."""
    agent, process = trainer.agent, trainer.training_data.process
    assert agent.blend is not None
    assert agent.members is not None
    agent.blend.copy_(Blend(0.7, "inverse-volatility", trainer.training_data.log_volatility).to_tensor(CPU))
    learned = [one.agent.policy.state_dict() for one in learners_of(trainer).of_blocks]
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
    trainer = FinFlowTrainer(tiny(**WITH_BLOCKS, train__online_episodes=12))
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
