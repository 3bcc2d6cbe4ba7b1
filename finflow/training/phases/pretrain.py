"""The offline phase: passes of the configured method over the behaviour's transitions, and fitted Q evaluation."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from finflow.agent.batch import States
from finflow.agent.gradient_steps import gradient_step, make_optimiser, polyak_update
from finflow.agent.learners.offline_learner import OfflineLearner
from finflow.agent.losses.critic_losses import bellman_target, mean_loss
from finflow.agent.losses.quantiles import needs_quantiles
from finflow.agent.networks.critic import ValueNetwork
from finflow.config import Config, RewardNormalizationConfig
from finflow.offline.dataset import OfflineDataset
from finflow.offline.recorder import episode_ends, lambda_returns
from finflow.training.checkpoints.checkpoint_reader import OFFLINE
from finflow.training.data.replay import MarketTensors, Transitions, make_batch
from finflow.training.data.reward_normalizer import RewardNormalizer
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.off_policy.critic_quality import measure_decision_scale
from finflow.training.off_policy.evidence import training_segments
from finflow.training.phases.offline_batches import Epochs, OfflineBatches, epoch_order, group_size
from finflow.training.phases.run_guard import LearnerProbe
from finflow.training.phases.training_run import TrainingRun
from finflow.training.phases.training_state import seeded

PROBE_STATES = 64  # recorded states that the guard checks the policy on
VALUE_ROWS = 4096  # states valued at once
TD_LAMBDA = 0.95  # of the returns that the value of the behaviour is fitted to
FITTED_Q_PURPOSE = 8  # of the generator that orders the data of fitted Q evaluation
FITTED_Q_ROWS = 4096  # transitions whose states the policy's value is averaged over


def pretrain(run: TrainingRun, dataset: OfflineDataset) -> dict[str, float]:
    """Train to the end of the offline phase, from wherever the state stands.

    Returns the last update's losses (``v_loss``, ``q_loss``, ``policy_loss`` among others) and validation metrics.
    """
    config, state = run.config, run.state
    train, counters, learner = config.train, state.counters, state.learner
    if learner is None or state.behaviour_returns is None:
        raise ValueError("the offline phase is over")
    policy = learner.policy
    market = offline_market(run)
    store = Transitions.of(dataset, run.device)
    store.columns["behaviour_return"] = state.behaviour_returns
    units = reward_units(run, dataset)
    fill_window(units, dataset)
    whole_market, segments = (
        RolloutMarket(run.training_data.learning, market, units),
        training_segments(run.training_data),
    )
    if counters.phase_update == 0:
        learner.advantage_scale = measure_decision_scale(whole_market, policy, config, segments)
    epochs = Epochs(config, dataset)
    if config.offline.method == "none" and epochs.total:
        run.progress.note(
            f"offline.method none: critics alone are fitted to the behaviour, in {epochs.total:,} updates"
        )
    batches = OfflineBatches.of(whole_market, store, epochs, learner, config, segments)
    run.progress.start_phase(f"{OFFLINE} ({config.offline.method})", epochs.total, done=counters.phase_update)
    run.probe = probe_states(run, store, market)
    run.guard.begin(LearnerProbe(learner, policy, run.probe), dataset.reward_scale)
    metrics: dict[str, Tensor] = {}
    result: dict[str, float] = {}
    patient = config.offline.method == "none"  # a policy that stands still has no better validation
    while counters.phase_update < epochs.total and (patient or not run.is_out_of_patience):
        done = counters.phase_update
        run.guard.expect_large_moves(learner.moves_far, begins=done == 0)
        if epochs.returns_due(done):
            state.behaviour_returns.copy_(behaviour_returns(store, learner.value, market, units, dataset, config))
        rollbacks = state.watch.manager.rollback_count
        batch = batches.draw(learner, state.noise, done, rollbacks)
        latest = learner.update(batch, done / epochs.total, state.noise) if run.guard.accepts(batch) else {}
        metrics |= latest
        if run.count_update(latest, {"epoch": float(done // epochs.updates)}):
            metrics = {}
            run.stop_if_asked()
            continue
        last = counters.phase_update == epochs.total
        if last or counters.phase_update % train.validation_updates == 0:
            facts = {}
            if last and config.offline.evaluation_updates:
                facts = {"fitted_q_value": fitted_q_value(learner, store, market, units, config)}
            validated = run.validate(policy, facts)
            result = {**{name: float(value) for name, value in metrics.items()}, **facts, **validated}
            if not (last or patient) and run.is_out_of_patience:
                last = True
                result |= _end_early(run, learner, store, market, units)
        if last or counters.phase_update % train.checkpoint_updates == 0:
            run.checkpoint()
        run.stop_if_asked()
    run.progress.end_phase()
    return result


def _end_early(
    run: TrainingRun, learner: OfflineLearner, store: Transitions, market: MarketTensors, units: RewardUnits
) -> dict[str, float]:
    """Say that the phase ends before its last epoch, and log its fitted Q value as its last update would have."""
    counters, config = run.state.counters, run.config
    run.progress.note(
        f"the offline phase ends after {counters.phase_update:,} updates: no better validation for "
        f"{counters.update - (counters.best_update or 0):,} (offline.patience)"
    )
    if not config.offline.evaluation_updates:
        return {}
    facts = {"fitted_q_value": fitted_q_value(learner, store, market, units, config)}
    run.log.record(counters.phase, counters.update, facts)
    return facts


def offline_market(run: TrainingRun) -> MarketTensors:
    """The market that is learned in offline, with what experts learn from beside decisions."""
    return MarketTensors.of(run.training_data.learning, run.device, run.config.bcell.expert_cloning > 0.0)


def reward_units(run: TrainingRun, dataset: OfflineDataset) -> RewardUnits:
    reference = run.config.train.reward_reference
    units = RewardUnits.of(run.training_data.learning, dataset.reward_scale, reference, run.device)
    return units._replace(
        normalizer=run.state.reward_normalizer,
        whole_spread=needs_quantiles(run.config.bcell),
    )


def fill_window(units: RewardUnits, dataset: OfflineDataset) -> None:
    """Fill the window of reward normalisation with the behaviour's rewards, evenly from the whole of the data.

    Both phases then begin in the same units; online rewards replace them.
    """
    if units.normalizer is None or units.normalizer.get_statistics()["count"]:
        return
    places = np.linspace(0, len(dataset) - 1, min(units.normalizer.config.window_size, len(dataset))).astype(np.int64)
    units.remember(dataset.reward[places].astype(np.float64), dataset.bar[places])


def behaviour_units(units: RewardUnits, dataset: OfflineDataset, keys: RewardNormalizationConfig) -> RewardUnits:
    """Units at the beginning of the online phase: those of a window with the behaviour's rewards alone.

    They do not depend on how far the window of the training has moved.
    """
    if units.normalizer is None:
        return units
    beginning = units._replace(normalizer=RewardNormalizer.of(keys))
    fill_window(beginning, dataset)
    return beginning


def probe_states(run: TrainingRun, store: Transitions, market: MarketTensors) -> States:
    """Recorded states, evenly spaced in the data, on which the guard measures the policy."""
    count = min(PROBE_STATES, len(store))
    places = torch.linspace(0, len(store) - 1, count).round().long().to(run.device)
    rows = store.rows(places)
    return market.states(rows["bar"], rows["portfolio"])


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
    store: Transitions,
    value: ValueNetwork,
    market: MarketTensors,
    units: RewardUnits,
    dataset: OfflineDataset,
    config: Config,
    td_lambda: float = TD_LAMBDA,
) -> Tensor:
    """The behaviour's lambda-returns, in scaled rewards, bootstrapped from a value as it stands; (transitions,)."""
    columns = store.columns
    returns = lambda_returns(
        units.scaled(columns["reward"].double(), columns["bar"]).cpu().numpy(),
        behaviour_values(store, value, market, after=True).double().cpu().numpy(),
        dataset.terminated,
        episode_ends(dataset.episode, dataset.terminated),
        config.bcell.gamma,
        td_lambda,
    )
    return torch.from_numpy(returns)


