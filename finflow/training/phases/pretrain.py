"""The offline phase: passes of the configured method over the behaviour's transitions, and fitted Q evaluation.

The agent's own offline phase sees all training years. Its performance out of sample is estimated by policies that were
pretrained without a block of years, in that block; and the blocks' learners begin as the agent's own does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch
from finflow.agent.gradient_steps import gradient_step, make_optimiser, polyak_update
from finflow.agent.learners.offline_learner import METHODS, OfflineLearner, portfolio_networks
from finflow.agent.losses.off_policy_losses import bellman_target, mean_loss
from finflow.agent.losses.quantiles import needs_quantiles
from finflow.agent.networks.critic import ValueNetwork
from finflow.config import Config
from finflow.cores import shared_with_fork
from finflow.offline.dataset import OfflineDataset, episode_ends, lambda_returns
from finflow.training.checkpoints.checkpoint_reader import OFFLINE
from finflow.training.data.mirrored_growth import Predictions, with_mirrored_bars
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import NO_MIRROR, RolloutMarket, with_normalizer
from finflow.training.off_policy.evidence import Block, training_blocks, training_segments, transitions_outside
from finflow.training.off_policy.exact_decisions import ACTIONS, counterfactual_batch, measure_decision_scale
from finflow.training.phases.run_guard import LearnerProbe, probe_states
from finflow.training.phases.training_run import TrainingRun, validate_and_save
from finflow.training.phases.training_state import seeded

VALUE_ROWS = 4096  # states valued at once; more where a bar alone has more
TD_LAMBDA = 0.95  # of the returns that the value of the behaviour is fitted to
LEAST_KEPT = 0.85
"""Smallest share of the transitions that full groups must hold; the rest is left out of the epoch."""
ORDER_PURPOSE = 1000  # generators of epochs are numbered from here
COMPARED_PURPOSE = 1001  # of the generators of actions to compare, one for each update
FITTED_Q_PURPOSE = 8  # of the generator that orders the data of fitted Q evaluation
FITTED_Q_ROWS = 4096  # transitions whose states the policy's value is averaged over
BLOCKS_PURPOSE = 300  # generators of the blocks' networks and noise are numbered from here
NETWORKS = ("policy", "critic", "target_critic", "value")
Networks = dict[str, NDArray[np.float32]]


def learning_market(run: TrainingRun, with_families: bool = False) -> RolloutMarket:
    """The market that a training learns in, with its rewards in the units of learners.

    ``with_families``: also what experts learn from beside decisions.
    """
    process, config, dataset = run.training_data.learning, run.config, run.dataset
    units = RewardUnits.of(process, dataset.reward_scale, config.train.reward_reference, run.device)
    units = units._replace(whole_spread=needs_quantiles(config.bcell))
    tensors = MarketTensors.of(process, run.device, with_families and config.bcell.expert_cloning > 0.0)
    return with_normalizer(RolloutMarket(process, tensors, units), run.state.reward_normalizer, dataset)


@torch.no_grad()
def behaviour_values(store: Transitions, value: ValueNetwork, market: MarketTensors, after: bool = False) -> Tensor:
    """Fitted values of the behaviour at every stored state, or at those after the transitions; (transitions,)."""
    bars, portfolio = store.columns["bar"] + int(after), "next_portfolio" if after else "portfolio"
    values, order = torch.empty(len(store), device=store.device), bars.argsort(stable=True)
    known, counts = torch.unique_consecutive(bars[order], return_counts=True)
    first, left = counts.cumsum(0) - counts, counts.argsort(descending=True, stable=True)
    while len(left):  # bars, those with the most portfolios first
        most = int(counts[left[0]])
        some, left = left.tensor_split([max(VALUE_ROWS // most, 1)])
        place, count = torch.arange(most, device=store.device), counts[some].unsqueeze(1)
        rows = order[first[some].unsqueeze(1) + place.minimum(count - 1)]  # a bar with fewer has its last one again
        states = market.states(known[some], store.column(portfolio, rows.flatten()))
        values[rows[place < count]] = value.of_behaviour(states).view(rows.shape)[place < count]
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
    ``returns`` (transitions,): the behaviour's, which each epoch begins by computing anew. ``known``: predicted returns
    so far, see `with_mirrored_bars`.
    """

    def __init__(
        self,
        learner: OfflineLearner,
        dataset: OfflineDataset,
        market: RolloutMarket,
        config: Config,
        segments: Sequence[range],
        returns: Tensor,
        known: Predictions | None = None,
    ) -> None:
        self.learner, self.dataset, self.market, self.config = learner, dataset, market, config
        self.epochs = Epochs(config, dataset.bar)
        self.store = Transitions.of(dataset, returns.device)
        self.store.columns["behaviour_return"] = returns
        self.compares = config.offline.counterfactual and learner.compares_actions and self.epochs.total > 0
        self._mirrored, self._mirror = market, NO_MIRROR
        if self.compares:
            weight = config.bcell.mirrored.weight
            self._mirrored, (self._mirror,) = with_mirrored_bars(market, [segments], weight, known)

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
        return counterfactual_batch(market, rows, self.learner.policy, rng, noise, self._mirror, scale)[0]


