"""State of the guard in a training, with the detector of reward hacking: a score compared with net results.

A policy that is trained on a reward model can raise the model's score and not what the score stands for (Gao, Schulman
and Hilton 2023, Scaling Laws for Reward Model Overoptimization). Every validation of the online phase is checked.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from finflow.config import Config
from finflow.guard.rollback import RollbackManager
from finflow.guard.signals import Event
from finflow.guard.stability import StabilityMonitor
from finflow.guard.state_capture import capture, restore

RENAMED = {
    "policy_loss": "actor_loss",
    "value_loss": "q_loss",
    "largest_value": "q_largest",
    "gradient_norm": "policy_gradient",
}
"""Figures of some algorithms, by the names that the monitor watches."""
SMALLEST_WEIGHT = 1e-30  # mean weight of a likelihood that its loss is divided by

LOOKS = 3  # validations in a row at which the score rises and both net measures fall, before a stop
FALL = 0.1  # of the Sharpe ratio over them, at least, for a stop
MULTIPLE = 2.0  # of the turnover or concentration of the reference, beyond which there is a stop
LEAST_VALIDATIONS = 3  # for a correlation
LEAST_TURNOVER = 1.0  # a year: a reference that hardly trades counts as trading this much


class ScoredValidation(NamedTuple):
    """Figures of one validation backtest: means of the model's score and of the built-in reward, ``utility``.

    ``sharpe`` is annual and net of costs, ``turnover`` a year, and ``concentration`` the mean sum of squared weights: 1
    for one asset, 1 / K for equal weights.
    """

    score: float
    sharpe: float
    utility: float
    turnover: float
    concentration: float


class RewardHackingMonitor:
    """Validations of the online phase so far, and the reasons that they give to stop it.

    Attributes
    ----------
    reference : ScoredValidation or None
        That of the reference policy.
    hits : int
        Validations in a row at which the score rose while Sharpe ratio and utility fell.
    reasons : list of str
        To stop the training, by the last validation; one sentence each.
    """

    def __init__(self) -> None:
        self.validations: list[ScoredValidation] = []
        self.reference: ScoredValidation | None = None
        self.hits = 0
        self.reasons: list[str] = []

    @property
    def correlation(self) -> float:
        """Correlation of score and Sharpe ratio over validations; NaN of fewer than three, or of a constant."""
        known = [(one.score, one.sharpe) for one in self.validations if math.isfinite(one.score + one.sharpe)]
        score, sharpe = np.array(known).reshape(-1, 2).T
        if len(known) < LEAST_VALIDATIONS or score.std() == 0.0 or sharpe.std() == 0.0:
            return math.nan
        return float(np.corrcoef(score, sharpe)[0, 1])

    def check(self, validation: ScoredValidation) -> list[str]:
        """Check a validation; the first is the reference where none was given. Returns the reasons to stop."""
        self.reference = reference = self.reference or validation
        before = self.validations[-1] if self.validations else validation
        self.validations.append(validation)
        rose = validation.score > before.score  # false where one is not a number
        fell = validation.sharpe < before.sharpe and validation.utility < before.utility
        self.hits = self.hits + 1 if rose and fell else 0
        self.reasons = self._divergence()
        for name, usual in (
            ("turnover", max(reference.turnover, LEAST_TURNOVER)),
            ("concentration", reference.concentration),
        ):
            value = getattr(validation, name)
            if value > MULTIPLE * usual:
                self.reasons.append(
                    f"the {name} is {value:.3g}, over {MULTIPLE:g} times the reference's {getattr(reference, name):.3g}"
                )
        return self.reasons

    def _divergence(self) -> list[str]:
        """Reason where the score rose while the net results fell, at enough validations in a row and by enough."""
        first, last = self.validations[-1 - self.hits], self.validations[-1]
        if self.hits < LOOKS or not first.sharpe - last.sharpe >= FALL:
            return []
        return [
            f"the reward model's score rose from {first.score:.4g} to {last.score:.4g} while the Sharpe ratio fell "
            f"from {first.sharpe:.2f} to {last.sharpe:.2f} and the built-in reward with it, at {self.hits} "
            "validations in a row"
        ]

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the state as JSON, where null stands for what is not a number."""
        looks = [_row(one) for one in self.validations]
        return {}, {"looks": looks, "reference": self.reference and _row(self.reference), "hits": self.hits}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.validations = [_validation(row) for row in state["looks"]]
        self.reference = state["reference"] and _validation(state["reference"])
        self.hits = state["hits"]


def _row(validation: ScoredValidation) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in validation._asdict().items()}


def _validation(row: Mapping[str, Any]) -> ScoredValidation:
    return ScoredValidation(**{name: math.nan if value is None else float(value) for name, value in row.items()})


class GuardState:
    """State of the guard in a training, saved and resumed with it: monitor, snapshots, figures since the last check.

    Attributes
    ----------
    hacking : RewardHackingMonitor or None
        With objectives.reward = preference.
    block : dict of list
        Losses and rewards since the last check.
    score : float or None
        Last validation value, by which the best snapshot is chosen.
    pending : list of dict
        Alarms that the next update responds to.
    """

    def __init__(self, config: Config) -> None:
        guard = config.guard
        self.enabled = guard.enabled
        watched = guard.enabled and config.objectives.reward == "preference"
        self.hacking = RewardHackingMonitor() if watched else None
        self.monitor = StabilityMonitor(guard.stability, config.bcell.gamma)
        self.manager = RollbackManager(guard.rollback)
        self.block: dict[str, list[float]] = {}
        self.score: float | None = None
        self.pending: list[dict[str, Any]] = []

    def note(self, name: str, value: float) -> None:
        self.block.setdefault(name, []).append(value)

    def check_update(self, update: int, figures: Mapping[str, float]) -> list[Event]:
        """Check the figures of one update, none where it was skipped, and keep its losses for the next check."""
        if not figures:
            self.monitor.update = update
            return self.monitor.check_skip("a batch")
        renamed = {RENAMED.get(name, name): value for name, value in figures.items()}
        if "actor_loss" in renamed and "mean_weight" in renamed:  # of a likelihood: for weights of 1 on average
            renamed["actor_loss"] /= max(renamed["mean_weight"], SMALLEST_WEIGHT)
        for name, key in (("critic", "q_loss"), ("actor", "actor_loss")):
            if math.isfinite(renamed.get(key, math.nan)):  # others are what the update is skipped for
                self.note(name, renamed[key])
        return self.monitor.observe(update, renamed)

    def collect(self) -> dict[str, float]:
        """Return medians of losses and the mean of rewards since the last check, and forget them."""
        block, self.block = self.block, {}
        return {name: fmean(kept) if name == "reward" else median(kept) for name, kept in block.items() if kept}

    def capture(self) -> tuple[dict[str, Tensor], Any]:
        if not self.enabled:
            return {}, None
        tensors, manager = self.manager.capture()
        facts = {"block": self.block, "score": self.score, "pending": self.pending}
        state = {"monitor": capture(self.monitor)[1], "manager": manager, **copy.deepcopy(facts)}
        return tensors, state | ({} if self.hacking is None else {"hacking": self.hacking.capture()[1]})

    def restore(self, tensors: Mapping[str, Tensor], state: Any) -> None:
        """Restore the state; none where the guard is off, or was."""
        if not self.enabled or state is None:
            return
        restore(self.monitor, {}, state["monitor"])
        self.manager.restore(tensors, state["manager"])
        self.block, self.score, self.pending = (copy.deepcopy(state[name]) for name in ("block", "score", "pending"))
        if self.hacking is not None and "hacking" in state:
            self.hacking.restore({}, state["hacking"])
