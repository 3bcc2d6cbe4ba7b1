"""The offline phase without a block of the training years, from which that block's learner starts.

The agent's own offline phase has seen all training years. Its performance out of sample is estimated by policies that
were pretrained without a block, in that block; and the blocks' learners begin as the agent's own does.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.learners.offline_learner import portfolio_networks
from finflow.config import Config
from finflow.cores import forked
from finflow.errors import TrainingError
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import Transitions
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.off_policy.critic_quality import measure_decision_scale
from finflow.training.off_policy.evidence import Block, training_blocks
from finflow.training.phases.offline_batches import Epochs, OfflineBatches
from finflow.training.phases.pretrain import behaviour_returns, offline_market, reward_units
from finflow.training.phases.training_run import TrainingRun
from finflow.training.phases.training_state import METHODS, seeded

FloatArray = NDArray[np.float32]
Weights = dict[int, dict[str, FloatArray]]
"""Networks of learners by the block that was left out."""
NETWORKS = ("policy", "critic", "target_critic", "value")
PURPOSE = 300  # generators of the blocks' networks and noise are numbered from here


@contextmanager
def pretraining_in_parallel(run: TrainingRun, dataset: OfflineDataset) -> Iterator[None]:
    """Pretrain what the online phase will need in another process, while the block runs the offline phase.

    The offline phase's update of small networks is mostly calls, which a second thread makes hardly faster. Where that
    phase ends first, both processes share what is left. The results have the same bits as without this.
    """
    blocks = training_blocks(run.config, run.training_data)
    if run.config.online.on_policy or run.state.learner is None or not _are_pretrained(run.config, blocks):
        yield
        return
    _announce(run, blocks)
    begun = multiprocessing.get_context().RawArray("b", len(blocks))  # in memory that both processes see
    with forked(partial(_learn, run, dataset, blocks, _not_begun(begun, range(len(blocks)))), fills_core=True) as first:
        yield
        own = _learn(run, dataset, blocks, _not_begun(begun, range(len(blocks))[::-1]))
    run.pretrained_blocks = lambda: _completed(run, dataset, blocks, own | first())


def pretrain_blocks(run: TrainingRun, dataset: OfflineDataset, blocks: tuple[Block, ...]) -> list[dict[str, Tensor]]:
    """Networks of learners pretrained without each block, unless that was done during the offline phase.

    In two processes where there are two cores. None where nothing is pretrained.
    """
    if run.pretrained_blocks is not None:
        pretrained: list[dict[str, Tensor]] = run.pretrained_blocks()
        return pretrained
    if not _are_pretrained(run.config, blocks):
        return []
    _announce(run, blocks)
    half = len(blocks) // 2
    with forked(partial(_learn, run, dataset, blocks, range(half, len(blocks)))) as second:
        first = _learn(run, dataset, blocks, range(half))
    return _completed(run, dataset, blocks, first | second())


def _are_pretrained(config: Config, blocks: tuple[Block, ...]) -> bool:
    return config.fold_epochs > 0 and len(blocks) > 0


def _announce(run: TrainingRun, blocks: tuple[Block, ...]) -> None:
    epochs = run.config.fold_epochs
    run.progress.note(f"pretraining a policy without each of {len(blocks)} blocks of years, {epochs} epochs each")


def _not_begun(begun: MutableSequence[int], numbers: Sequence[int]) -> Iterator[int]:
    """Blocks that no process has begun with, marked as begun when their turn comes.

    Two processes that look at the same instant may both take one: that costs time, and changes nothing.
    """
    for number in numbers:
        if not begun[number]:
            begun[number] = 1
            yield number


def _learn(run: TrainingRun, dataset: OfflineDataset, blocks: tuple[Block, ...], numbers: Iterable[int]) -> Weights:
    found: Weights = {}
    rollout_market: RolloutMarket | None = None
    for number in numbers:
        if rollout_market is None:
            units = reward_units(run, dataset)._replace(normalizer=None)
            rollout_market = RolloutMarket(run.training_data.learning, offline_market(run), units)
        found[number] = _pretrain(run, dataset, rollout_market, blocks, number)
    return found


def _completed(
    run: TrainingRun, dataset: OfflineDataset, blocks: tuple[Block, ...], found: Weights
) -> list[dict[str, Tensor]]:
    """The weights as tensors; what a process that failed has left out is learned here."""
    found = found | _learn(run, dataset, blocks, [number for number in range(len(blocks)) if number not in found])
    return [{name: torch.from_numpy(array) for name, array in found[number].items()} for number in range(len(blocks))]


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
    run: TrainingRun, dataset: OfflineDataset, market: RolloutMarket, blocks: tuple[Block, ...], number: int
) -> dict[str, FloatArray]:
    config, seed = run.config, run.config.train.seed + PURPOSE + number
    keys = config.train.model_copy(update={"offline_training_epochs": config.fold_epochs, "seed": seed})
    config = config.model_copy(update={"train": keys})
    learned = transitions_outside(dataset, blocks[number])
    epochs = Epochs(config, learned)
    networks = portfolio_networks(run.training_data.shape, config.bcell, seeded(seed, PURPOSE))
    learner = METHODS[config.offline.method](networks, config.bcell, run.device)
    segments = blocks[number].learned
    learner.advantage_scale = measure_decision_scale(market, learner.policy, run.config, segments)
    noise = seeded(seed, PURPOSE + 1, run.device)
    store = Transitions.of(learned, run.device)
    batches = OfflineBatches.of(market, store, epochs, learner, config, segments)
    returns = torch.zeros(len(learned), device=run.device)
    store.columns["behaviour_return"] = returns
    for done in range(epochs.total):
        if epochs.returns_due(done):
            returns.copy_(behaviour_returns(store, learner.value, market.tensors, market.units, learned, config))
        learner.update(batches.draw(learner, noise, done), done / epochs.total, noise)
    return {
        f"{network}/{name}": tensor.detach().cpu().numpy().copy()
        for network in NETWORKS
        for name, tensor in getattr(learner, network).state_dict().items()
    }