def pretrain(run: TrainingRun) -> dict[str, float]:
    """Train to the end of the offline phase, from wherever the state stands.

    Returns the last update's losses (``v_loss``, ``q_loss``, ``policy_loss`` among others) and validation metrics.
    """
    config, state, dataset = run.config, run.state, run.dataset
    counters, learner = state.counters, state.learner
    if learner is None or state.behaviour_returns is None:
        raise ValueError("the offline phase is over")
    policy, segments = learner.policy, training_segments(run.training_data)
    market = learning_market(run, with_families=True)
    if counters.phase_update == 0:
        learner.advantage_scale = measure_decision_scale(market, policy, config, segments)
    learning = OfflineLearning(learner, dataset, market, config, segments, state.behaviour_returns, run.predictions)
    total = learning.epochs.total
    if config.offline.method == "none" and total:
        run.progress.note(f"offline.method none: critics alone are fitted to the behaviour, in {total:,} updates")
    run.progress.start_phase(f"{OFFLINE} ({config.offline.method})", total, done=counters.phase_update)
    run.probe = probe_states(learning.store, market.tensors)
    run.guard.begin(LearnerProbe(learner, policy, run.probe), dataset.reward_scale, learner.moves_far)
    metrics: dict[str, Tensor] = {}
    result: dict[str, float] = {}

    def evaluated(ends: bool) -> dict[str, float]:
        return {"fitted_q_value": fitted_q_value(learning)} if ends and config.offline.evaluation_updates else {}

    while counters.phase_update < total and not run.is_out_of_patience:
        done = counters.phase_update
        if learner.moves_far and done == 0:
            run.guard.settle()
        latest = learning.update(done, state.noise, state.watch.manager.rollback_count, run.guard.accepts)
        metrics |= latest
        if run.count_update(latest, {"epoch": float(done // learning.epochs.updates)}):
            metrics = {}
            run.stop_if_asked()
            continue
        last = counters.phase_update == total
        facts = evaluated(last)
        result = validate_and_save(run, policy, metrics, facts, last) | facts or result
        if not last and run.is_out_of_patience:
            run.progress.note(
                f"the offline phase ends after {counters.phase_update:,} updates: no better validation for "
                f"{counters.update - (counters.best_update or 0):,} (offline.patience)"
            )
            if facts := evaluated(True):
                run.log.record(counters.phase, counters.update, facts)
                result |= facts
            run.checkpoint()
        run.stop_if_asked()
    run.progress.end_phase()
    return result


@contextmanager
def pretraining_in_parallel(run: TrainingRun) -> Iterator[None]:
    """Pretrain without each block in another process while the code block runs, into ``run.pretrained_blocks``.

    After the code block this process takes blocks as well. The results have the same bits as in one process. Nothing is
    pretrained where no epochs are configured, or once learners have begun.
    """
    counters, each = run.state.counters, run.config.fold_epochs
    if each == 0 or counters.vector_step > 0 or run.pretrained_blocks:
        yield
        return
    blocks = training_blocks(run.config, run.training_data)
    run.progress.note(f"pretraining a policy without each of {len(blocks)} blocks of years, {each} epochs each")
    learned_in = cache(partial(learning_market, run, with_families=True))  # once for all blocks of a process
    with shared_with_fork(partial(_pretrain_block, run, learned_in, blocks), len(blocks)) as results:
        yield
    for networks, predictions in results():
        run.pretrained_blocks.append(networks)
        run.predictions.update(predictions)


def _pretrain_block(
    run: TrainingRun, learned_in: Callable[[], RolloutMarket], blocks: Sequence[Block], number: int
) -> tuple[Networks, Predictions]:
    """Networks of a learner that was pretrained without one of the blocks, and the returns predicted for it."""
    market = with_normalizer(learned_in(), None, run.dataset)
    seed = run.config.train.seed + BLOCKS_PURPOSE + number
    keys = {"offline_training_epochs": run.config.fold_epochs, "seed": seed}
    config = run.config.model_copy(update={"train": run.config.train.model_copy(update=keys)})
    networks = portfolio_networks(run.training_data.shape, config.bcell, seeded(seed, BLOCKS_PURPOSE))
    learner = METHODS[config.offline.method](networks, config.bcell, run.device)
    segments, learned = blocks[number].learned, transitions_outside(run.dataset, blocks[number])
    learner.advantage_scale = measure_decision_scale(market, learner.policy, run.config, segments)
    returns = torch.zeros(len(learned), device=run.device)
    known: Predictions = {}
    learning = OfflineLearning(learner, learned, market, config, segments, returns, known)
    noise = seeded(seed, BLOCKS_PURPOSE + 1, run.device)
    for done in range(learning.epochs.total):
        learning.update(done, noise)
    found = {
        f"{network}/{name}": tensor.detach().cpu().numpy().copy()
        for network in NETWORKS
        for name, tensor in getattr(learner, network).state_dict().items()
    }
    return found, known


def fitted_q_value(learning: OfflineLearning) -> float:
    """Value of a learner's deterministic policy, from the behaviour's transitions alone.

    The critics of learning are the starting point of critics of their own, whose target is
    ``r + gamma (1 - d) Q(s', policy(s'))``; the policy stands still.

    Returns ``(1 - gamma) Q(s, policy(s))``, the mean over states of the data and over critics, in units of a daily log
    return, plus the mean reward of the reference: comparable with the mean reward of a decision.

    References
    ----------
    Le, Voloshin and Yue (2019), Batch Policy Learning under Constraints, algorithm 3.
    """
    learner, store, epochs, config = learning.learner, learning.store, learning.epochs, learning.config
    (_, market, units), size, groups = learning.market, epochs.group_size, epochs.groups
    critic, target = copy.deepcopy(learner.critic), copy.deepcopy(learner.target_critic)
    target.requires_grad_(False)
    optimiser = make_optimiser(critic, config.bcell.critic_lr)
    order = epoch_order(epochs.bars, size, seeded(config.train.seed, FITTED_Q_PURPOSE))

    for update in range(config.offline.evaluation_updates):
        start = update * groups % max(len(order) - groups + 1, 1)
        rows = store.rows(order[start : start + groups].flatten().to(store.device))
        batch = make_batch(rows, market, units, group_size=size)
        states, following = batch.states, batch.next_states
        with torch.no_grad():
            action = learner.policy.deterministic(following).unsqueeze(1)
            ahead = target.value(target.encode(following), following, action, with_quantiles=0).mean[..., 0]
        goal = bellman_target(batch.rewards, batch.terminated, ahead.mean(dim=0), config.bcell.gamma)
        value = critic.value(critic.encode(states), states, batch.actions.unsqueeze(1), with_quantiles=0).mean[..., 0]
        gradient_step(mean_loss(value, goal), optimiser, config.bcell.gradient_norm)
        polyak_update(target, critic, config.bcell.tau)
    with torch.no_grad():
        rows = store.rows(order[: max(FITTED_Q_ROWS // size, 1)].flatten().to(store.device))
        states = make_batch(rows, market, units, group_size=size).states
        action = learner.policy.deterministic(states).unsqueeze(1)
        values = critic.value(critic.encode(states), states, action, with_quantiles=0).mean
    reference = units.reference[store.columns["bar"]].mean()
    return units.unscaled(float(values.mean()) * (1.0 - config.bcell.gamma)) + float(reference)
