"""The behaviour's transitions as learners see them: their units, their returns, and batches of the offline phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States
from finflow.agent.learners.offline_learner import OfflineLearner
from finflow.agent.losses.quantiles import needs_quantiles
from finflow.agent.networks.critic import ValueNetwork
from finflow.config import Config
from finflow.errors import TrainingError
from finflow.offline.dataset import OfflineDataset, episode_ends, lambda_returns
from finflow.training.data.mirrored_growth import with_mirrored_bars
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.reward_normalizer import RewardNormalizer
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import NO_MIRROR, RolloutMarket
from finflow.training.off_policy.evidence import Block
from finflow.training.off_policy.exact_decisions import ACTIONS, Comparison, counterfactual_batch
from finflow.training.phases.training_run import TrainingRun
from finflow.training.phases.training_state import seeded

PROBE_STATES = 64  # recorded states that the guard checks the policy on
VALUE_ROWS = 4096  # states valued at once
TD_LAMBDA = 0.95  # of the returns that the value of the behaviour is fitted to
LEAST_KEPT = 0.85
"""Smallest share of the transitions that full groups must hold; the rest is left out of the epoch."""
ORDER_PURPOSE = 1000  # generators of epochs are numbered from here
COMPARED_PURPOSE = 1001  # of the generators of actions to compare, one for each update


def reward_units(run: TrainingRun, dataset: OfflineDataset) -> RewardUnits:
    """Units of a training's rewards; its window of normalisation is filled from the data where it is empty."""
    reference = run.config.train.reward_reference
    units = RewardUnits.of(run.training_data.learning, dataset.reward_scale, reference, run.device)
    units = units._replace(whole_spread=needs_quantiles(run.config.bcell))
    return filled(units, run.state.reward_normalizer, dataset)


def filled(units: RewardUnits, normalizer: RewardNormalizer | None, dataset: OfflineDataset) -> RewardUnits:
    """Units with a normaliser; an empty window is filled with the behaviour's rewards, evenly from all of them.

    Both phases then begin in the same units; online rewards replace them.
    """
    units = units._replace(normalizer=normalizer)
    if normalizer is not None and not normalizer.get_statistics()["count"]:
        count = min(normalizer.config.window_size, len(dataset))
        places = np.linspace(0, len(dataset) - 1, count).astype(np.int64)
        units.remember(dataset.reward[places].astype(np.float64), dataset.bar[places])
    return units


def offline_market(run: TrainingRun, units: RewardUnits) -> RolloutMarket:
    """The market that is learned in offline, with what experts learn from beside decisions."""
    process = run.training_data.learning
    tensors = MarketTensors.of(process, run.device, run.config.bcell.expert_cloning > 0.0)
    return RolloutMarket(process, tensors, units)


def probe_states(store: Transitions, market: MarketTensors) -> States:
    """Recorded states, evenly spaced in the data, on which the guard measures the policy."""
    places = torch.linspace(0, len(store) - 1, min(PROBE_STATES, len(store))).round().long().to(store.device)
    rows = store.rows(places)
    return market.states(rows["bar"], rows["portfolio"])


def transitions_outside(dataset: OfflineDataset, block: Block) -> OfflineDataset:
    """The transitions of the decisions that a block's policy may learn from."""
    allowed = np.concatenate([np.arange(one.start, one.stop) for one in block.learned])
    kept = np.isin(dataset.bar, allowed)
    if not kept.any():
        raise TrainingError(
            f"the behaviour data has no decision outside the block of bars {block.held_out.start} to "
            f"{block.held_out.stop - 1}; raise train.offline_episodes, or set out_of_fold.blocks=1"
        )
    columns: dict[str, Any] = {
        one.name: getattr(dataset, one.name)[kept] for one in fields(dataset) if one.name != "meta"
    }
    return replace(dataset, **columns)


@torch.no_grad()
def behaviour_values(store: Transitions, value: ValueNetwork, market: MarketTensors, after: bool = False) -> Tensor:
    """Fitted values of the behaviour at every stored state, or at those after the transitions; (transitions,)."""
    bars, portfolios = store.columns["bar"] + int(after), store.columns["next_portfolio" if after else "portfolio"]
    values = torch.empty(len(store), device=store.device)
    for start in range(0, len(store), VALUE_ROWS):
        rows = slice(start, min(start + VALUE_ROWS, len(store)))
        values[rows] = value.of_behaviour(market.states(bars[rows], portfolios[rows]))
    return values


