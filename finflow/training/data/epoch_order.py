"""The order in which an epoch visits transitions: in groups of one bar, whose market is then encoded once.

Most of the cost of an update is the encoding of markets. All portfolios of a bar see the same one, so a batch of G
groups of P transitions costs little more than one of G transitions. An epoch draws new groups, so that transitions of a
group have the bar alone in common.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

LEAST_KEPT = 0.85
"""Smallest share of the transitions that full groups must hold; the rest is left out of the epoch."""


def group_size(bars: Tensor, wanted: int, batch_size: int) -> int:
    """The largest size of groups, a half, a quarter ... of the one wanted, that leaves few transitions over.

    Parameters
    ----------
    bars : int Tensor, (n,)
        Of the transitions.
    batch_size : int
        A batch holds whole groups.
    """
    counts = torch.bincount(bars)
    size = wanted
    while size > 1 and (size > batch_size or int((counts // size).sum()) * size < LEAST_KEPT * len(bars)):
        size //= 2
    return max(size, 1)


def n_groups(bars: Tensor, size: int) -> int:
    """Full groups of an epoch."""
    return int((torch.bincount(bars) // size).sum())


def epoch_order(bars: Tensor, size: int, generator: Generator) -> Tensor:
    """Rows of an epoch, (n_groups, size): the full groups of each bar's transitions in a new random order.

    Parameters
    ----------
    bars : int Tensor, (n,)
        On the CPU, so that the order is the same on every device.
    generator : Generator
        On the CPU.
    """
    if size == 1:
        return torch.randperm(len(bars), generator=generator).unsqueeze(1)
    shuffled = torch.randperm(len(bars), generator=generator)
    rows = shuffled[bars[shuffled].argsort(stable=True)]
    counts = torch.bincount(bars)
    place = torch.arange(len(bars)) - (counts.cumsum(0) - counts)[bars[rows]]
    full = (counts // size * size)[bars[rows]]
    groups = rows[place < full].view(-1, size)
    return groups[torch.randperm(len(groups), generator=generator)]
