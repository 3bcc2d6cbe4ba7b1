"""Online learning from exact rollouts: the ledger's own rewards and gradients, blocks apart, faults caught."""

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
from finflow.agent.learners.bcell import BCell, with_members
from finflow.agent.learners.offline_learner import make_policy
from finflow.agent.networks.decision import REFERENCES, Blend
from finflow.agent.networks.policy import blended
from finflow.agent.networks.policy_ensemble import load_like
from finflow.config import Config, changed_keys
from finflow.config.yaml_text import parse_scalar
from finflow.errors import CheckpointError, ConfigError, TrainingError
from finflow.evaluation.analysis import training_sections
from finflow.tensor_file import read_file, write_tensors
from finflow.training.checkpoints.checkpoint_reader import policy_of, read_checkpoint, stored_config
from finflow.training.checkpoints.migration import with_prior
from finflow.training.data.replay import MarketTensors
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket, as_tensors
from finflow.training.data.training_data import TrainingData, prepare
from finflow.training.phases import finetune_rollouts as phase
from finflow.training.phases import fold_pretraining
from finflow.training.phases.fold_evidence import CONFIDENCES, FoldPolicy, backtest_blends, weigh_evidence
from finflow.training.phases.fold_pretraining import transitions_outside
from finflow.training.phases.rollout_state import Block, make_blocks
from finflow.training.trainer import FinFlowTrainer

Make = Callable[..., Config]
SMALL = {
    "online__algorithm": "rollouts",
    "bcell__rollouts__portfolios": 8,
    "bcell__rollouts__horizon": 4,
    "bcell__rollouts__blocks": 3,
    "bcell__rollouts__looks": 2,
    "bcell__rollouts__critic_updates": 6,
    "bcell__rollouts__actions": 3,
    "train__offline_training_epochs": 1,
    "train__generalisation": False,
}
UPDATES = 8  # 12 episodes of 20 decisions, 32 decisions an update
PRETRAINED = "models/checkpoint_pretrained.safetensors"
CPU = torch.device("cpu")


def market_of(training_data: TrainingData, scale: float = 0.01) -> RolloutMarket:
    process = training_data.learning.process
    return RolloutMarket(process, MarketTensors.of(process, CPU), RewardUnits.of(process, scale, "equal-weight", CPU))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, make_tiny: Callable[..., Make]) -> tuple[FinFlowTrainer, Make]:
    make = make_tiny(tmp_path_factory.mktemp("rollouts"))
    trainer = FinFlowTrainer(make(**SMALL))
    trainer.train_iql()
    trainer.finetune()
    return trainer, make


def test_a_rollout_earns_what_the_environment_pays(tiny: Make) -> None:
    """Step by step, in NumPy's own ledger and with the agent's own decisions; float32 decisions differ by 1e-7."""
    config = tiny(**SMALL, env__max_weight=0.5, env__no_trade_band=0.001)
    training_data = prepare(config)
    market, process = market_of(training_data), training_data.learning.process
    policy = make_policy(training_data.shape, config.bcell, torch.Generator().manual_seed(1))
    bars = np.array([process.first_bar, process.first_bar + 50])
    state = process.start(bars, np.random.default_rng(0).dirichlet(np.ones(process.n_weights), 2))
    with torch.no_grad():
        start = as_tensors(state, CPU)
        rollout = market.roll_out(policy, market.read(policy, start, 5), start, 5)
    for step in range(5):
        decision = policy(states_of(process.observe(state), CPU))
        taken = process.step(state, decision.distribution.centre().detach().numpy().astype(np.float64))
        reward = market.units.scaled(torch.from_numpy(taken.reward), torch.from_numpy(state.bar))
        assert np.allclose(rollout.rewards[step].numpy(), reward.numpy(), atol=2e-4)  # scaled by 100
        state = taken.state
    assert np.allclose(rollout.state.weights.numpy(), state.weights, atol=1e-6)
    assert np.allclose(rollout.state.wealth.numpy(), state.wealth, rtol=1e-7)


