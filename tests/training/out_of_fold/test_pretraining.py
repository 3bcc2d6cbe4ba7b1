"""Offline learning without a block: which transitions, for how long, and the same bits beside the offline phase."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from finflow import cores
from finflow.training.out_of_fold import pretraining
from finflow.training.out_of_fold.pretraining import transitions_outside
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import WITH_BLOCKS, Make, latest, train_through

Trained = Any


def test_blocks_policies_are_pretrained_without_their_blocks(trained: Trained) -> None:
    dataset = trained.trainer.collect_offline_data()
    assert len(trained.evidence.pretrained) == len(trained.evidence.blocks) == 2
    for block in trained.evidence.blocks:
        kept = transitions_outside(dataset, block).bar
        assert 0 < len(kept) < len(dataset)
        assert not np.isin(kept, np.arange(block.held_out.start - 1, block.held_out.stop + 1)).any()


def test_they_are_pretrained_no_longer_than_the_agent(tiny: Make) -> None:
    assert tiny(**WITH_BLOCKS, out_of_fold__pretraining_epochs=0).fold_epochs == 0
    assert tiny(**WITH_BLOCKS).fold_epochs == 1
    assert tiny(**WITH_BLOCKS, offline__method="none").fold_epochs == 0
    assert tiny(**WITH_BLOCKS | {"out_of_fold__blocks": 1}).fold_epochs == 0


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_pretrained_reference_was_pretrained_for_as_long_as_those_of_the_blocks(epochs: int, tiny: Make) -> None:
    """After two epochs of its own, the agent's policy goes on, and one of a single epoch is the reference."""
    keys = {**WITH_BLOCKS, "train__offline_training_epochs": epochs, "out_of_fold__pretraining_epochs": 1}
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
        assert sorted(map(str, learned_here)) == sorted(map(str, [None, *range(blocks)]))
    assert latest(beside).read_bytes() == latest(alone).read_bytes()


def test_two_processes_share_the_blocks_that_neither_has_begun() -> None:
    begun, numbers = [0, 0, 0, 0], list(enumerate([None, 0, 1, 2]))
    first, second = pretraining._not_begun(begun, numbers), pretraining._not_begun(begun, numbers[::-1])
    assert [next(first), next(second), next(first), next(second)] == [None, 2, 0, 1]
    assert not [*first, *second]


def test_nothing_is_pretrained_beside_where_the_online_phase_does_not_need_it(tiny: Make) -> None:
    for keys in ({"out_of_fold__blocks": 1}, {"online__algorithm": "ppo"}, {"offline__method": "none"}):
        trainer = FinFlowTrainer(tiny(**{**WITH_BLOCKS, **keys}))
        with pretraining.pretraining_in_parallel(trainer._begin(), trainer.collect_offline_data()):
            pass
        assert trainer._begin().pretrained_blocks is None
