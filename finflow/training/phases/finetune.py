"""The online phase off-policy: the agent and a learner for each block of the training years learn side by side.

A vector step moves the portfolios of every learner by exact decisions and stores them; updates follow. At some updates
the policies are kept, to be backtested in the blocks that they have not seen: that evidence chooses the stage, and the
blend with a reference, that the agent decides by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.learners.soft_actor_critic import UpdatePoint
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.errors import TrainingError
from finflow.offline.dataset import OfflineDataset
from finflow.training.checkpoints.checkpoint_reader import ONLINE
from finflow.training.data.replay import ONLINE as FAMILY, CoveragePool, Transitions
from finflow.training.data.reward_normalizer import RewardNormalizer
from finflow.training.data.rollouts import RolloutMarket, with_normalizer
from finflow.training.off_policy.evidence import transitions_outside
from finflow.training.off_policy.exact_decisions import (
    FOLLOWED,
    SETTLED,
    critics_facts,
    exact_bounds,
    measure_decision_scale,
)
from finflow.training.off_policy.group_update import Material, step_portfolios, update_group
from finflow.training.off_policy.learners import (
    Figures,
    Learner,
    Work,
    groups,
    online_updates,
    rewinder,
    vector_steps,
    with_mirrors,
)
from finflow.training.phases.pretrain import (
    behaviour_returns,
    behaviour_values,
    learning_market,
    pretraining_in_parallel,
)
from finflow.training.phases.run_guard import LearnerProbe, probe_states
from finflow.training.phases.training_run import TrainingRun, kept_on_failure, validate_and_save

WATCHED = ("actor_loss", "policy_gradient", "critic_gradient", "q_largest")


def stage_updates(total: int, looks: int) -> list[int]:
    """Updates after which the policies are kept for backtests: the last one, and others evenly before it."""
    return sorted({math.ceil(total * number / looks) for number in range(1, looks + 1)} - {0})


def ramp_share(config: Config, done: int) -> float:
    """Share of the policy's learning rate in the update after ``done``: a linear ramp from where the policy may move.

    Adam's first steps are as long as its rate whatever the gradient, and the first gradients are mostly noise.
    """
    train = config.train
    if not train.actor_ramp_updates:
        return 1.0
    return min(max(done - train.critic_only_updates + 1, 0) / train.actor_ramp_updates, 1.0)


def offline_store(run: TrainingRun, dataset: OfflineDataset, learner: Learner, market: RolloutMarket) -> Transitions:
    """Those of the behaviour's transitions that a learner may see, with its lower bounds of values (Cal-QL)."""
    if not learner.portfolios.may_start[dataset.bar].any():
        raise TrainingError(
            "the behaviour data has no decision from which every learner could look bcell.expansion decisions ahead; "
            "raise train.offline_episodes, or set out_of_fold.blocks=1"
        )
    store, value = Transitions.of(dataset, run.device), learner.agent.behaviour_value
    if run.config.bcell.calibration == "returns":
        bounds = behaviour_returns(dataset, store, value, market, run.config.bcell.gamma, td_lambda=1.0)
    else:
        bounds = behaviour_values(store, value, market.tensors)
    store.columns["calibration"].copy_(bounds)
    return store


def finetune(run: TrainingRun) -> dict[str, float]:
    """Fine-tune the B-Cell from the current state to the end of the online phase."""
    phase = _OnlinePhase(run)
    try:
        return phase.run_to_end()
    finally:
        phase.learners.end()