def fitted_q_value(
    learner: OfflineLearner, store: Transitions, market: MarketTensors, units: RewardUnits, config: Config
) -> float:
    """Value of the learner's deterministic policy, from the behaviour's transitions alone.

    The critics of learning are the starting point of critics of their own, whose target is
    ``r + gamma (1 - d) Q(s', policy(s'))``; the policy stands still.

    Returns ``(1 - gamma) Q(s, policy(s))``, the mean over states of the data and over critics, in units of a daily log
    return, plus the mean reward of the reference: comparable with the mean reward of a decision.

    References
    ----------
    Le, Voloshin and Yue (2019), Batch Policy Learning under Constraints, algorithm 3.
    """
    critic, target = copy.deepcopy(learner.critic), copy.deepcopy(learner.target_critic)
    target.requires_grad_(False)
    optimiser = make_optimiser(critic, config.bcell.critic_lr)
    bars = store.columns["bar"].cpu()
    size = group_size(bars, config.offline.group_size, config.train.offline_batch_size)
    groups = config.train.offline_batch_size // size
    generator = seeded(config.train.seed, FITTED_Q_PURPOSE)
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
        gradient_step(mean_loss(value, goal), optimiser, config.bcell.gradient_norm)
        polyak_update(target, critic, config.bcell.tau)
    with torch.no_grad():
        rows = store.rows(order[: max(FITTED_Q_ROWS // size, 1)].flatten().to(store.device))
        states = make_batch(rows, market, units, group_size=size).states
        action = learner.policy.deterministic(states).unsqueeze(1)
        values = critic.value(critic.encode(states), states, action, with_quantiles=0).mean
    reference = units.reference[store.columns["bar"]].mean()
    return units.unscaled(float(values.mean()) * (1.0 - config.bcell.gamma)) + float(reference)
