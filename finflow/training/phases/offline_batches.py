"""Batches of the offline phase: the behaviour's transitions in random order, or several actions of each state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.learners.offline_learner import OfflineLearner
from finflow.config import Config
from finflow.env.decision_process import resumed_state
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.mirrored_growth import NO_MIRROR, Mirror, with_mirrored_bars
from finflow.training.data.replay import Transitions, make_batch
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.off_policy.counterfactuals import ACTIONS, Comparison, counterfactual_batch
from finflow.training.phases.training_state import seeded

LEAST_KEPT = 0.85
"""Smallest share of the transitions that full groups must hold; the rest is left out of the epoch."""


def group_size(bars: Tensor, wanted: int, batch_size: int) -> int:
    """The largest size of groups, a half, a quarter ... of the one wanted, that leaves few transitions over."""
    counts = torch.bincount(bars)
    size = wanted
    while size > 1 and (size > batch_size or int((counts // size).sum()) * size < LEAST_KEPT * len(bars)):
        size //= 2
    return max(size, 1)


def n_groups(bars: Tensor, size: int) -> int:
    return int((torch.bincount(bars) // size).sum())


def epoch_order(bars: Tensor, size: int, generator: Generator) -> Tensor:
    """Rows of an epoch, (n_groups, size): the full groups of each bar's transitions in a new random order.

    ``bars`` (n,): on the CPU, so that the order is the same on every device. ``generator``: on the CPU.
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


ORDER_PURPOSE = 1000  # generators of epochs are numbered from here
COMPARED_PURPOSE = 1001  # of the generators of actions to compare, one for each update


class Epochs:
    def __init__(self, config: Config, dataset: OfflineDataset) -> None:
        self.seed = config.train.seed
        self.bars = torch.from_numpy(dataset.bar.astype(np.int64))
        self.group_size = group_size(self.bars, config.offline.group_size, config.train.offline_batch_size)
        available = n_groups(self.bars, self.group_size)
        if available == 0:  # no bar has so many
            self.group_size, available = 1, len(self.bars)
        self.groups = min(config.train.offline_batch_size // self.group_size, available)
        self.updates = max(available // self.groups, 1)
        self.total = config.offline_epochs * self.updates
        self._order: tuple[tuple[int, int], Tensor] | None = None

    def rows(self, update: int, rollbacks: int = 0) -> Tensor:
        """Rows of the batch of an update, (groups * group_size,); in another order after each rollback."""
        epoch, place = divmod(update, self.updates)
        key = epoch, rollbacks
        if self._order is None or self._order[0] != key:
            generator = seeded(self.seed, ORDER_PURPOSE + epoch)
            if rollbacks:
                words = np.random.SeedSequence([self.seed, ORDER_PURPOSE, rollbacks, epoch])
                generator.manual_seed(int(words.generate_state(1, np.uint64)[0]))
            self._order = key, epoch_order(self.bars, self.group_size, generator)
        return self._order[1][place * self.groups : (place + 1) * self.groups].flatten()

    def returns_due(self, update: int) -> bool:
        """Return True where the behaviour's returns are recomputed before an update: at the beginning of each epoch."""
        return update % self.updates == 0


class OfflineBatches(NamedTuple):
    """Batches for the updates of an offline learner.

    ``compares``: whether each state has several actions, with exact outcomes; batches have as many actions either way.
    """

    market: RolloutMarket
    store: Transitions
    epochs: Epochs
    config: Config
    compares: bool
    mirror: Mirror

    @classmethod
    def of(
        cls,
        market: RolloutMarket,
        store: Transitions,
        epochs: Epochs,
        learner: OfflineLearner,
        config: Config,
        segments: Sequence[range],
    ) -> OfflineBatches:
        """Batches for a learner that may see some segments of the training years."""
        compares, mirror = config.offline.counterfactual and learner.compares_actions and epochs.total > 0, NO_MIRROR
        if compares:
            market, (mirror,) = with_mirrored_bars(market, [segments], config.bcell.mirrored.weight)
        return cls(market, store, epochs, config, compares, mirror)

    def draw(self, learner: OfflineLearner, noise: Generator, update: int, rollbacks: int = 0) -> Batch:
        """Batch of the next update, after so many updates and rollbacks; the policy's own action is among a state's."""
        scale, market, epochs = self.config.train.observation_noise, self.market, self.epochs
        places = epochs.rows(update, rollbacks).to(self.store.device)
        if not self.compares:
            return make_batch(self.store.rows(places), market.tensors, market.units, noise, scale, epochs.group_size)
        rows = self.store.rows(places[::ACTIONS])
        state = resumed_state(market.process, rows["bar"].cpu().numpy(), rows["portfolio"].double().cpu().numpy())
        rng = np.random.default_rng(np.random.SeedSequence([epochs.seed, COMPARED_PURPOSE, rollbacks, update]))
        compared = Comparison(learner.policy, rng, noise, self.mirror)
        return counterfactual_batch(market, rows, state, compared, scale)[0]
