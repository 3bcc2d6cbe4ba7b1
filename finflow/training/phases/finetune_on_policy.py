"""The online phase by PPO, TRPO, A2C or REINFORCE: rollouts of the policy's own decisions, and an update from each.

A rollout counts as the gradient steps of all its epochs, so that intervals in updates keep their meaning: the guard,
validation and checkpoints take their turn after the rollout that passes theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import torch

from finflow.agent.gradient_steps import cosine
from finflow.agent.learners.bcell import BCell
from finflow.agent.on_policy.on_policy_settings import Rollout
from finflow.agent.on_policy.on_policy_update import Figures
from finflow.config import Config, changed_values
from finflow.env.rewards.reward_queue import RewardQueue, queued_rewards
from finflow.env.vector_env import PortfolioVectorEnv
from finflow.training.checkpoints.checkpoint_reader import ONLINE
from finflow.training.data.replay import Transitions
from finflow.training.on_policy.on_policy_market import (
    UNREAD,
    Earnings,
    EndedEpisode,
    OnPolicyState,
    Reference,
    RolloutCollector,
    market_rollout,
    on_policy_settings,
    rollouts_of,
    steps_per_rollout,
)
from finflow.training.phases.pretrain import learning_market
from finflow.training.phases.run_guard import LearnerProbe, probe_states
from finflow.training.phases.training_run import TrainingRun, kept_on_failure, validate_and_save
from finflow.training.phases.training_state import TrainingState

CRITIC_ONLY_ROLLOUTS = 2  # first ones, which train the value function alone


def finetune_on_policy(run: TrainingRun) -> dict[str, float]:
    """Learn from rollouts of the policy, from the current state to the end of the online phase."""
    config, state, counters = run.config, run.state, run.state.counters
    bcell, on_policy = state.bcell, state.on_policy
    if bcell is None or on_policy is None:
        raise ValueError("the online phase has not begun")
    units = learning_market(run).units
    market = on_policy.agent.market
    run.probe = probe_states(Transitions.of(run.dataset, run.device), market)
    steps, rollouts = steps_per_rollout(config), rollouts_of(config)
    run.progress.start_phase(f"{ONLINE} ({config.online.algorithm})", rollouts * steps, done=counters.phase_update)
    if counters.vector_step == 0:
        on_policy.value.load_state_dict(bcell.behaviour_value.state_dict())
        if unread := [key for key in UNREAD if key in changed_values(Config(), config)]:
            run.progress.note(f"{config.online.algorithm} does not read {', '.join(unread)} online; sac does")
        run.validate(bcell.deployed, {"episode": 0.0})
    # Networks that the guard measures, and the optimiser whose learning rates it lowers.
    learner = SimpleNamespace(policy=bcell.policy, value=on_policy.value, optimiser=on_policy.optimiser)
    run.guard.begin(LearnerProbe(learner, bcell.policy, run.probe), run.dataset.reward_scale)
    env = on_policy.played.env
    with _rewarded(env, config) as queue:
        pay = on_policy.pay.assign if on_policy.pay is not None else None
        collector = RolloutCollector(
            on_policy.played, on_policy.agent, units, state.exploration, run.guard.learnable, queue, pay
        )
        result = _learn(run, on_policy, bcell, collector)
    run.progress.end_phase()
    return result


def _learn(run: TrainingRun, on_policy: OnPolicyState, bcell: BCell, collector: RolloutCollector) -> dict[str, float]:
    config, state, counters = run.config, run.state, run.state.counters
    steps, rollouts = steps_per_rollout(config), rollouts_of(config)
    result: dict[str, float] = {}
    while not _is_over(run):
        done = counters.phase_update // steps
        if done == CRITIC_ONLY_ROLLOUTS:
            run.guard.settle()
        rollout, earnings = _collect(run, on_policy, bcell, collector)
        episodes, on_policy.played.episodes = on_policy.played.episodes, []
        (returns, bars), on_policy.played.earned = map(np.stack, zip(*on_policy.played.earned, strict=True)), []
        counters.vector_step += len(earnings.rewards)
        figures = learn_from(on_policy, rollout, config, state, done)
        bcell.update_average((done + 1) / rollouts)
        state.entropy_schedule.step(steps)
        episode = (done + 1) * config.online.rollout / config.env.episode_length
        metrics = {name: torch.tensor(value, dtype=torch.float64) for name, value in figures.items()}
        metrics["largest_value"] = rollout.values.abs().max().double()
        facts = _facts(earnings, episodes, state, episode) | run.running_figures(returns, bars)
        rolled_back = run.count_update(metrics, facts, steps)
        if not rolled_back:
            for one in episodes:
                on_policy.episodes += 1
                row = {"episode": float(on_policy.episodes), "return": one.net_return, "sharpe": one.sharpe}
                run.log.record(counters.phase, counters.update, row)
            if done >= CRITIC_ONLY_ROLLOUTS:
                run.check_reference(earnings.divergence, earnings.rewards.numel())
            facts, new = {"episode": episode}, config.online.rollout / config.env.episode_length
            result = validate_and_save(run, bcell.deployed, figures, facts, _is_over(run), steps, new) or result
        run.stop_if_asked()
    return result


def _is_over(run: TrainingRun) -> bool:
    """Return True at the end of the online phase, which the KL to the reference may end early."""
    total, reference = rollouts_of(run.config) * steps_per_rollout(run.config), run.state.reference
    return run.state.counters.phase_update >= total or (reference is not None and reference.stopped)


@contextmanager
def _rewarded(env: PortfolioVectorEnv, config: Config) -> Iterator[RewardQueue | None]:
    """Have workers compute the environments' rewards during the block, where the configuration has any."""
    before = env.process
    with queued_rewards(before, config.objectives.workers, config.train.threads) as (env.process, queue):
        try:
            yield queue
        finally:
            env.process = before


