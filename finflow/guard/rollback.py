"""Rollback to a healthy state: snapshots in memory, and the responses to alarms in their order.

Skip the step, lower the learning rate, go back to the last healthy snapshot, to older ones, stop. A snapshot is healthy
after a probation without an alarm; the first of a phase is healthy at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Literal, Self

from torch import Tensor

from finflow.config import Config, RollbackConfig
from finflow.guard.reward_hacking import RewardHackingMonitor
from finflow.guard.rollback_triggers import RollbackTriggers
from finflow.guard.signals import Event, crossed
from finflow.guard.stability import StabilityMonitor
from finflow.guard.state_capture import without_prefix

RENAMED = {
    "policy_loss": "actor_loss",
    "value_loss": "q_loss",
    "largest_value": "q_largest",
    "gradient_norm": "policy_gradient",
}
"""Figures of some algorithms, by the names that the monitor watches."""
LOWERED = 0.5  # share of the learning rates that a rollback leaves
MOST_ROLLBACKS = 10  # of a phase, before a stop
SMALLEST_WEIGHT = 1e-30  # mean weight of a likelihood that its loss is divided by

LOWER, ROLLBACK, STOP = "lower", "rollback", "stop"


@dataclass
class Snapshot:
    """A state to go back to, of ``capture``, and a score: a figure of which more is better."""

    update: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    score: float | None = None
    healthy: bool = False


class RollbackManager:
    """Snapshots of a training, and the responses to its alarms.

    Examples
    --------
    >>> RollbackManager.preset("conservative", mode="strict").should_rollback(kl=0.06)
    (True, 'the policy moved 0.06 nats per free dimension from the last healthy one, the limit is 0.05')
    """

    def __init__(self, config: RollbackConfig | Config | None = None) -> None:
        if isinstance(config, Config):
            config = config.guard.rollback
        self.config = config or RollbackConfig()
        self.snapshots: list[Snapshot] = []
        self.best: Snapshot | None = None
        self.triggers = RollbackTriggers(self.config)
        self.rollback_count = self.phase_rollbacks = self.retries = self.last_alarm = self.saved = 0
        self.last_rollback_step: int | None = None
        self.lowered, self.share = False, 1.0

    @classmethod
    def preset(cls, name: str, mode: Literal["strict", "robust"] = "robust") -> Self:
        """Make a manager with the thresholds of a preset: ``conservative``, ``standard`` or ``aggressive``."""
        return cls(RollbackConfig.model_validate({"preset": name, "mode": mode}))

    def begin_phase(self, update: int) -> None:
        """Forget snapshots and usual values: they belong to another phase."""
        self.snapshots, self.best = [], None
        self.triggers.clear()
        self.phase_rollbacks = self.retries = 0
        self.share, self.lowered, self.last_alarm = 1.0, False, update

    def settle(self) -> None:
        """Forget how fast the policy moves: from here on it does so in another way."""
        self.triggers.windows["kl"].clear()
        self.triggers.windows["actor"].clear()

    def due(self, phase_update: int, steps: int = 1) -> bool:
        """Return True where a snapshot is due after so many updates of a phase, the last ``steps`` at once."""
        return crossed(phase_update, steps, self.config.save_interval)

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], score: float | None = None) -> None:
        """Keep a snapshot, on probation; the first of a phase is healthy at once."""
        snapshot = Snapshot(step, tensors, state, score, healthy=not self.snapshots)
        self.snapshots.append(snapshot)
        self.saved += 1
        while len(self.snapshots) > self.config.max_checkpoints:
            self.snapshots.pop(0 if any(one.healthy for one in self.snapshots[1:]) else 1)

    def advance(self, step: int, alarmed: bool) -> bool:
        """End probations, or discard snapshots on probation after an alarm.

        Returns True where learning rates were raised again.
        """
        if alarmed:
            self.last_alarm = step
            self.snapshots = [one for one in self.snapshots if one.healthy]
            return False
        for one in self.snapshots:
            if not one.healthy and step - one.update >= self.config.probation:
                one.healthy = True
                self.best = max((two for two in (self.best, one) if two is not None), key=_score)
        if step - self.last_alarm >= self.config.recovery:
            self.last_alarm, self.retries, self.lowered = step, 0, False
            lowered, self.share = self.share < 1.0, min(1.0, self.share / LOWERED)
            return lowered
        return False

    @property
    def last_healthy(self) -> Snapshot | None:
        """The newest snapshot that survived its probation."""
        return next((one for one in reversed(self.snapshots) if one.healthy), None)

    def should_rollback(
        self,
        loss: float | None = None,
        reward: float | None = None,
        kl: float | None = None,
        actor_loss: float | None = None,
    ) -> tuple[bool, str]:
        """Compare figures of the training with the thresholds, as `RollbackTriggers` does in either mode.

        Parameters
        ----------
        loss, actor_loss : float, optional
            Of the critic and of the policy; either may be negative.
        reward : float, optional
            Mean reward of the agent's decisions since the last check.
        kl : float, optional
            From the last healthy policy, in nats per free dimension.

        Returns
        -------
        (bool, str)
            Whether to roll back, and the reason; empty where there is none.
        """
        return self.triggers.check({"critic": loss, "actor": actor_loss, "reward": reward, "kl": kl})

    def respond(self, gently: bool) -> str:
        """Choose the next response to an alarm, ``lower``, ``rollback`` or ``stop``.

        ``gently`` if lower rates may be enough.
        """
        if gently and not self.lowered:
            self.lowered = True
            self.share *= LOWERED
            return LOWER
        if self.retries >= self.config.max_retries or self.phase_rollbacks >= MOST_ROLLBACKS:
            return STOP
        return ROLLBACK if self.last_healthy is not None else STOP

    def take(self, step: int) -> Snapshot:
        """Return the snapshot to go back to: the last healthy one, and an older one at each retry.

        A LookupError without any.
        """
        healthy = [one for one in self.snapshots if one.healthy]
        if not healthy:
            raise LookupError("there is no healthy snapshot")
        if self.retries and len(healthy) > 1:
            healthy.pop()  # it led to this alarm before
        self.snapshots = healthy
        self.rollback_count += 1
        self.phase_rollbacks += 1
        self.retries += 1
        self.last_rollback_step = self.last_alarm = step
        self.share *= LOWERED
        self.triggers.hits = {}
        return healthy[-1]

    def get_statistics(self) -> dict[str, float | int | None]:
        """Number of snapshots, the best among them, and the rollbacks so far."""
        kept = {id(one): one for one in (*self.snapshots, self.best) if one is not None}
        best = max((one for one in kept.values() if one.score is not None), key=_score, default=None)
        return {
            "num_checkpoints": len(kept),
            "best_checkpoint_step": None if best is None else best.update,
            "best_reward": None if best is None else best.score,
            "rollback_count": self.rollback_count,
            "last_rollback_step": self.last_rollback_step,
            "learning_rate_share": self.share,
        }

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the state; snapshots are not copied, since nothing writes in them."""
        kept = {id(one): one for one in (*self.snapshots, self.best) if one is not None}
        order = {key: number for number, key in enumerate(kept)}
        tensors = {f"{order[key]}/{name}": t for key, one in kept.items() for name, t in one.tensors.items()}
        return tensors, {
            "snapshots": [
                {"update": one.update, "state": one.state, "score": one.score, "healthy": one.healthy}
                for one in kept.values()
            ],
            "listed": [order[id(one)] for one in self.snapshots],
            "best": None if self.best is None else order[id(self.best)],
            **self.triggers.state(),
            **{name: getattr(self, name) for name in _COUNTERS},
        }

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        kept = [
            Snapshot(one["update"], without_prefix(tensors, f"{number}/"), one["state"], one["score"], one["healthy"])
            for number, one in enumerate(state["snapshots"])
        ]
        self.snapshots = [kept[number] for number in state["listed"]]
        self.best = None if state["best"] is None else kept[state["best"]]
        self.triggers.load(state)
        for name in _COUNTERS:
            setattr(self, name, state[name])


_COUNTERS = (
    *("rollback_count", "phase_rollbacks", "retries", "last_rollback_step"),
    *("last_alarm", "lowered", "share", "saved"),
)


def _score(snapshot: Snapshot) -> float:
    """Score to maximise; snapshots without one come last."""
    return -math.inf if snapshot.score is None else snapshot.score


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
        watched = guard.enabled and guard.hacking.enabled and config.objectives.reward == "preference"
        self.hacking = RewardHackingMonitor(guard.hacking) if watched else None
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
        return tensors, {
            "monitor": self.monitor.state(),
            "manager": manager,
            "block": {name: list(values) for name, values in self.block.items()},
            "score": self.score,
            "pending": list(self.pending),
            **({} if self.hacking is None else {"hacking": self.hacking.state()}),
        }

    def restore(self, tensors: Mapping[str, Tensor], state: Any) -> None:
        """Restore the state; none where the guard is off, or was."""
        if not self.enabled or state is None:
            return
        self.monitor.load(state["monitor"])
        self.manager.restore(tensors, state["manager"])
        self.block = {name: list(values) for name, values in state["block"].items()}
        self.score, self.pending = state["score"], list(state["pending"])
        if self.hacking is not None and "hacking" in state:
            self.hacking.load(state["hacking"])
