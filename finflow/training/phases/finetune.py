"""The online phase: the B-Cell acts, stores transitions, and learns from them and from the behaviour's."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from finflow.agent.batch import Batch, States, repeat_groups
from finflow.agent.learners.bcell import BCell
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.config import Config, TrainConfig
from finflow.env.coverage import coverage_portfolios, draw_log_gammas
from finflow.env.portfolio_state import PortfolioState, WorldState
from finflow.offline.dataset import OfflineDataset
from finflow.training.data.replay import MarketTensors, Transitions, join_rows, make_batch
from finflow.training.data.rewards import RewardUnits
from finflow.training.judging.generalisation_measure import mean_kl
from finflow.training.phase_names import ONLINE
from finflow.training.phases.guard_snapshots import LearnerProbe
from finflow.training.phases.pretrain import (
    behaviour_returns,
    behaviour_units,
    behaviour_values,
    fill_window,
    probe_states,
    reward_units,
    training_advantage_scale,
)
from finflow.training.phases.schedules import between
from finflow.training.phases.training_run import TrainingRun, kept_on_failure, validate_and_save
from finflow.training.phases.training_state import ended_early
from finflow.training.rollouts.online_world import OnlineWorld
from finflow.training.rollouts.rollout_steps import ended_episodes

COVERAGE_POOL = 65_536


def vector_steps(config: Config, episodes: int) -> int:
    """Number of vector steps for ``episodes`` episodes, rounded up."""
    return math.ceil(episodes * config.env.episode_length / config.train.n_envs)


def ramp_share(train: TrainConfig, done: int) -> float:
    """Share of the policy's learning rate in the update after ``done``: a linear ramp from where the policy may move.

    Adam's first steps are as long as its rate whatever the gradient, and the first gradients are mostly noise.
    """
    return min(max(done - train.critic_only_updates + 1, 0) / train.actor_ramp_updates, 1.0)


class CoveragePool:
    """Portfolios that cover the simplex, drawn once, as proposals for CQL.

    Parameters
    ----------
    seed : int
    n_weights : int
    device : torch.device
    """

    def __init__(self, seed: int, n_weights: int, device: torch.device) -> None:
        rng = np.random.default_rng(np.random.SeedSequence([seed, 6]))
        self.log_gamma = draw_log_gammas(rng, COVERAGE_POOL, n_weights)
        portfolios, log_density = coverage_portfolios(self.log_gamma)
        self.portfolios = torch.from_numpy(portfolios).float().to(device)
        self.log_density = torch.from_numpy(log_density).float().to(device)

    def draw(self, states: States, proposals: int, generator: Generator) -> CoverageProposals:
        """Proposals for a batch of states, of the assets that are listed in each."""
        batch, device = len(states.portfolio), self.portfolios.device
        places = torch.randint(COVERAGE_POOL, (batch, proposals), generator=generator, device=device)
        if states.complete:
            return CoverageProposals(self.portfolios[places], self.log_density[places])
        listed = repeat_groups(states.listed, states).unsqueeze(1).expand(-1, proposals, -1).cpu().numpy()
        drawn = coverage_portfolios(self.log_gamma[places.cpu().numpy()], listed)
        return CoverageProposals(*(torch.from_numpy(part).float().to(device) for part in drawn))


def calibrate(
    store: Transitions, bcell: BCell, market: MarketTensors, units: RewardUnits, dataset: OfflineDataset
) -> None:
    """Write Cal-QL's lower bound of values at every stored state, as configured by ``bcell.calibration``.

    Raw returns-to-go are discounted rewards to the end of each episode, plus the fitted value of its last state.
    """
    if bcell.config.calibration == "returns":
        bounds = behaviour_returns(store, bcell.behaviour_value, market, units, dataset, bcell.config.gamma, 1.0)
    else:
        bounds = behaviour_values(store, bcell.behaviour_value, market)
    store.columns["calibration"].copy_(bounds)


def universe_of(state: PortfolioState, market: MarketTensors) -> NDArray[np.int64] | None:
    """Sub-universes of N portfolios, (N,), in a market that has any."""
    if market.members is None or not isinstance(state, WorldState):
        return None
    drawn: NDArray[np.int64] = state.universe
    return drawn


def step_world(run: TrainingRun, bcell: BCell, world: OnlineWorld, market: MarketTensors, units: RewardUnits) -> None:
    """Take one decision per portfolio, drawn from the policy, and store the transitions."""
    env, process = world.env, run.training_data.learning.process
    state, before = env.state, process.observed_portfolio(env.state)
    bars = torch.as_tensor(state.bar, device=run.device)
    drawn = universe_of(state, market)
    universe = None if drawn is None else torch.as_tensor(drawn, device=run.device)
    states = market.states(bars, torch.as_tensor(before, dtype=torch.float32, device=run.device), universe=universe)
    with torch.no_grad():
        calibration = bcell.behaviour_value.of_behaviour(states).cpu().numpy()
    with kept_on_failure(run):
        action = market.scatter_assets(bcell.explore(states, run.state.exploration), universe).cpu().numpy()
        _, reward, terminated, truncated, info = env.step(action)
    after = process.observed_portfolio(info.get("final_state", env.state))
    kept = run.guard.learnable(reward)
    world.replay.add_steps(before, state, action, reward, after, terminated, calibration, kept)
    chosen = slice(None) if kept is None else kept
    units.remember(reward[chosen], state.bar[chosen], None if drawn is None else drawn[chosen])
    over = ended_episodes(info, terminated | truncated, run.config.env.initial_capital)
    world.episodes = run.log_episodes(over, world.episodes)
    run.state.counters.vector_step += 1


def mixed_batch(
    run: TrainingRun,
    offline: Transitions,
    online: Transitions,
    market: MarketTensors,
    units: RewardUnits,
    progress: float,
) -> Batch:
    """Offline and online transitions in one batch, the offline share annealed."""
    train, noise = run.config.train, run.state.noise
    share = between(train.offline_share_start, train.offline_share_end, progress)
    n_offline = round(share * train.online_batch_size) if len(online) else train.online_batch_size
    parts = [(offline, n_offline), (online, train.online_batch_size - n_offline)]
    rows: list[dict[str, Tensor]] = [store.draw(count, noise) for store, count in parts if count > 0]
    return make_batch(join_rows(rows), market, units, noise, train.observation_noise)


def finetune(run: TrainingRun, dataset: OfflineDataset) -> dict[str, float]:
    """Fine-tune the B-Cell from the current state to the end of the online phase.

    Parameters
    ----------
    run : TrainingRun
        Its state's ``bcell`` and ``world`` are used.
    dataset : OfflineDataset

    Returns
    -------
    dict
        The last update's losses and validation metrics.
    """
    config, train, counters = run.config, run.config.train, run.state.counters
    bcell, world = run.state.bcell, run.state.world
    if bcell is None or world is None:
        raise ValueError("the online phase has not begun")
    market = MarketTensors.of(run.training_data.learning.process, run.device, config.bcell.expert_cloning > 0.0)
    units = reward_units(run, dataset)
    fill_window(units, dataset)
    offline = Transitions.of(dataset, run.device, market.members is not None)
    beginning = behaviour_units(units, dataset, train.reward_normalization)
    calibrate(offline, bcell, market, beginning, dataset)
    if counters.vector_step == 0:
        bcell.advantage_scale = training_advantage_scale(run, bcell.policy, market, beginning)
    if run.state.reference is not None:
        bcell.reference_beta = run.state.reference.beta
    run.probe = probe_states(run, offline, market)
    run.guard.begin(LearnerProbe(bcell, bcell.policy, run.probe), dataset.reward_scale)
    run.state.watch.manager.triggers.actor_unit = bcell.advantage_scale
    pool = CoveragePool(train.seed, market.n_weights, run.device)
    warmup, steps = vector_steps(config, train.warmup_episodes), vector_steps(config, train.online_episodes)
    total = steps * train.updates_per_vector_step
    run.progress.start_phase(f"{ONLINE} (B-Cell)", total, done=counters.phase_update)
    if counters.vector_step == 0:
        run.validate(bcell.deployed, {"episode": 0.0})
    result: dict[str, float] = {}
    metrics: dict[str, Tensor] = {}
    while counters.vector_step < warmup + steps and not ended_early(run.state):
        step_world(run, bcell, world, market, units)
        if counters.vector_step <= warmup:
            run.stop_if_asked()
            continue
        episode = (counters.vector_step - warmup) * train.n_envs / config.env.episode_length
        rolled_back = False
        for _ in range(train.updates_per_vector_step):
            done = counters.phase_update
            if done == train.critic_only_updates:
                run.guard.settle()
            batch = mixed_batch(run, offline, world.replay, market, units, done / total)
            coverage = pool.draw(batch.states, config.bcell.cql_samples, run.state.noise)
            latest: dict[str, Tensor] = {}
            if run.guard.accepts(batch):
                if run.state.reference is not None:
                    bcell.reference_beta = run.state.reference.beta
                bcell.set_learning_rates(done / total, ramp_share(train, done) if train.actor_ramp_updates else None)
                latest = bcell.update_sac(
                    batch,
                    coverage,
                    run.state.noise,
                    done,
                    actor=done >= train.critic_only_updates,
                    alpha=run.state.entropy_schedule.value if config.bcell.alpha_mode == "annealed" else None,
                    target=run.state.target_entropy_schedule.value if train.target_entropy_schedule.enabled else None,
                )
                bcell.update_average((done + 1) / total)
            run.state.entropy_schedule.step()
            run.state.target_entropy_schedule.step()
            metrics = latest or metrics
            rolled_back = run.count_update(latest, {"episode": episode})
            if rolled_back:
                break
            if run.state.reference is not None and done >= train.critic_only_updates:
                _check_reference(run, bcell)
        if rolled_back:
            run.stop_if_asked()
            continue
        last = counters.vector_step == warmup + steps or ended_early(run.state)
        new = train.n_envs / config.env.episode_length
        updates = train.updates_per_vector_step
        result = validate_and_save(run, bcell.deployed, metrics, episode, new, updates, last) or result
        run.stop_if_asked()
    run.progress.end_phase()
    return result


def _check_reference(run: TrainingRun, bcell: BCell) -> None:
    """Measure the KL to the reference on the recorded states at every check of the guard."""
    interval, train = run.config.guard.stability.check_interval, run.config.train
    if run.probe is not None and run.state.counters.phase_update % interval == 0:
        with torch.no_grad():
            divergence = mean_kl(bcell.policy, bcell.held_to, run.probe)
        run.check_reference(divergence, interval * train.n_envs // train.updates_per_vector_step)