def behaviour_returns(
    dataset: OfflineDataset,
    store: Transitions,
    value: ValueNetwork,
    market: RolloutMarket,
    gamma: float,
    td_lambda: float = TD_LAMBDA,
) -> Tensor:
    """The behaviour's lambda-returns, in scaled rewards, bootstrapped from a value as it stands; (transitions,)."""
    columns = store.columns
    returns = lambda_returns(
        market.units.scaled(columns["reward"].double(), columns["bar"]).cpu().numpy(),
        behaviour_values(store, value, market.tensors, after=True).double().cpu().numpy(),
        dataset.terminated,
        episode_ends(dataset.episode, dataset.terminated),
        gamma,
        td_lambda,
    )
    return torch.from_numpy(returns)


def group_size(bars: Tensor, wanted: int, batch_size: int) -> int:
    """The largest size of groups, a half, a quarter ... of the one wanted, that leaves few transitions over."""
    counts = torch.bincount(bars)
    size = wanted
    while size > 1 and (size > batch_size or int((counts // size).sum()) * size < LEAST_KEPT * len(bars)):
        size //= 2
    return max(size, 1)


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


class Epochs:
    """Order of the transitions at some bars (n,) in the updates of the offline phase."""

    def __init__(self, config: Config, bars: NDArray[np.integer[Any]]) -> None:
        self.seed = config.train.seed
        self.bars = torch.from_numpy(bars.astype(np.int64))
        self.group_size = group_size(self.bars, config.offline.group_size, config.train.offline_batch_size)
        available = int((torch.bincount(self.bars) // self.group_size).sum())
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


class OfflineLearning:
    """Updates of an offline learner by the transitions of some segments of the training years.

    ``compares``: whether each state has several actions, with exact outcomes; batches have as many actions either way.
    ``returns`` (transitions,): the behaviour's, which each epoch begins by computing anew.
    """

    def __init__(
        self,
        learner: OfflineLearner,
        dataset: OfflineDataset,
        market: RolloutMarket,
        config: Config,
        segments: Sequence[range],
        returns: Tensor,
    ) -> None:
        self.learner, self.dataset, self.market, self.config = learner, dataset, market, config
        self.epochs = Epochs(config, dataset.bar)
        self.store = Transitions.of(dataset, returns.device)
        self.store.columns["behaviour_return"] = returns
        self.compares = config.offline.counterfactual and learner.compares_actions and self.epochs.total > 0
        self._mirrored, self._mirror = market, NO_MIRROR
        if self.compares:
            self._mirrored, (self._mirror,) = with_mirrored_bars(market, [segments], config.bcell.mirrored.weight)

    def update(
        self, done: int, noise: Generator, rollbacks: int = 0, accepts: Callable[[Batch], bool] = lambda _: True
    ) -> dict[str, Tensor]:
        """Take the next update, after so many updates and rollbacks; none where ``accepts`` refuses its batch."""
        learner, gamma = self.learner, self.config.bcell.gamma
        if done % self.epochs.updates == 0:
            returns = behaviour_returns(self.dataset, self.store, learner.value, self.market, gamma)
            self.store.columns["behaviour_return"].copy_(returns)
        batch = self._draw(done, noise, rollbacks)
        return learner.update(batch, done / self.epochs.total, noise) if accepts(batch) else {}

    def _draw(self, done: int, noise: Generator, rollbacks: int) -> Batch:
        """Batch of an update; the policy's own action is among a state's."""
        scale, market, epochs = self.config.train.observation_noise, self._mirrored, self.epochs
        places = epochs.rows(done, rollbacks).to(self.store.device)
        if not self.compares:
            return make_batch(self.store.rows(places), market.tensors, market.units, noise, scale, epochs.group_size)
        rows = self.store.rows(places[::ACTIONS])
        rng = np.random.default_rng(np.random.SeedSequence([epochs.seed, COMPARED_PURPOSE, rollbacks, done]))
        compared = Comparison(self.learner.policy, rng, noise, self._mirror)
        return counterfactual_batch(market, rows, market.resumed(rows), compared, scale)[0]
