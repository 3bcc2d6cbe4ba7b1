"""Offline learning without a block of the training years, from which that block's policy starts.

The pretrained policy has seen all training years. What pretraining is worth out of sample is what policies are worth
that were pretrained without a block, in that block; and the blocks' policies begin as the agent's own does.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from finflow.agent.learners.offline_learner import portfolio_networks
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.cores import run_both
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.phases.critic_evaluation import measure_decision_scale
from finflow.training.phases.pretrain import Epochs
from finflow.training.phases.rollout_state import Block
from finflow.training.phases.training_run import TrainingRun
from finflow.training.phases.training_state import METHODS, seeded

PURPOSE = 300  # generators of the blocks' networks and noise are numbered from here


def pretrain_folds(
    run: TrainingRun, dataset: OfflineDataset, blocks: tuple[Block, ...], units: RewardUnits
) -> list[ExpertPolicy]:
    """Policies pretrained without each block, on two cores where there are two; none where nothing is pretrained.

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
        return []
    market = MarketTensors.of(run.training_data.learning.process, run.device, run.config.bcell.expert_cloning > 0.0)

    rollout_market = RolloutMarket(run.training_data.learning.process, market, units)

    def learn(numbers: range) -> list[ExpertPolicy]:
        return [_pretrain(run, outside(dataset, blocks[n]), rollout_market, n, blocks[n]) for n in numbers]

    half = (len(blocks) + 1) // 2
    run.progress.note(f"pretraining a policy without each of {len(blocks)} blocks of years, {epochs} epochs each")
    first, second = run_both(lambda: learn(range(half)), lambda: learn(range(half, len(blocks))), run.device)
    return [*first, *second]


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


def pretrain_reference(run: TrainingRun, dataset: OfflineDataset, units: RewardUnits) -> ExpertPolicy | None:
    """The policy that all data make in as many epochs as the blocks' policies have.

    That is what their evidence is about. None where the agent's own pretraining was no longer than theirs.
    """
    if not 0 < fold_epochs(run.config) < run.config.train.offline_training_epochs:
        return None
    process = run.training_data.learning.process
    market = MarketTensors.of(process, run.device, run.config.bcell.expert_cloning > 0.0)
    return _pretrain(run, dataset, RolloutMarket(process, market, units), run.config.bcell.rollouts.blocks)


def _pretrain(
    run: TrainingRun, dataset: OfflineDataset, rollout_market: RolloutMarket, number: int, block: Block | None = None
) -> ExpertPolicy:
    """The policy that the configured offline method learns from some data: those without a block, or all."""
    config, seed, market, units = run.config, run.config.train.seed, rollout_market.tensors, rollout_market.units
    epochs = fold_epochs(config)
    keys = config.train.model_copy(update={"offline_training_epochs": epochs, "seed": seed + PURPOSE + number})
    batches = Epochs(config.model_copy(update={"train": keys}), dataset)
    networks = portfolio_networks(run.training_data.shape, config.bcell, seeded(seed, PURPOSE + 2 * number))
    learner = METHODS[config.offline.method](networks, config.bcell, run.device)
    if block is not None:
        learner.advantage_scale = measure_decision_scale(rollout_market, learner.policy, config, block.learned)
    elif run.state.bcell is not None:
        learner.advantage_scale = run.state.bcell.advantage_scale
    noise = seeded(seed, PURPOSE + 2 * number + 1, run.device)
    store = Transitions.of(dataset, run.device, market.members is not None)
    for done in range(batches.total):
        rows = store.rows(batches.rows(done).to(run.device))
        batch = make_batch(rows, market, units, noise, config.train.observation_noise, batches.group_size)
        learner.update(batch, done / batches.total, noise)
    return learner.policy.requires_grad_(True)