def _collect(
    run: TrainingRun, on_policy: OnPolicyState, bcell: BCell, collector: RolloutCollector
) -> tuple[Rollout, Earnings]:
    """Collect a rollout; where a reward cannot be computed, write a checkpoint of the state before it first."""
    (tensors, state), control, online = on_policy.played.capture(), run.state.reference, run.config.online
    reference = None if control is None else Reference(bcell.held_to, control.controller.beta)
    with kept_on_failure(run, lambda: on_policy.played.restore(tensors, state)):
        taken, earnings = collector.collect(online.rollout // online.portfolios, reference)
    return market_rollout(taken, earnings, on_policy.agent, on_policy_settings(run.config)), earnings


def learn_from(on_policy: OnPolicyState, rollout: Rollout, config: Config, state: TrainingState, done: int) -> Figures:
    """Update policy and value function from a rollout; the value function alone in the first ones."""
    learner, settings = on_policy.learner, on_policy_settings(config)
    share = state.watch.manager.share if state.watch.enabled else 1.0
    learner.settings = settings = replace(settings, trust_region=settings.trust_region * share)
    if config.bcell.online_schedule == "cosine":
        rates = [settings.learning_rate, settings.learning_rate * settings.critic_rate_multiple]
        groups = learner.optimiser.param_groups
        for group, rate in zip(groups, rates[-len(groups) :], strict=True):
            group["lr"] = cosine(rate, done / rollouts_of(config))
    if done < CRITIC_ONLY_ROLLOUTS and settings.value_coefficient > 0.0:
        return learner.update_critic(rollout)
    scheduled = state.entropy_schedule.value if config.bcell.alpha_mode == "annealed" else None
    return learner.update(rollout, scheduled)


def _facts(
    earnings: Earnings, episodes: Sequence[EndedEpisode], state: TrainingState, episode: float
) -> dict[str, float]:
    facts = {"episode": episode, "reward": float(earnings.rewards.mean())}
    if episodes:
        facts["episode_return"] = fmean(one.net_return for one in episodes)
        facts["episode_sharpe"] = fmean(one.sharpe for one in episodes)
    if state.reference is not None:
        facts["reference_kl"] = state.reference.of_episode(earnings.divergence)
        facts["reference_beta"] = state.reference.controller.beta
    return facts
