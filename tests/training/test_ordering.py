"""The order of an epoch: groups share a bar, rows come once, and nothing else is decided by the grouping."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finflow.config import load_config
from finflow.offline.dataset import OfflineDataset
from finflow.training.phases.offline_batches import Epochs, epoch_order, group_size, n_groups
from finflow.training.phases.training_state import seeded


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(max_examples=50, deadline=None)
@given(
    bars=st.lists(st.integers(0, 12), min_size=1, max_size=200),
    size=st.sampled_from([1, 2, 4, 8]),
    seed=st.integers(0, 99),
)
def test_groups_share_their_bar_and_no_row_comes_twice(bars: list[int], size: int, seed: int) -> None:
    held = torch.tensor(bars)
    order = epoch_order(held, size, generator(seed))
    assert order.shape == (n_groups(held, size), size)
    assert len(order.flatten().unique()) == order.numel()
    assert (held[order] == held[order][:, :1]).all()
    left_over = torch.bincount(held) - torch.bincount(held[order].flatten(), minlength=int(held.max()) + 1)
    assert bool((left_over < size).all())


def test_what_is_left_over_changes_with_the_epoch() -> None:
    bars = torch.arange(10).repeat_interleave(7)
    kept = [set(epoch_order(bars, 4, generator(seed)).flatten().tolist()) for seed in range(20)]
    assert set.union(*kept) == set(range(70))  # seven rows a bar, four an epoch: twenty epochs reach them all
    assert epoch_order(bars, 4, generator(3)).tolist() == epoch_order(bars, 4, generator(3)).tolist()


@pytest.mark.parametrize(("each", "wanted", "batch", "expected"), [(24, 4, 512, 4), (5, 4, 512, 1), (6, 4, 512, 2)])
def test_groups_shrink_where_bars_have_few_transitions(each: int, wanted: int, batch: int, expected: int) -> None:
    # of 5 rows a group of 4 leaves one over (80 % kept), two groups of 2 as many; of 6, groups of 2 keep all
    bars = torch.arange(50).repeat_interleave(each)
    assert group_size(bars, wanted, batch) == expected


def test_a_group_fits_into_a_batch() -> None:
    assert group_size(torch.zeros(64, dtype=torch.int64), 8, 2) == 2


def test_every_epoch_has_an_order_of_its_own_after_a_rollback_too() -> None:
    data = SimpleNamespace(bar=np.repeat(np.arange(4), 8))
    config = load_config(None, {"train.offline_batch_size": 32, "offline.group_size": 4}, environ={})
    epochs = Epochs(config, cast(OfflineDataset, data))
    assert epochs.updates == 1
    drawn = {(epoch, rollbacks): epochs.rows(epoch, rollbacks).tolist() for epoch in range(5) for rollbacks in range(3)}
    assert len({str(rows) for rows in drawn.values()}) == len(drawn)
    assert drawn[3, 0] == epoch_order(epochs.bars, 4, seeded(config.train.seed, 1003)).flatten().tolist()


def test_the_behaviours_returns_are_renewed_in_every_epoch() -> None:
    data = SimpleNamespace(bar=np.repeat(np.arange(4), 8))
    keys = {"train.offline_batch_size": 8, "train.offline_training_epochs": 50, "offline.group_size": 1}
    epochs = Epochs(load_config(None, keys, environ={}), cast(OfflineDataset, data))
    assert (epochs.updates, epochs.total) == (4, 200)
    assert [update for update in range(200) if epochs.returns_due(update)] == list(range(0, 200, 4))
