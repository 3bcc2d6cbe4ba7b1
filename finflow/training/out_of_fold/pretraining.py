"""Offline learning without a block of the training years, from which that block's learner starts.

The pretrained policy has seen all training years. Its performance out of sample is estimated by policies that were
pretrained without a block, in that block; and the blocks' learners begin as the agent's own does.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.learners.offline_learner import portfolio_networks
from finflow.config import Config
from finflow.cores import forked
from finflow.errors import TrainingError
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.off_policy.critic_quality import measure_decision_scale
from finflow.training.out_of_fold.blocks import Block, training_blocks
from finflow.training.phases.pretrain import Epochs, fill_window, offline_market, reward_units, training_advantage_scale
from finflow.training.phases.training_run import TrainingRun
from finflow.training.phases.training_state import METHODS, seeded

FloatArray = NDArray[np.float32]
Weights = dict[int | None, dict[str, FloatArray]]
"""Networks of learners by the block that was left out; None for all data."""
NETWORKS = ("policy", "critic", "target_critic", "value")


class Pretrained(NamedTuple):
    """Learners that were pretrained for the evidence of the blocks.

    Attributes
    ----------
    blocks : list of dict of Tensor
        Networks of each block's, without it; none where nothing is pretrained.
    reference : dict of Tensor or None
        From all data in as many epochs, which is what the blocks are evidence about. None where the agent's own
        pretraining was no longer than theirs.
    """

    blocks: list[dict[str, Tensor]]
    reference: dict[str, Tensor] | None


PURPOSE = 300  # generators of the blocks' networks and noise are numbered from here


@contextmanager
def pretraining_in_parallel(run: TrainingRun, dataset: OfflineDataset) -> Iterator[None]:
    """Pretrain what the online phase will need in another process, while the block runs the offline phase.

    The offline phase's update of small networks is mostly calls, which a second thread makes hardly faster. Where that
    phase ends first, both processes share what is left. The results have the same bits as without this.
    """
    blocks = training_blocks(run.config, run.training_data)
    numbers = _numbers(run.config, blocks)
    if run.config.online.on_policy or run.state.learner is None or not numbers:
        yield
        return
    _announce(run, blocks)
    begun = multiprocessing.get_context().RawArray("b", len(numbers))  # in memory that both processes see
    in_order = _not_begun(begun, list(enumerate(numbers)))
    with forked(partial(_learn, run, dataset, blocks, in_order), fills_core=True) as learned:
        yield
        own = _learn(run, dataset, blocks, _not_begun(begun, list(enumerate(numbers))[::-1]))
    run.pretrained_blocks = lambda: _completed(run, dataset, blocks, own | learned())


def pretrain_blocks(run: TrainingRun, dataset: OfflineDataset, blocks: tuple[Block, ...]) -> Pretrained:
    """Pretrain without each block, and from all data in as many epochs, unless that was done during the offline phase.

    In two processes where there are two cores.

    Parameters
    ----------
    run : TrainingRun
    dataset : OfflineDataset
    blocks : tuple of Block
    """
    if run.pretrained_blocks is not None:
        pretrained: Pretrained = run.pretrained_blocks()
        return pretrained
    numbers = _numbers(run.config, blocks)
    if not numbers:
        return Pretrained([], None)
    _announce(run, blocks)
    half = len(numbers) // 2
    with forked(partial(_learn, run, dataset, blocks, numbers[half:])) as second:
        first = _learn(run, dataset, blocks, numbers[:half])
    return _completed(run, dataset, blocks, first | second())


def _numbers(config: Config, blocks: tuple[Block, ...]) -> list[int | None]:
    """Blocks to pretrain without; None, first, for all data, where the agent's own pretraining is longer."""
    epochs = config.fold_epochs
    if epochs == 0 or not blocks:
        return []
    return [*([None] if epochs < config.train.offline_training_epochs else []), *range(len(blocks))]