def test_its_gradient_is_that_of_finite_differences(tiny: Make) -> None:
    """Through ledger, costs, drift and the later decisions; of the trade rate's bias, in double precision."""
    config = tiny(**SMALL)
    training_data = prepare(config)
    market, process = market_of(training_data), training_data.learning.process
    policy = make_policy(training_data.shape, config.bcell, torch.Generator().manual_seed(2))
    bars = np.arange(process.first_bar, process.first_bar + 60, 6)
    start = as_tensors(process.start(bars), CPU)

    def value(change: float) -> torch.Tensor:
        with torch.no_grad():
            policy.trade.bias[0] += change
        found = market.roll_out(policy, market.read(policy, start, 6), start, 6).log_growth.sum()
        with torch.no_grad():
            policy.trade.bias[0] -= change
        return found

    (slope,) = torch.autograd.grad(value(0.0), policy.trade.bias)
    step = 0.05
    differences = (value(step) - value(-step)).item() / (2.0 * step)
    assert slope[0].item() == pytest.approx(differences, rel=0.02)  # decisions are float32, and the curve bends


def test_blocks_are_contiguous_purged_and_cover_every_bar() -> None:
    blocks = make_blocks([range(10, 110)], 4, purge=3)
    assert [block.held_out for block in blocks] == [range(10, 35), range(35, 60), range(60, 85), range(85, 110)]
    assert blocks[1].learned == (range(10, 32), range(63, 110))
    assert blocks[0].learned == (range(38, 110),)
    for block in blocks:
        assert all(abs(bar - held) > 3 for one in block.learned for bar in one for held in block.held_out)


def test_no_policy_of_a_block_sees_a_price_of_its_block(trained: tuple[FinFlowTrainer, Make]) -> None:
    """Other prices within a block change what the others' policies learn, but not a bit of its own.

    Rewards are changed in the tables of growth, which are all that rollouts earn; features are left as they are.
    """
    trainer, make = trained
    finals = []
    for held in (None, 1):
        other = FinFlowTrainer(make(**SMALL), pretrained=trainer.run_folder / PRETRAINED)
        run = other._begin()
        process = other.training_data.learning.process
        if held is not None:
            other._hand_over(run)
            assert run.state.rollouts is not None
            block = run.state.rollouts.blocks[held].held_out
            process.growth[block.start : block.stop + 1, :-1] *= 1.01
        other.finetune()
        state = other._begin().state.rollouts
        assert state is not None
        finals.append([{n: t.clone() for n, t in fold.policy.state_dict().items()} for fold in state.folds])
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(*finals, strict=True)]
    assert same == [False, True, False]


def test_a_resumed_run_equals_one_that_never_stopped(
    trained: tuple[FinFlowTrainer, Make], tiny: Make, stop_training: Callable[[Config, int], FinFlowTrainer]
) -> None:
    """Stopped with the blocks in flight, and again while the critics are taught."""
    whole = FinFlowTrainer(tiny(**SMALL))
    whole.train_iql()
    whole.finetune()
    latest = "models/checkpoint_latest.safetensors"
    for when in (7 + 5, 7 + UPDATES + 3):  # an epoch of 7 updates comes first
        stopped = stop_training(tiny(**SMALL), when)
        resumed = FinFlowTrainer(tiny(**SMALL), resume=stopped.run_folder)
        resumed.finetune()
        for name in (latest, "models/checkpoint_best.safetensors", "metrics.jsonl"):
            assert (resumed.run_folder / name).read_bytes() == (whole.run_folder / name).read_bytes(), name


def test_the_hand_over_loses_nothing(trained: tuple[FinFlowTrainer, Make]) -> None:
    trainer, make = trained
    path = trainer.run_folder / PRETRAINED
    other = FinFlowTrainer(make(**SMALL), pretrained=path)
    other._hand_over(other._begin())
    tensors = read_checkpoint(path).tensors
    for name, tensor in other.agent.policy.state_dict().items():
        assert torch.equal(tensor, tensors[f"learner/policy/{name}"])


