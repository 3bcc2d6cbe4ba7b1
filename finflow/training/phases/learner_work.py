"""Vector steps and updates of all learners of the online phase, by groups, some of them in a second process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from finflow.agent.learners.soft_actor_critic import UpdatePoint
from finflow.training.data.replay import ONLINE as FAMILY
from finflow.training.data.rollouts import RolloutMarket
from finflow.training.off_policy.counterfactuals import exact_bounds
from finflow.training.off_policy.group_update import Material, step_portfolios, update_group
from finflow.training.off_policy.later_groups import Figures, LaterGroups, Work
from finflow.training.off_policy.learners import (
    Learner,
    Learners,
    capture_learners,
    groups,
    restore_learners,
    rewinder,
)
from finflow.training.phases.training_run import TrainingRun, kept_on_failure

WATCHED = ("actor_loss", "policy_gradient", "critic_gradient", "q_largest")
Updates = list[dict[str, Tensor]]


class LearnersAtWork:
    """The learners of a training with all that they learn from; ``market`` is without mirrored bars."""

    def __init__(self, run: TrainingRun, market: RolloutMarket, material: Material, learners: Learners) -> None:
        self.run, self.market, self.material, self.learners = run, market, material, learners
        self._rates, later = 1.0, learners.later
        for one in learners.of_blocks:
            run.guard.guard_also(one.optimisers, lambda: self._rates)
        self.later = learners.later_groups = LaterGroups(
            self._perform_later,
            partial(capture_learners, later, True),
            partial(restore_learners, later),
            partial(rewinder, later.values()),
            may_leave=bool(later) and market.units.normalizer is None,
        )

    def step(self) -> None:
        restore = rewinder(self.learners.first.values())

        def put_back() -> None:
            restore()
            self.later.undo()

        with kept_on_failure(self.run, put_back):
            self.later.begin(Work())
            moved = self._move(self.learners.first)
            self.later.result(Work())
        self._store(self.learners.first, moved)
        self.run.state.counters.vector_step += 1

    def update(self, work: Work) -> tuple[dict[str, Tensor], Figures]:
        self.later.begin(work)
        metrics, *beside = self._learn(self.learners.first, work)
        others = [*_largest(beside), *self.later.result(work)]
        return metrics, [one for one in others if one]

    def _perform_later(self, work: Work) -> Figures:
        if work.point is None:
            self._store(self.learners.later, self._move(self.learners.later))
            return []
        return _largest(self._learn(self.learners.later, work))

    def _move(self, learners: Mapping[int, Learner]) -> list[dict[str, NDArray[Any]]]:
        return [
            one
            for group in groups(learners)
            for one in step_portfolios(self.market, list(group.values()), self.material.config)
        ]

    def _learn(self, learners: Mapping[int, Learner], work: Work) -> Updates:
        point, self._rates = work.point or UpdatePoint(), work.rates
        found: Updates = []
        for group in groups(learners):
            for one in group.values():
                one.agent.set_learning_rates(point.progress, work.ramp)
            measured = work.measured and 0 in group
            found += update_group(self.material, group, point, work.learns, measured, self.run.guard.accepts)
        return found

    def _store(self, learners: Mapping[int, Learner], moved: Sequence[Mapping[str, NDArray[Any]]]) -> None:
        """Store the transitions (H, n_envs, ...) of learners' vector steps that can be learned from."""
        gamma, guard = self.material.config.bcell.gamma, self.run.guard
        for (number, learner), rows in zip(learners.items(), moved, strict=True):
            flat = {name: part.reshape(-1, *part.shape[2:]) for name, part in rows.items()}
            calibration = exact_bounds(self.market, learner.agent.behaviour_value, rows, gamma).reshape(-1)
            kept = flat.pop("alive").astype(np.bool_) & np.isfinite(flat["reward"])
            learnable = guard.within_limit(flat["reward"]) if number else guard.learnable(flat["reward"])
            if learnable is not None:
                kept &= learnable
            chosen = {name: part[kept] for name, part in flat.items()}
            learner.replay.add(**chosen, family=np.full(int(kept.sum()), FAMILY), calibration=calibration[kept])
            if number == 0:
                self.market.units.remember(chosen["reward"], chosen["bar"])


def _largest(found: Updates) -> Figures:
    return [{name: float(metrics[name]) for name in WATCHED if name in metrics} for metrics in found]