class _OnlinePhase:
    def __init__(self, run: TrainingRun) -> None:
        state, config, dataset = run.state, run.config, run.dataset
        if state.bcell is None or state.learners is None or state.out_of_fold is None:
            raise ValueError("the online phase has not begun")
        self.run, self.config, self._rates = run, config, 1.0
        self.bcell, self.learners, self.evidence = state.bcell, state.learners, state.out_of_fold
        self.market = beginning = learning_market(run)
        _, tensors, units = self.market
        if units.normalizer is not None:  # units that do not depend on how far the window of the training has moved
            beginning = with_normalizer(beginning, RewardNormalizer.of(config.train.reward_normalization), dataset)
        if state.counters.vector_step == 0:
            self._begin(beginning)
        seen = [dataset, *(transitions_outside(dataset, block) for block in self.evidence.blocks)]
        for one, own in zip(self.learners.everyone, seen, strict=True):
            one.behaviour = offline_store(run, own, one, beginning)
        run.probe = probe_states(self.learners.everyone[0].behaviour, tensors)
        run.guard.begin(LearnerProbe(self.bcell, self.bcell.policy, run.probe), dataset.reward_scale, moves_far=True)
        coverage = CoveragePool(config.train.seed, tensors.n_weights, run.device)
        self.material = Material(with_mirrors(self.market, self.learners, config, run.predictions), coverage, config)
        for one in self.learners.of_blocks:
            run.guard.guard_also(one.agent, lambda: self._rates)
        self.learners.share(self._perform_later, may_leave=units.normalizer is None)
        self.warmup = vector_steps(config, config.train.warmup_episodes)
        self.last_step = self.warmup + vector_steps(config, config.train.online_episodes)
        self.total = online_updates(config)
        self.looks = stage_updates(self.total, config.out_of_fold.looks) if self.evidence.blocks else []

    def run_to_end(self) -> dict[str, float]:
        run, counters = self.run, self.run.state.counters
        run.progress.start_phase(f"{ONLINE} (B-Cell)", self.total, done=counters.phase_update)
        if counters.vector_step == 0:
            run.validate(self.bcell.deployed, {"episode": 0.0})
        result: dict[str, float] = {}
        metrics: dict[str, Tensor] = {}
        while not self._is_over():
            due = (counters.vector_step - self.warmup) * self.config.train.updates_per_vector_step
            if counters.vector_step < self.warmup or counters.phase_update == due:
                self._step()
                if counters.vector_step <= self.warmup:
                    run.stop_if_asked()
                    continue
            latest = self._update()
            metrics = latest or metrics
            facts = {"episode": self._episodes(counters.phase_update + 1), **counters.running}
            if not run.count_update(latest, facts):
                if counters.phase_update in self.looks:
                    self.learners.fetch()
                    self.evidence.keep(self._policies())
                if not self._is_over():
                    agent, new = self.bcell.deployed, self._episodes(1)
                    result = validate_and_save(run, agent, metrics, facts, new_episodes=new) or result
            run.stop_if_asked()
        self.learners.bring_back()
        if not self.evidence.judged:
            self.evidence.judged = True
            result = {name: float(value) for name, value in metrics.items()} | self._judge()
        run.progress.end_phase()
        return result

    def _begin(self, market: RolloutMarket) -> None:
        """Seed the blocks' learners, and measure each learner's unit of advantages on the bars that it may see."""
        with pretraining_in_parallel(self.run):
            pass
        pretrained = self.run.pretrained_blocks
        for one, networks in zip(self.learners.of_blocks, pretrained, strict=False):
            tensors = {name: torch.from_numpy(array).to(self.run.device) for name, array in networks.items()}
            one.agent.load_networks(tensors)
        # of initial weights, or networks from another market, the blocks' pretrained policies are no evidence
        if pretrained and self.config.offline.method != "none" and self.run.state.counters.update > 0:
            self.evidence.looks = []
            self.evidence.keep(self._policies())
        for one in self.learners.everyone:
            one.agent.advantage_scale = measure_decision_scale(
                market, one.agent.policy, self.config, one.portfolios.segments
            )

    def _is_over(self) -> bool:
        counters = self.run.state.counters
        return counters.vector_step >= self.last_step and counters.phase_update >= self.total

    def _episodes(self, updates: int) -> float:
        decisions = self.config.train.n_envs * max(self.config.bcell.expansion, 1)
        steps = updates / self.config.train.updates_per_vector_step
        return steps * decisions / self.config.env.episode_length

    def _policies(self) -> list[ExpertPolicy]:
        own = self.bcell.policy if self.bcell.average is None else self.bcell.average.policy
        return [own, *(one.agent.policy for one in self.learners.of_blocks)]

    def _update(self) -> dict[str, Tensor]:
        run, config = self.run, self.config
        done = run.state.counters.phase_update
        if done in (0, config.train.critic_only_updates):
            run.guard.settle()
        annealed = run.state.entropy_schedule.value if config.bcell.alpha_mode == "annealed" else None
        scheduled = run.state.target_entropy_schedule.value if config.train.target_entropy_schedule.enabled else None
        point = UpdatePoint(done, self.total, annealed, scheduled)
        work = Work(point, run.guard.memory.manager.share)
        self.learners.begin(work)
        metrics, *beside = self._learn(self.learners.first, work)
        others = [one for one in [*_largest(beside), *self.learners.result(work)] if one]
        self.bcell.update_average((done + 1) / self.total)
        run.state.entropy_schedule.step()
        run.state.target_entropy_schedule.step()
        for name in WATCHED if others else ():
            if name in metrics:
                metrics[f"block_{name}"] = metrics[name].new_tensor([other[name] for other in others]).max()
                # what is not finite anywhere shows in the figure that the guard reads
                metrics[name] = metrics[name] + 0.0 * metrics[f"block_{name}"]
        return metrics

    def _judge(self) -> dict[str, float]:
        """Choose the blend by the evidence, judge the critics, and the agent on the validation window, once."""
        run, config = self.run, self.config
        facts: dict[str, float | str] = {"episode": float(config.train.online_episodes)}
        if self.evidence.looks:
            chosen = self.evidence.choose(self.bcell, self.market, run.training_data, config.train.seed)
            run.progress.note(chosen.describe())
            facts |= chosen.facts()
        validation = self.market.process.decision_bars(run.training_data.split.validation)
        windows = {
            "training": self.learners.everyone[0].portfolios.starts,
            "validation": np.arange(validation.start, validation.stop - SETTLED - FOLLOWED + 1),
        }
        facts |= critics_facts(self.market, self.bcell, windows, config)
        if self.evidence.blocks:
            run.state.counters.best_score = run.state.counters.best_update = None
        validated = run.validate(self.bcell.deployed, facts)
        run.checkpoint()
        return validated

    def _step(self) -> None:
        """Take a vector step of all learners, and store its transitions."""
        first = self.learners.first
        rewind = rewinder(first)

        def put_back() -> None:
            rewind()
            self.learners.undo()

        with kept_on_failure(self.run, put_back):
            self.learners.begin(Work())
            moved = self._move(first)
            self.learners.result(Work())
        self._store(first, moved)
        self.run.state.counters.vector_step += 1

    def _perform_later(self, work: Work) -> Figures:
        if work.point is None:
            self._store(self.learners.later, self._move(self.learners.later))
            return []
        return _largest(self._learn(self.learners.later, work))

    def _move(self, learners: Sequence[Learner]) -> list[dict[str, NDArray[Any]]]:
        return [one for group in groups(learners) for one in step_portfolios(self.market, group, self.config)]

    def _learn(self, learners: Sequence[Learner], work: Work) -> list[dict[str, Tensor]]:
        point, config, self._rates = work.point or UpdatePoint(), self.config, work.rates
        found: list[dict[str, Tensor]] = []
        for group in groups(learners):
            for one in group:
                one.agent.set_learning_rates(point.progress, ramp_share(config, point.update))
            actor = point.update >= config.train.critic_only_updates
            found += update_group(self.material, group, point, actor, self.run.guard.accepts)
        return found

    def _store(self, learners: Sequence[Learner], moved: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Store the transitions (H, n_envs, ...) of learners' vector steps that can be learned from."""
        gamma, guard = self.config.bcell.gamma, self.run.guard
        for learner, rows in zip(learners, moved, strict=True):
            flat = {name: part.reshape(-1, *part.shape[2:]) for name, part in rows.items()}
            calibration = exact_bounds(self.market, learner.agent.behaviour_value, rows, gamma).reshape(-1)
            kept = flat.pop("alive").astype(np.bool_) & np.isfinite(flat["reward"])
            returns = flat.pop("simple_return")
            kept &= (guard.within_limit if learner.number else guard.learnable)(flat["reward"])
            chosen = {name: part[kept] for name, part in flat.items()}
            learner.replay.add(**chosen, family=np.full(int(kept.sum()), FAMILY), calibration=calibration[kept])
            if learner.number == 0:
                self.run.state.counters.running = self.run.running_figures(returns[kept], flat["bar"][kept] + 1)
                self.market.units.remember(chosen["reward"], chosen["bar"])


def _largest(found: Sequence[Mapping[str, Tensor]]) -> Figures:
    return [{name: float(metrics[name]) for name in WATCHED if name in metrics} for metrics in found]