def _announce(run: TrainingRun, blocks: tuple[Block, ...]) -> None:
    epochs = run.config.fold_epochs
    run.progress.note(f"pretraining a policy without each of {len(blocks)} blocks of years, {epochs} epochs each")


def _not_begun(begun: MutableSequence[int], numbers: Sequence[tuple[int, int | None]]) -> Iterator[int | None]:
    """Blocks, each with its place, that no process has begun with, marked as begun when their turn comes.

    Two processes that look at the same instant may both take one: that costs time, and changes nothing.
    """
    for place, number in numbers:
        if not begun[place]:
            begun[place] = 1
            yield number


def _learn(
    run: TrainingRun, dataset: OfflineDataset, blocks: tuple[Block, ...], numbers: Iterable[int | None]
) -> Weights:
    """Networks of the learners that some blocks, or none, were left out of."""
    found: Weights = {}
    rollout_market: RolloutMarket | None = None
    for number in numbers:
        if rollout_market is None:
            units = reward_units(run, dataset)._replace(normalizer=None)
            rollout_market = RolloutMarket(run.training_data.learning, offline_market(run), units)
        found[number] = _pretrain(run, dataset, rollout_market, blocks, number)
    return found


def _completed(run: TrainingRun, dataset: OfflineDataset, blocks: tuple[Block, ...], found: Weights) -> Pretrained:
    """The weights as tensors, the reference apart; what a process that failed has left out is learned here."""
    numbers = _numbers(run.config, blocks)
    found = found | _learn(run, dataset, blocks, [number for number in numbers if number not in found])
    tensors = {number: {name: torch.from_numpy(array) for name, array in one.items()} for number, one in found.items()}
    return Pretrained([tensors[number] for number in range(len(blocks))], tensors.get(None))


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


def _pretrain(
    run: TrainingRun,
    dataset: OfflineDataset,
    rollout_market: RolloutMarket,
    blocks: tuple[Block, ...],
    number: int | None,
) -> dict[str, FloatArray]:
    """Networks that the configured offline method learns without a block, or from all data for None."""
    config, seed, market, units = run.config, run.config.train.seed, rollout_market.tensors, rollout_market.units
    place = run.config.out_of_fold.blocks if number is None else number
    epochs = config.fold_epochs
    keys = config.train.model_copy(update={"offline_training_epochs": epochs, "seed": seed + PURPOSE + place})
    learned = dataset if number is None else transitions_outside(dataset, blocks[number])
    batches = Epochs(config.model_copy(update={"train": keys}), learned)
    networks = portfolio_networks(run.training_data.shape, config.bcell, seeded(seed, PURPOSE + 2 * place))
    learner = METHODS[config.offline.method](networks, config.bcell, run.device)
    if number is not None:
        segments = blocks[number].learned
        learner.advantage_scale = measure_decision_scale(rollout_market, learner.policy, config, segments)
    else:
        learner.advantage_scale = _advantage_scale(run, dataset, market)
    noise = seeded(seed, PURPOSE + 2 * place + 1, run.device)
    store = Transitions.of(learned, run.device)
    for done in range(batches.total):
        rows = store.rows(batches.rows(done).to(run.device))
        batch = make_batch(rows, market, units, noise, config.train.observation_noise, batches.group_size)
        learner.update(batch, done / batches.total, noise)
    return {
        f"{network}/{name}": tensor.detach().cpu().numpy().copy()
        for network in NETWORKS
        for name, tensor in getattr(learner, network).state_dict().items()
    }


def _advantage_scale(run: TrainingRun, dataset: OfflineDataset, market: MarketTensors) -> float:
    """``sigma_A`` of the agent's offline phase, which has measured it or is about to."""
    state = run.state
    if state.bcell is not None:
        return state.bcell.advantage_scale
    if state.learner is None:
        raise ValueError("the offline phase has neither begun nor ended")
    if state.counters.phase_update > 0:
        return state.learner.advantage_scale
    units = reward_units(run, dataset)
    fill_window(units, dataset)
    return training_advantage_scale(run, state.learner.policy, market, units)
