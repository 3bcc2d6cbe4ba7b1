"""Fitted Q evaluation: what the offline data alone say that a policy is worth.

References
----------
Le, Voloshin and Yue (2019), Batch Policy Learning under Constraints, algorithm 3.
"""

from __future__ import annotations

import copy

import torch

from finflow.agent.gradient_steps import descend, freeze, make_optimiser, polyak_update
from finflow.agent.learners.offline_learner import OfflineLearner
from finflow.agent.losses.losses import bellman_target, mean_loss
from finflow.config import Config
from finflow.training.data.epoch_order import epoch_order, group_size, markets_of
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.reward_units import RewardUnits
from finflow.training.phases.training_state import seeded

PURPOSE = 8  # of the generator that orders the data
VALUED = 4096  # transitions whose states the policy's value is averaged over


def fitted_q_value(
    learner: OfflineLearner, store: Transitions, market: MarketTensors, units: RewardUnits, config: Config
) -> float:
    """Value of the learner's deterministic policy, from the behaviour's transitions alone.

    The critics of learning are the starting point of critics of their own, whose target is
    ``r + gamma (1 - d) Q(s', policy(s'))``; the policy stands still.

    Returns
    -------
    float
        ``(1 - gamma) Q(s, policy(s))``, the mean over states of the data and over critics, in units of a daily log
        return, with what the reference earned on average: comparable with the mean reward of a decision.
    """
    critic, target = copy.deepcopy(learner.critic), copy.deepcopy(learner.target_critic)
    freeze([target])
    optimiser = make_optimiser(critic, config.bcell.critic_lr)
    universe = store.columns.get("universe")
    bars = markets_of(store.columns["bar"].cpu(), None if universe is None else universe.cpu())
    size = group_size(bars, config.offline.group_size, config.train.offline_batch_size)
    groups = config.train.offline_batch_size // size
    generator = seeded(config.train.seed, PURPOSE)
    order = epoch_order(bars, size, generator)

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
        descend(mean_loss(value, goal), optimiser, config.bcell.gradient_norm)
        polyak_update(target, critic, config.bcell.tau)
    with torch.no_grad():
        rows = store.rows(order[: max(VALUED // size, 1)].flatten().to(store.device))
        states = make_batch(rows, market, units, group_size=size).states
        action = learner.policy.deterministic(states).unsqueeze(1)
        worth = critic.value(critic.encode(states), states, action, with_quantiles=0).mean
    reference = units.earned(store.columns["bar"], universe).mean()
    return units.unscaled(float(worth.mean()) * (1.0 - config.bcell.gamma)) + float(reference)
