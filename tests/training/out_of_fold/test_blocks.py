"""Blocks of the training years: a learner never learns from a bar of its own, nor from one whose reward reaches it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from finflow.training.data.training_data import prepare
from finflow.training.off_policy.learners import Learners
from finflow.training.out_of_fold.evidence import make_blocks, training_blocks, training_segments
from finflow.training.trainer import FinFlowTrainer
from tests.training.whole_trainings import WITH_BLOCKS, Make, checkpoint_of

Trained = Any


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


def test_with_one_block_there_is_no_evidence_and_no_learner_but_the_agent(tiny: Make) -> None:
    config = tiny(out_of_fold__blocks=1)
    assert training_blocks(config, prepare(config)) == ()


def test_learners_of_blocks_begin_and_stay_outside_of_them(trained: Trained) -> None:
    """Portfolios, the replay, and the behaviour's data: the delivered agent alone sees all bars."""
    learners: Learners = trained.learners
    (whole,) = training_segments(trained.trainer.training_data)
    assert learners.everyone[0].portfolios.starts[-1] == whole.stop - 4
    for learner, block in zip(learners.of_blocks, trained.evidence.blocks, strict=True):
        seen = learner.replay.columns["bar"][: learner.replay.occupied].numpy()
        assert len(seen) > 0
        held = np.arange(block.held_out.start - 1, block.held_out.stop + 1)
        assert not np.isin(seen, held).any()
        assert not np.isin(learner.portfolios.state.bar, held).any()
        assert not np.isin(learner.portfolios.starts[:, None] + np.arange(4), held).any()
    own = learners.everyone[0].replay.columns["bar"].numpy()
    assert any(
        np.isin(own, np.arange(block.held_out.start, block.held_out.stop)).any() for block in trained.evidence.blocks
    )


def test_no_learner_of_a_block_sees_a_price_of_its_block(trained: Trained) -> None:
    """Other prices within a block change what the others learn, but not a bit of its own: policy, critics, replay.

    Rewards are changed in the tables of growth, which are all that decisions earn; features are left as they are.
    """
    finals = []
    keys = {**WITH_BLOCKS, "train__online_episodes": 6}
    for held in (None, 1):
        other = FinFlowTrainer(trained.make(**keys), pretrained=checkpoint_of(trained.trainer, "pretrained"))
        run = other._begin()
        process = other.training_data.learning
        if held is not None:
            other._hand_over(run)
            assert run.state.out_of_fold is not None
            block = run.state.out_of_fold.blocks[held].held_out
            process.growth[block.start : block.stop + 1, :-1] *= 1.01
        other.finetune()
        learners = other._begin().state.learners
        assert learners is not None
        finals.append([one.agent.policy.state_dict() | one.agent.critic.state_dict() for one in learners.everyone])
        finals[-1][-1] |= dict(learners.everyone[-1].replay.columns)
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(*finals, strict=True)]
    assert same == [False, False, True]