def test_the_finished_agent_is_judged_once_and_says_what_it_holds(trained: tuple[FinFlowTrainer, Make]) -> None:
    trainer, _ = trained
    rows = [json.loads(line) for line in (trainer.run_folder / "metrics.jsonl").read_text().splitlines()]
    judged = [row for row in rows if "validation_sharpe" in row and row["phase"] == "online"]
    assert len(judged) == 2  # the policy at the hand-over, and the finished agent
    assert {"confidence", "out_of_fold_t", "training_advantage_slope", "validation_advantage_slope"} <= set(judged[-1])
    checkpoint = read_checkpoint(trainer.run_folder / "models/checkpoint_best.safetensors")
    assert checkpoint.counters["update"] == trainer._begin().state.counters.update
    console = (trainer.run_folder / "console.log").read_text()
    assert "out of fold t =" in console


def test_the_blend_is_part_of_the_agent_s_one_file(trained: tuple[FinFlowTrainer, Make], tmp_path: object) -> None:
    trainer, _ = trained
    agent, process = trainer.agent, trainer.training_data.process
    assert agent.blend is not None
    blend = Blend(0.3, "inverse-volatility", trainer.training_data.log_volatility)
    agent.blend.copy_(blend.to_tensor(CPU))
    path = trainer.run_folder / "agent.safetensors"
    agent.save(path)
    again = BCell.load(path)
    observation = process.observe(process.start(np.array([process.first_bar + 100])))
    assert np.array_equal(again.act(observation), agent.act(observation))
    explained = again.explain(observation)
    mixed = np.einsum("be,bek->bk", explained["gate"], explained["experts"])
    assert not np.allclose(mixed, explained["aim"], atol=1e-3)  # the reference is in the aim
    trainer._begin().checkpoint()
    loaded = policy_of(read_checkpoint(trainer.run_folder), CPU)
    assert loaded.blend is not None
    assert loaded.blend.confidence == pytest.approx(0.3)


def test_the_policies_of_the_blocks_decide_with_the_agent_s_own(trained: tuple[FinFlowTrainer, Make]) -> None:
    """In every way in which an agent is opened; in a file from before they did, its own policy stands in for them."""
    trainer, _ = trained
    agent, process, state = trainer.agent, trainer.training_data.process, trainer._begin().state
    assert agent.blend is not None
    assert agent.members is not None
    assert state.rollouts is not None
    agent.blend.copy_(Blend(0.7, "equal-weight", (0, 1.0)).to_tensor(CPU))
    learned = [fold.policy.state_dict() for fold in state.rollouts.folds]
    for member, own in zip(agent.members, learned, strict=True):
        member.load_state_dict(own)
    trainer._begin().checkpoint()
    saved = read_checkpoint(trainer.run_folder)
    observation = process.observe(process.start(np.arange(process.first_bar + 50, process.first_bar + 60)))
    states = states_of(observation, CPU)
    with torch.no_grad():
        alone = [blended(one, Blend.from_tensor(agent.blend))(states) for one in (agent.policy, *agent.members)]
        mean = torch.stack([one.distribution.centre() for one in alone]).mean(dim=0).numpy()
        opened = policy_of(saved, CPU)(states).distribution.centre().numpy()
    assert np.allclose(agent.act(observation), mean, atol=1e-6)  # float32
    assert np.array_equal(agent.act(observation), opened)
    assert np.array_equal(BCell.load(saved.path).act(observation), opened)
    older = {name: tensor for name, tensor in saved.tensors.items() if "/members/" not in name}
    restored = with_members(older, "bcell/", len(agent.members))
    assert {name for name in saved.tensors if name.startswith("bcell/")} <= restored.keys()
    first = alone[0].distribution.centre().numpy()
    training = {**saved.facts["training"], "bcell": dict(saved.facts["training"]["bcell"])}
    del training["bcell"]["members"]
    migrated, facts = with_prior(Path("older"), older, {**saved.facts, "training": training})
    assert migrated.keys() >= restored.keys()
    assert facts["training"]["bcell"].keys() == saved.facts["training"]["bcell"].keys()
    kept = saved._replace(tensors=migrated, facts=facts)
    assert np.allclose(policy_of(kept, CPU)(states).distribution.centre().detach().numpy(), first, atol=1e-6)


