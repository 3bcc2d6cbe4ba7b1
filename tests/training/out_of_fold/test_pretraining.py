"""Offline learning without a block: which transitions, for how long, and the same bits beside the offline phase."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from finflow import cores
from finflow.training.make_env import make_env
from finflow.training.out_of_fold import pretraining
from finflow.training.out_of_fold.pretraining import transitions_outside
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import WITH_BLOCKS, Make, latest, train_through

Trained = Any


def test_blocks_policies_are_pretrained_without_their_blocks(trained: Trained) -> None:
    dataset = trained.trainer.collect_offline_data()
    assert len(trained.evidence.blocks) == 2
    for block in trained.evidence.blocks:
        kept = transitions_outside(dataset, block).bar
        assert 0 < len(kept) < len(dataset)
        assert not np.isin(kept, np.arange(block.held_out.start - 1, block.held_out.stop + 1)).any()


def test_they_are_pretrained_no_longer_than_the_agent(tiny: Make) -> None:
    assert tiny(**WITH_BLOCKS, out_of_fold__pretraining_epochs=0).fold_epochs == 0
    assert tiny(**WITH_BLOCKS).fold_epochs == 1
    assert tiny(**WITH_BLOCKS | {"train__offline_training_epochs": 3}, offline__method="none").fold_epochs == 1
    assert tiny(**WITH_BLOCKS | {"out_of_fold__blocks": 1}).fold_epochs == 0


def test_the_pretrained_policy_is_the_agents_own_offline_phase(tiny: Make) -> None:
    """Also where that was longer than what the blocks' learners were pretrained for."""
    keys = {**WITH_BLOCKS, "train__offline_training_epochs": 2, "out_of_fold__pretraining_epochs": 1}
    trainer = FinFlowTrainer(tiny(**keys | {"train__online_episodes": 2, "train__critic_only_updates": 0}))
    before = pretrained_networks(trainer)["policy"]
    trainer.finetune()
    held = trainer.agent.prior.state_dict()
    assert all(torch.equal(held[name], tensor) for name, tensor in before.items())


def pretrained_networks(trainer: FinFlowTrainer) -> dict[str, dict[str, torch.Tensor]]:
    """Networks at the end of the logged offline phase."""
    trainer.train_iql()
    learner = trainer._begin().state.learner
    assert learner is not None
    parts = {name: getattr(learner, name).state_dict() for name in ("policy", "critic", "target_critic", "value")}
    return {part: {name: tensor.clone() for name, tensor in state.items()} for part, state in parts.items()}


def test_without_online_updates_the_agent_is_the_end_of_the_offline_phase(tiny: Make) -> None:
    """Every tensor, bit for bit; the evidence of the blocks, pretrained alike, decides how much of it is held."""
    trainer = FinFlowTrainer(tiny(**WITH_BLOCKS, train__online_episodes=0, train__warmup_episodes=0))
    before = pretrained_networks(trainer)
    trainer.finetune()
    agent = trainer.agent
    for part, state in before.items():
        own = agent.behaviour_value if part == "value" else getattr(agent, part)
        assert all(torch.equal(own.state_dict()[name], tensor) for name, tensor in state.items()), part
    evidence = trainer._begin().state.out_of_fold
    assert evidence is not None
    assert evidence.evidence is not None
    assert evidence.evidence["look"] == 0.0


def test_another_seed_of_the_offline_phase_makes_another_agent(tiny: Make) -> None:
    """Fine-tuned by the same seed: what the offline phase learned reaches what the agent does."""
    keys: dict[str, object] = {**WITH_BLOCKS, "out_of_fold__blocks": 1, "train__online_episodes": 4}
    chosen = []
    for seed in (0, 1):
        networks = pretrained_networks(FinFlowTrainer(tiny(**keys, train__seed=seed)))
        trainer = FinFlowTrainer(tiny(**keys))
        trainer.train_iql()
        learner = trainer._begin().state.learner
        assert learner is not None
        for part, state in networks.items():
            getattr(learner, part).load_state_dict(state)
        trainer.finetune()
        environment = make_env(trainer.config, "validation")
        observation, _ = environment.reset(seed=0)
        chosen.append(trainer.agent.act(observation))
    assert np.abs(chosen[0] - chosen[1]).max() > 1e-3


@pytest.mark.parametrize("fails", [False, True])
def test_pretraining_during_the_offline_phase_changes_no_bit(
    fails: bool, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own while the agent learns offline; where that process fails, in this one."""
    keys = {**WITH_BLOCKS, "train__offline_training_epochs": 2, "out_of_fold__pretraining_epochs": 1}
    keys |= {"train__online_episodes": 2, "train__reward_normalization__enabled": True}
    alone = train_through(tiny(**keys))
    monkeypatch.setattr(cores, "available_cores", lambda: 2)
    pretrain, here, learned_here = pretraining._pretrain, os.getpid(), []

    def pretrain_or_fail(*arguments: Any) -> Any:
        learned_here.append(arguments[-1])  # in the other process a copy is written to
        if fails and os.getpid() != here:
            raise RuntimeError
        return pretrain(*arguments)

    monkeypatch.setattr(pretraining, "_pretrain", pretrain_or_fail)
    beside = FinFlowTrainer(tiny(**keys))
    with pretraining.pretraining_in_parallel(beside._begin(), beside.collect_offline_data()):
        beside.train_iql()
    beside.finetune()
    if fails:
        blocks = beside.config.out_of_fold.blocks
        assert sorted(learned_here) == list(range(blocks))
    assert latest(beside).read_bytes() == latest(alone).read_bytes()


def test_two_processes_share_the_blocks_that_neither_has_begun() -> None:
    begun, numbers = [0, 0, 0, 0], range(4)
    first, second = pretraining._not_begun(begun, numbers), pretraining._not_begun(begun, numbers[::-1])
    assert [next(first), next(second), next(first), next(second)] == [0, 3, 1, 2]
    assert not [*first, *second]


def test_nothing_is_pretrained_beside_where_the_online_phase_does_not_need_it(tiny: Make) -> None:
    for keys in ({"out_of_fold__blocks": 1}, {"online__algorithm": "ppo"}):
        trainer = FinFlowTrainer(tiny(**{**WITH_BLOCKS, **keys}))
        with pretraining.pretraining_in_parallel(trainer._begin(), trainer.collect_offline_data()):
            pass
        assert trainer._begin().pretrained_blocks is None
