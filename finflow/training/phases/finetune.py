"""The online phase off-policy: the agent and a learner for each block of the training years learn side by side.

A vector step moves the portfolios of every learner by exact decisions and stores them; updates follow. At some updates
the policies are kept, to be backtested in the blocks that they have not seen: that evidence chooses the stage, and the
blend with a reference, that the agent decides by.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from finflow.agent.learners.soft_actor_critic import UpdatePoint
from finflow.agent.networks.policy import ExpertPolicy
from finflow.config import Config
from finflow.errors import TrainingError
from finflow.offline.dataset import OfflineDataset
from finflow.training.checkpoints.checkpoint_reader import ONLINE
from finflow.training.data.replay import MarketTensors, Transitions
from finflow.training.data.rewards import RewardUnits
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.off_policy.critic_quality import (
    FOLLOWED,
    SETTLED,
    critics_facts,
    measure_decision_scale,
)
from finflow.training.off_policy.evidence import OutOfFold
from finflow.training.off_policy.group_update import CoveragePool, Material
from finflow.training.off_policy.later_groups import Work
from finflow.training.off_policy.learners import (
    Learner,
    online_updates,
    vector_steps,
    with_mirrors,
)
from finflow.training.phases.block_pretraining import pretrain_blocks, transitions_outside
from finflow.training.phases.learner_work import WATCHED, LearnersAtWork
from finflow.training.phases.pretrain import (
    behaviour_returns,
    behaviour_units,
    behaviour_values,
    fill_window,
    probe_states,
    reward_units,
)
from finflow.training.phases.run_guard import LearnerProbe
from finflow.training.phases.training_run import LOG_EVERY, TrainingRun, validate_and_save


def stage_updates(total: int, looks: int) -> list[int]:
    """Updates after which the policies are kept for backtests: the last one, and others evenly before it."""
    return sorted({math.ceil(total * number / looks) for number in range(1, looks + 1)} - {0})


def finetune(run: TrainingRun, dataset: OfflineDataset) -> dict[str, float]:
    """Fine-tune the B-Cell from the current state to the end of the online phase."""
    phase = _OnlinePhase(run, dataset)
    try:
        return phase.run_to_end()
    finally:
        phase.work.later.end()


class _OnlinePhase:
    def __init__(self, run: TrainingRun, dataset: OfflineDataset) -> None:
        state, config = run.state, run.config
        if state.bcell is None or state.learners is None or state.out_of_fold is None:
            raise ValueError("the online phase has not begun")
        self.run, self.config = run, config
        self.bcell, self.learners, self.evidence = state.bcell, state.learners, state.out_of_fold
        tensors = MarketTensors.of(run.training_data.learning, run.device)
        units = reward_units(run, dataset)
        fill_window(units, dataset)
        self.market = RolloutMarket(run.training_data.learning, tensors, units)
        self.beginning = behaviour_units(units, dataset, config.train.reward_normalization)
        if state.counters.vector_step == 0:
            self._begin(dataset)
        offline = [
            offline_store(run, dataset, one, self.market, self.beginning, number, self.evidence)
            for number, one in enumerate(self.learners.everyone)
        ]
        run.probe = probe_states(run, offline[0], tensors)
        run.guard.begin(LearnerProbe(self.bcell, self.bcell.policy, run.probe), dataset.reward_scale)
        starts = [torch.from_numpy(one.portfolios.may_start).to(run.device) for one in self.learners.everyone]
        coverage = CoveragePool(config.train.seed, tensors.n_weights, run.device)
        market = with_mirrors(self.market, self.learners, config)
        self.work = LearnersAtWork(run, self.market, Material(market, offline, starts, coverage, config), self.learners)
        self.warmup, steps = (
            vector_steps(config, n) for n in (config.train.warmup_episodes, config.train.online_episodes)
        )
        self.last_step = self.warmup + steps
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
                self.work.step()
                if counters.vector_step <= self.warmup:
                    run.stop_if_asked()
                    continue
            latest = self._update()
            metrics = latest or metrics
            episode = self._episodes(counters.phase_update + 1)
            if not run.count_update(latest, {"episode": episode}):
                if counters.phase_update in self.looks:
                    self.work.later.fetch()
                    self.evidence.keep(self._policies())
                if not self._is_over():
                    agent = self.bcell.deployed
                    result = validate_and_save(run, agent, metrics, episode, self._episodes(1), 1, False) or result
            run.stop_if_asked()
        self.work.later.bring_back()
        if not self.evidence.judged:
            self.evidence.judged = True
            result = {name: float(value) for name, value in metrics.items()} | self._judge()
        run.progress.end_phase()
        return result

    def _begin(self, dataset: OfflineDataset) -> None:
        """Seed the blocks' learners, and measure each learner's unit of advantages on the bars that it may see."""
        pretrained = pretrain_blocks(self.run, dataset, self.evidence.blocks)
        for one, networks in zip(self.learners.of_blocks, pretrained, strict=False):
            one.agent.load_networks({name: tensor.to(self.run.device) for name, tensor in networks.items()})
        # of initial weights, or networks from another market, the blocks' pretrained policies are no evidence
        if pretrained and self.config.offline.method != "none" and self.run.state.counters.update > 0:
            self.evidence.looks = []
            self.evidence.keep(self._policies())
        market = self.market._replace(units=self.beginning)
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
        run, config, train = self.run, self.config, self.config.train
        done = run.state.counters.phase_update
        if done == train.critic_only_updates:
            run.guard.settle()
        annealed = run.state.entropy_schedule.value if config.bcell.alpha_mode == "annealed" else None
        scheduled = run.state.target_entropy_schedule.value if train.target_entropy_schedule.enabled else None
        point = UpdatePoint(done, self.total, annealed, scheduled)
        run.guard.expect_large_moves(True, begins=done == 0)
        learns, measured = done >= train.critic_only_updates, (done + 1) % LOG_EVERY == 0
        work = Work(point, ramp_share(config, done), run.guard.memory.manager.share, learns, measured)
        metrics, others = self.work.update(work)
        self.bcell.update_average((done + 1) / self.total)
        run.state.entropy_schedule.step()
        run.state.target_entropy_schedule.step()
        if not metrics:
            return {}
        metrics["mirrored_weight"] = metrics["alpha"].new_tensor(self.learners.everyone[0].portfolios.mirror.weight)
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
        process = self.market.process
        validation = process.decision_bars(run.training_data.split.validation)
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


def ramp_share(config: Config, done: int) -> float:
    """Share of the policy's learning rate in the update after ``done``: a linear ramp from where the policy may move.

    Adam's first steps are as long as its rate whatever the gradient, and the first gradients are mostly noise.
    """
    train = config.train
    if not train.actor_ramp_updates:
        return 1.0
    return min(max(done - train.critic_only_updates + 1, 0) / train.actor_ramp_updates, 1.0)


def offline_store(
    run: TrainingRun,
    dataset: OfflineDataset,
    learner: Learner,
    market: RolloutMarket,
    beginning: RewardUnits,
    number: int,
    evidence: OutOfFold,
) -> Transitions:
    """The behaviour's transitions that a learner may see, with its lower bounds of values (Cal-QL)."""
    own = dataset if number == 0 else transitions_outside(dataset, evidence.blocks[number - 1])
    if not learner.portfolios.may_start[own.bar].any():
        raise TrainingError(
            "the behaviour data has no decision from which every learner could look bcell.expansion decisions ahead; "
            "raise train.offline_episodes, or set out_of_fold.blocks=1"
        )
    store = Transitions.of(own, run.device)
    keys, value = run.config.bcell, learner.agent.behaviour_value
    if keys.calibration == "returns":
        bounds = behaviour_returns(store, value, market.tensors, beginning, own, run.config, td_lambda=1.0)
    else:
        bounds = behaviour_values(store, value, market.tensors)
    store.columns["calibration"].copy_(bounds)
    return store
