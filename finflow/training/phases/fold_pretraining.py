"""Offline learning without a block of the training years, from which that block's policy starts.

The pretrained policy has seen all training years. What pretraining is worth out of sample is what policies are worth
that were pretrained without a block, in that block; and the blocks' policies begin as the agent's own does.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.phases.critic_evaluation import measure_decision_scale
from finflow.training.phases.pretrain import Epochs
from finflow.training.phases.rollout_state import Block
from finflow.training.phases.training_run import TrainingRun
from finflow.training.phases.training_state import METHODS, seeded

Weights = dict[str, Tensor]
FloatArray = NDArray[np.float32]

PURPOSE = 300  # generators of the blocks' networks and noise are numbered from here


class Pretrained(NamedTuple):
    """Policies that were pretrained for the evidence of the blocks.

    Attributes
    ----------
    folds : list of Weights
        Of each block, without it; none where nothing is pretrained.
    reference : Weights or None
        From all data in as many epochs, which is what the folds are evidence about. None where the agent's own
        pretraining was no longer than theirs.
    """

    folds: list[Weights]
    reference: Weights | None


def pretrain_folds(
    run: TrainingRun, dataset: OfflineDataset, blocks: tuple[Block, ...], units: RewardUnits
) -> Pretrained:
    """Pretrain without each block, and from all data in as many epochs, in two processes where there are two cores.

    Updates of small networks are mostly calls, which two threads of one process take turns with.

    Parameters
    ----------
    run : TrainingRun
    dataset : OfflineDataset
    blocks : tuple of Block
    units : RewardUnits
        Of all training years.
    """
    epochs = fold_epochs(run.config)
    if epochs == 0 or not blocks:
        return Pretrained([], None)
    process = run.training_data.learning.process
    market = MarketTensors.of(process, run.device, run.config.bcell.expert_cloning > 0.0)
    rollout_market = RolloutMarket(process, market, units)

    def learn(numbers: Sequence[int | None]) -> list[dict[str, FloatArray]]:
        return [_pretrain(run, dataset, rollout_market, blocks, number) for number in numbers]

    is_longer = epochs < run.config.train.offline_training_epochs
    numbers: list[int | None] = [*([None] if is_longer else []), *range(len(blocks))]
    half = len(numbers) // 2
    run.progress.note(f"pretraining a policy without each of {len(blocks)} blocks of years, {epochs} epochs each")
    with forked(partial(learn, numbers[half:])) as second:
        first = learn(numbers[:half])
    found = [{name: torch.from_numpy(array) for name, array in one.items()} for one in [*first, *second()]]
    return Pretrained(found[1:], found[0]) if is_longer else Pretrained(found, None)


def fold_epochs(config: Config) -> int:
    """Epochs over the data without a block; no more than of the agent's own pretraining."""
    learns = config.offline.method != "none"
    return min(config.bcell.rollouts.pretraining_epochs, config.train.offline_training_epochs) * learns


def outside(dataset: OfflineDataset, block: Block) -> OfflineDataset:
    """The transitions of the decisions that a block's policy may learn from."""
    allowed = np.concatenate([np.arange(one.start, one.stop) for one in block.learned])
    kept = np.isin(dataset.bar, allowed)
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
    """Weights of the policy that the configured offline method learns without a block, or from all data for None."""
    config, seed, market, units = run.config, run.config.train.seed, rollout_market.tensors, rollout_market.units
    place = run.config.bcell.rollouts.blocks if number is None else number
    epochs = fold_epochs(config)
    keys = config.train.model_copy(update={"offline_training_epochs": epochs, "seed": seed + PURPOSE + place})
    learned = dataset if number is None else outside(dataset, blocks[number])
    batches = Epochs(config.model_copy(update={"train": keys}), learned)
    networks = portfolio_networks(run.training_data.shape, config.bcell, seeded(seed, PURPOSE + 2 * place))
    learner = METHODS[config.offline.method](networks, config.bcell, run.device)
    if number is not None:
        segments = blocks[number].learned
        learner.advantage_scale = measure_decision_scale(rollout_market, learner.policy, config, segments)
    elif run.state.bcell is not None:
        learner.advantage_scale = run.state.bcell.advantage_scale
    noise = seeded(seed, PURPOSE + 2 * place + 1, run.device)
    store = Transitions.of(learned, run.device, market.members is not None)
    for done in range(batches.total):
        rows = store.rows(batches.rows(done).to(run.device))
        batch = make_batch(rows, market, units, noise, config.train.observation_noise, batches.group_size)
        learner.update(batch, done / batches.total, noise)
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in learner.policy.state_dict().items()}
