"""Blocks of the training years: contiguous decision bars, each of which one learner does not learn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from finflow.config import Config
from finflow.training.data.training_data import TrainingData


class Block(NamedTuple):
    """Bars of decisions that one learner does not learn from, and those that it learns from.

    Attributes
    ----------
    held_out : range
        Bars of decisions.
    learned : tuple of range
        Bars of decisions; those whose rewards would reach into the block are left out.
    """

    held_out: range
    learned: tuple[range, ...]


def make_blocks(segments: Sequence[range], count: int, purge: int) -> tuple[Block, ...]:
    """Split decision bars into contiguous blocks of equal length.

    Parameters
    ----------
    segments : sequence of range
        Bars of decisions, in order.
    purge : int
        Bars left out on both sides of a block.
    """
    bars = np.concatenate([np.arange(one.start, one.stop) for one in segments])
    parts = [part for part in np.array_split(bars, count) if len(part)]
    blocks = []
    for part in parts:
        first, last = int(part[0]), int(part[-1])
        learned = [range(one.start, min(one.stop, first - purge)) for one in segments]
        learned += [range(max(one.start, last + 1 + purge), one.stop) for one in segments]
        blocks.append(Block(range(first, last + 1), tuple(one for one in learned if len(one))))
    return tuple(blocks)


def training_blocks(config: Config, training_data: TrainingData) -> tuple[Block, ...]:
    """Blocks of the training years that a learner each does not see; none with one block or fewer."""
    count, process = config.out_of_fold.blocks, training_data.learning
    if count <= 1:
        return ()
    # a window's last reward is earned on the bars after its last decision
    return make_blocks(training_segments(training_data), count, process.lag + process.reward_horizon)


def training_segments(training_data: TrainingData) -> list[range]:
    """Bars of decisions of the training years, in order."""
    return [training_data.learning.decision_bars(window) for window in training_data.train_segments]