def test_without_confidence_the_agent_holds_the_reference(trained: tuple[FinFlowTrainer, Make]) -> None:
    trainer, _ = trained
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


def test_blends_are_played_by_the_ledger(trained: tuple[FinFlowTrainer, Make]) -> None:
    """Patient equal weight, played by hand; a blend without confidence is the same whatever the policy."""
    trainer, _ = trained
    process = trainer.training_data.process
    tensors, volatility = MarketTensors.of(process, CPU), trainer.training_data.log_volatility
    bars = range(process.first_bar, process.first_bar + 40)
    policy = trainer.agent.policy
    folds = [FoldPolicy(policy, bars, None), FoldPolicy(policy, bars[:39], None)]
    whole, shorter = backtest_blends(folds, process, tensors, volatility)
    assert torch.equal(shorter, whole[:, :39])
    rewards = whole.numpy()
    assert rewards.shape == (2 * len(CONFIDENCES), 40)
    state = process.start(np.array([bars.start]), np.array([[0.25, 0.25, 0.25, 0.25, 0.0]]))
    equal = np.array([[0.25, 0.25, 0.25, 0.25, 0.0]])
    for step in range(40):
        taken = process.step(state, state.weights + 0.05 * (equal - state.weights))
        assert rewards[0, step] == pytest.approx(taken.reward[0], abs=1e-6)  # decisions are float32
        state = taken.state


def test_the_pretrained_policy_is_played_as_it_decides_alone(trained: tuple[FinFlowTrainer, Make]) -> None:
    """Without confidence it is the pretrained policy; with all of it the learned one, by its own trade rate."""
    trainer, _ = trained
    process, state = trainer.training_data.process, trainer._begin().state.rollouts
    assert state is not None
    tensors, volatility = MarketTensors.of(process, CPU), trainer.training_data.log_volatility
    learned, pretrained = state.folds[0].policy, load_like(state.folds[0].policy, state.pretrained[0])
    bars = range(process.first_bar, process.first_bar + 30)
    (played,) = backtest_blends([FoldPolicy(learned, bars, pretrained)], process, tensors, volatility)
    rows = played.view(len(REFERENCES), len(CONFIDENCES), -1)
    with torch.no_grad():
        reading = pretrained(tensors.states(torch.tensor([bars.start]), torch.zeros(1, process.portfolio_size)))
    for place, policy in ((0, pretrained), (-1, learned)):
        account = process.start(np.array([bars.start]), reading.aim.double().numpy())
        for step in range(30):
            with torch.no_grad():
                decision = policy(states_of(process.observe(account), CPU))
            taken = process.step(account, decision.distribution.centre().double().numpy())
            assert rows[-1, place, step].item() == pytest.approx(taken.reward[0], abs=1e-5)  # decisions are float32
            account = taken.state


