"""The offline phase: passes of the configured method over the behaviour's transitions, and fitted Q evaluation.

The agent's own offline phase sees all training years. Its performance out of sample is estimated by policies that were
pretrained without a block of years, in that block; and the blocks' learners begin as the agent's own does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.gradient_steps import gradient_step, make_optimiser, polyak_update
from finflow.agent.learners.offline_learner import METHODS, portfolio_networks
from finflow.agent.losses.critic_losses import bellman_target, mean_loss
from finflow.cores import forked
from finflow.offline.dataset import OfflineDataset
from finflow.training.checkpoints.checkpoint_reader import OFFLINE
from finflow.training.data.replay import make_batch
from finflow.training.off_policy.critic_quality import measure_decision_scale
from finflow.training.off_policy.evidence import Block, training_blocks, training_segments
from finflow.training.phases.behaviour_data import (
    OfflineLearning,
    epoch_order,
    offline_market,
    probe_states,
    reward_units,
    transitions_outside,
)
from finflow.training.phases.run_guard import LearnerProbe
from finflow.training.phases.training_run import TrainingRun
from finflow.training.phases.training_state import seeded

FITTED_Q_PURPOSE = 8  # of the generator that orders the data of fitted Q evaluation
FITTED_Q_ROWS = 4096  # transitions whose states the policy's value is averaged over
BLOCKS_PURPOSE = 300  # generators of the blocks' networks and noise are numbered from here
NETWORKS = ("policy", "critic", "target_critic", "value")
Networks = dict[str, NDArray[np.float32]]


def pretrain(run: TrainingRun, dataset: OfflineDataset) -> dict[str, float]:
    """Train to the end of the offline phase, from wherever the state stands.

    Returns the last update's losses (``v_loss``, ``q_loss``, ``policy_loss`` among others) and validation metrics.
    """
    config, state = run.config, run.state
    train, counters, learner = config.train, state.counters, state.learner
    if learner is None or state.behaviour_returns is None:
        raise ValueError("the offline phase is over")
    policy, segments = learner.policy, training_segments(run.training_data)
    market = offline_market(run, reward_units(run, dataset))
    if counters.phase_update == 0:
        learner.advantage_scale = measure_decision_scale(market, policy, config, segments)
    learning = OfflineLearning(learner, dataset, market, config, segments, state.behaviour_returns)
    total = learning.epochs.total
    patient = config.offline.method == "none"  # a policy that stands still has no better validation
    if patient and total:
        run.progress.note(f"offline.method none: critics alone are fitted to the behaviour, in {total:,} updates")
    run.progress.start_phase(f"{OFFLINE} ({config.offline.method})", total, done=counters.phase_update)
    run.probe = probe_states(learning.store, market.tensors)
    run.guard.begin(LearnerProbe(learner, policy, run.probe), dataset.reward_scale)
    metrics: dict[str, Tensor] = {}
    result: dict[str, float] = {}

    def evaluated() -> dict[str, float]:
        return {"fitted_q_value": fitted_q_value(learning)} if config.offline.evaluation_updates else {}

    while counters.phase_update < total and (patient or not run.is_out_of_patience):
        done = counters.phase_update
        run.guard.expect_large_moves(learner.moves_far, begins=done == 0)
        rollbacks = state.watch.manager.rollback_count
        latest = learning.update(done, state.noise, rollbacks, run.guard.accepts)
        metrics |= latest
        if run.count_update(latest, {"epoch": float(done // learning.epochs.updates)}):
            metrics = {}
            run.stop_if_asked()
            continue
        last = counters.phase_update == total
        if last or counters.phase_update % train.validation_updates == 0:
            facts = evaluated() if last else {}
            validated = run.validate(policy, facts)
            result = {**{name: float(value) for name, value in metrics.items()}, **facts, **validated}
            if not (last or patient) and run.is_out_of_patience:
                last = True
                run.progress.note(
                    f"the offline phase ends after {counters.phase_update:,} updates: no better validation for "
                    f"{counters.update - (counters.best_update or 0):,} (offline.patience)"
                )
                if facts := evaluated():
                    run.log.record(counters.phase, counters.update, facts)
                    result |= facts
        if last or counters.phase_update % train.checkpoint_updates == 0:
            run.checkpoint()
        run.stop_if_asked()
    run.progress.end_phase()
    return result


@contextmanager
def pretraining_in_parallel(run: TrainingRun, dataset: OfflineDataset) -> Iterator[None]:
    """Pretrain without each block in another process while the code block runs, into ``run.pretrained_blocks``.

    The offline phase's update of small networks is mostly calls, which a second thread makes hardly faster. Where the
    blocks take more than half of all epochs, this process takes the last of them after the code block. The results have
    the same bits as in one process. Nothing is pretrained where no epochs are configured, or once learners have begun.
    """
    counters, each = run.state.counters, run.config.fold_epochs
    if each == 0 or counters.vector_step > 0 or run.pretrained_blocks:
        yield
        return
    blocks = training_blocks(run.config, run.training_data)
    run.progress.note(f"pretraining a policy without each of {len(blocks)} blocks of years, {each} epochs each")
    beside = run.config.offline_epochs if counters.phase == OFFLINE else 0
    others = min(math.ceil((beside / each + len(blocks)) / 2), len(blocks))
    with forked(partial(_pretrain_blocks, run, dataset, blocks, range(others)), fills_core=True) as first:
        yield
        last = _pretrain_blocks(run, dataset, blocks, range(others, len(blocks)))
    run.pretrained_blocks = [*first(), *last]


def _pretrain_blocks(
    run: TrainingRun, dataset: OfflineDataset, blocks: Sequence[Block], numbers: range
) -> list[Networks]:
    """Networks of learners that were pretrained without some of the blocks."""
    if not numbers:
        return []
    market = offline_market(run, reward_units(run, dataset)._replace(normalizer=None))
    found = []
    for number in numbers:
        seed = run.config.train.seed + BLOCKS_PURPOSE + number
        keys = {"offline_training_epochs": run.config.fold_epochs, "seed": seed}
        config = run.config.model_copy(update={"train": run.config.train.model_copy(update=keys)})
        networks = portfolio_networks(run.training_data.shape, config.bcell, seeded(seed, BLOCKS_PURPOSE))
        learner = METHODS[config.offline.method](networks, config.bcell, run.device)
        segments, learned = blocks[number].learned, transitions_outside(dataset, blocks[number])
        learner.advantage_scale = measure_decision_scale(market, learner.policy, run.config, segments)
        returns = torch.zeros(len(learned), device=run.device)
        learning = OfflineLearning(learner, learned, market, config, segments, returns)
        noise = seeded(seed, BLOCKS_PURPOSE + 1, run.device)
        for done in range(learning.epochs.total):
            learning.update(done, noise)
        found.append(
            {
                f"{network}/{name}": tensor.detach().cpu().numpy().copy()
                for network in NETWORKS
                for name, tensor in getattr(learner, network).state_dict().items()
            }
        )
    return found


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