def test_blocks_policies_are_pretrained_without_their_blocks(trained: tuple[FinFlowTrainer, Make]) -> None:
    trainer, make = trained
    dataset, state = trainer.collect_offline_data(), trainer._begin().state.rollouts
    assert state is not None
    assert len(state.pretrained) == len(state.blocks) == 3
    for block in state.blocks:
        kept = transitions_outside(dataset, block).bar
        assert 0 < len(kept) < len(dataset)
        assert not np.isin(kept, np.arange(block.held_out.start - 1, block.held_out.stop + 1)).any()
    assert make(**SMALL, bcell__rollouts__pretraining_epochs=0).fold_epochs == 0
    assert make(**SMALL).fold_epochs == 1  # not more than the agent's own
    assert make(**SMALL, offline__method="none").fold_epochs == 0


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_pretrained_reference_was_pretrained_for_as_long_as_those_of_the_blocks(
    epochs: int, tiny: Callable[..., Config]
) -> None:
    """After two epochs of its own, the agent's policy goes on, and one of a single epoch is the reference."""
    keys = {**SMALL, "train__offline_training_epochs": epochs, "bcell__rollouts__pretraining_epochs": 1}
    trainer = FinFlowTrainer(tiny(**keys, train__online_episodes=2))
    trainer.train_iql()
    learner = trainer._begin().state.learner
    assert learner is not None
    before = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    trainer.finetune()
    held = trainer.agent.prior.state_dict()
    assert all(torch.equal(held[name], tensor) for name, tensor in before.items()) == (epochs == 1)


@pytest.mark.parametrize("fails", [False, True])
def test_pretraining_during_the_offline_phase_changes_no_bit(
    fails: bool, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own while the agent learns offline; where that process fails, in this one."""
    keys = {**SMALL, "train__offline_training_epochs": 2, "bcell__rollouts__pretraining_epochs": 1}
    keys |= {"train__online_episodes": 2, "train__reward_normalization__enabled": True}
    alone = FinFlowTrainer(tiny(**keys))
    alone.train_iql()
    alone.finetune()
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    pretrain, here, learned_here = fold_pretraining._pretrain, os.getpid(), []

    def pretrain_or_fail(*arguments: Any) -> Any:
        learned_here.append(arguments[-1])  # in the other process a copy is written to
        if fails and os.getpid() != here:
            raise RuntimeError
        return pretrain(*arguments)

    monkeypatch.setattr(fold_pretraining, "_pretrain", pretrain_or_fail)
    beside = FinFlowTrainer(tiny(**keys))
    with fold_pretraining.pretraining_in_parallel(beside._begin(), beside.collect_offline_data()):
        beside.train_iql()
    beside.finetune()
    if fails:
        blocks = beside.config.bcell.rollouts.blocks
        assert sorted(map(str, learned_here)) == sorted(map(str, [None, *range(blocks)]))
    latest = "models/checkpoint_latest.safetensors"
    assert (beside.run_folder / latest).read_bytes() == (alone.run_folder / latest).read_bytes()


def test_two_processes_share_the_blocks_that_neither_has_begun() -> None:
    begun, numbers = [0, 0, 0, 0], list(enumerate([None, 0, 1, 2]))
    first, second = fold_pretraining._not_begun(begun, numbers), fold_pretraining._not_begun(begun, numbers[::-1])
    assert [next(first), next(second), next(first), next(second)] == [None, 2, 0, 1]
    assert not [*first, *second]


def test_nothing_is_pretrained_beside_where_the_online_phase_does_not_need_it(tiny: Make) -> None:
    for keys in ({"bcell__rollouts__blocks": 1}, {"online__algorithm": "sac"}, {"offline__method": "none"}):
        trainer = FinFlowTrainer(tiny(**{**SMALL, **keys}))
        with fold_pretraining.pretraining_in_parallel(trainer._begin(), trainer.collect_offline_data()):
            pass
        assert trainer._begin().folds is None


def test_a_training_from_before_mirrored_bars_goes_on_without_them(trained: tuple[FinFlowTrainer, Make]) -> None:
    saved = read_checkpoint(trained[0].run_folder)
    nested = json.loads(json.dumps(parse_scalar(saved.facts["config"]), default=str))
    assert nested["bcell"]["rollouts"].pop("mirrored") > 0.0
    assert nested["bcell"]["rollouts"].pop("regimes")
    older = saved._replace(facts={**saved.facts, "config": json.dumps(nested)})
    assert stored_config(older).bcell.rollouts.mirrored == 0.0
    assert not stored_config(older).bcell.rollouts.regimes


def test_a_file_that_does_not_say_how_its_agent_is_configured_is_refused(
    trained: tuple[FinFlowTrainer, Make], tmp_path: Path
) -> None:
    file = read_file(trained[0].run_folder / "models" / "checkpoint_latest.safetensors")
    training = dict(file.state["training"])
    training["bcell"] = {name: value for name, value in training["bcell"].items() if name != "members"}
    crafted = tmp_path / "crafted.safetensors"
    write_tensors(crafted, file.tensors, {**file.state, "training": training, "bcell": {}})
    with pytest.raises(CheckpointError, match="does not say how its agent is configured; use another one"):
        read_checkpoint(crafted)


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
    evidence = weigh_evidence([torch.from_numpy(early), torch.from_numpy(later)], blocks, (0, 1.0), seed=0)
    assert (evidence.look, evidence.blend.reference) == (1, "inverse-volatility")
    assert evidence.blend.confidence > 0.95
    nothing = weigh_evidence([torch.from_numpy(early)], blocks, (0, 1.0), seed=0)
    assert nothing.blend.confidence == 0.0
    assert "nothing was found that holds out of sample; this agent holds inverse volatility" in nothing.describe()


def test_a_block_s_policy_that_breaks_is_caught_by_the_guard(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = phase.learn_side_by_side

    def broken(market, members, *rest):  # type: ignore[no-untyped-def]
        found = original(market, members, *rest)
        found[-1]["actor_loss"] = found[-1]["actor_loss"] * float("nan")  # the agent's own policy is the first
        return found

    monkeypatch.setattr(phase, "learn_side_by_side", broken)
    trainer = FinFlowTrainer(tiny(**SMALL))
    trainer.train_iql()
    with pytest.raises(TrainingError, match="skipped"):
        trainer.finetune()


def test_critics_that_are_put_on_another_level_are_no_fault(tiny: Make) -> None:
    """They come from the offline phase's returns; where rewards have a large mean, exact returns lie far from them."""
    keys = {
        "objectives__reward": "tests.env.rewards.own_rewards:HighLevel",
        "train__reward_reference": "none",
        "guard__stability__check_interval": 1,
        "guard__stability__quiet": 0,
    }
    trainer = FinFlowTrainer(tiny(**(SMALL | keys)))
    trainer.train_iql()
    trainer.finetune()
    assert trainer._begin().state.watch.manager.rollback_count == 0


def test_the_report_shows_what_holds_out_of_sample(
    tiny: Make, quick_reports: None, read_page: Callable[[str], Any], fits_schema: Callable[..., list[str]]
) -> None:
    outcome = FinFlowTrainer(tiny(**SMALL)).train()
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


def test_keys_that_rollouts_do_not_read_are_named(tiny: Make) -> None:
    assert changed_keys(tiny(**SMALL), phase.UNREAD) == []
    changed = tiny(**SMALL, bcell__cql_alpha=10.0, bcell__anchor__weight=0.5, worlds__bootstraps=1)
    assert changed_keys(changed, phase.UNREAD) == ["bcell.cql_alpha", "bcell.anchor", "worlds.bootstraps"]


def test_the_report_and_the_agent_number_the_references_alike() -> None:
    """The report reads a number that training logged; rooms below training cannot import the agent's list."""
    assert training_sections.REFERENCES == REFERENCES


def test_a_horizon_beyond_the_data_is_refused_in_one_line(tiny: Make) -> None:
    trainer = FinFlowTrainer(tiny(**{**SMALL, "bcell__rollouts__horizon": 5000}))
    trainer.train_iql()
    with pytest.raises(Exception, match=r"bcell\.rollouts\.horizon \(5000\)"):
        trainer.finetune()


def test_a_risk_measure_needs_the_other_method(tiny: Make) -> None:
    with pytest.raises(ConfigError, match=r"needs online\.algorithm = sac"):
        tiny(online__algorithm="rollouts", bcell__risk_measure="cvar")
