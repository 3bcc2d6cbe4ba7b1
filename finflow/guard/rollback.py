"""Rollback to a healthy state: triggers, snapshots in memory, and the responses to alarms in their order.

Skip the step, lower the learning rate, go back to the last healthy snapshot, to older ones, stop. A snapshot is healthy
after a probation without an alarm; the first of a phase is healthy at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from torch import Tensor

from finflow.config import Config, RollbackConfig
from finflow.guard.checkpoint_folder import capture, restore
from finflow.guard.signals import RobustWindow
from finflow.tensor_file import without_prefix

LEAST_CHECKS = 5  # before losses and rewards are compared with their past
USUAL_SPREAD = 6.0  # deviations that are usual
LEAST_LOSS = 0.5  # rises are measured in multiples of at least this; the actor's in multiples of as many sigma_A
KL_RISE = 6.0  # times the farthest that is usual, at the default threshold: a learning policy moves unevenly
KL_WINDOWS = 5  # checks that the usual distance is known from, in multiples of a window
UNKNOWN_KL = 100.0  # times the threshold, while the usual distance is not known
REWARD_WINDOWS = 10  # rewards are mostly noise: their usual spread is known from more checks
DEFAULT_KL, DEFAULT_DROP = 0.1, 0.5  # thresholds at which the robust limits are the multiples above
SENTENCES = {
    "critic": "the critic's loss rose to {:.4g}, the limit is {:.4g}",
    "actor": "the actor's loss rose to {:.4g}, the limit is {:.4g}",
    "reward": "the mean reward fell to {:.4g}, the limit is {:.4g}",
    "kl": "the policy moved {:.3g} nats per free dimension from the last healthy one, the limit is {:.3g}",
}

LOWERED = 0.5  # share of the learning rates that a rollback leaves
MOST_ROLLBACKS = 10  # of a phase, before a stop
LOWER, ROLLBACK, STOP = "lower", "rollback", "stop"


class RollbackTriggers:
    """Losses, rewards and KL compared with their thresholds at every check.

    The limits of the modes ``strict`` and ``robust``: docs/reference/guard.md, Thresholds of a rollback. ``windows``
    has the recent values of each signal, ``suspects`` the checks in a row beyond its limit.
    """

    SAVED = ("windows", "suspects")

    def __init__(self, config: RollbackConfig) -> None:
        self.config = config
        self.strict = config.mode == "strict"
        self._needed = 1 if self.strict else 2
        size, robust = config.metric_window_size, not self.strict
        longer = {"kl": (KL_WINDOWS * size, size), "reward": (REWARD_WINDOWS * size, 3 * size)} if robust else {}
        self.windows = {
            name: RobustWindow(*longer.get(name, (size, min(LEAST_CHECKS, size))), renew=1, robust=robust)
            for name in SENTENCES
        }
        self.suspects: dict[str, int] = {}

    def check(self, figures: Mapping[str, float | None]) -> tuple[bool, str]:
        """Compare ``critic``, ``actor``, ``reward`` and ``kl`` with their limits; None is not compared."""
        reasons = []
        for name, value in figures.items():
            if value is None:
                continue
            limit = self._limit(name)
            within = value >= limit if name == "reward" else value <= limit
            self.suspects[name] = 0 if within else self.suspects.get(name, 0) + 1
            if self.suspects[name] >= self._needed:
                reasons.append(SENTENCES[name].format(value, limit))
            if within or not self.strict:  # a spike would hide the next one in a plain mean
                self.windows[name].add(value)
        return bool(reasons), "; ".join(reasons)

    @property
    def confirmed(self) -> list[str]:
        """Signals beyond their limits at as many checks in a row as the mode needs."""
        return [name for name, count in self.suspects.items() if count >= self._needed]

    def clear(self) -> None:
        self.suspects = {}
        for window in self.windows.values():
            window.clear()

    def _limit(self, name: str) -> float:
        """Largest healthy value of a signal, and of the reward the smallest."""
        window, config, threshold = self.windows[name], self.config, self.config.kl_threshold
        if name == "kl":
            usual = KL_RISE * (threshold / DEFAULT_KL) * max(window.values) if window.ready else UNKNOWN_KL * threshold
            return threshold if self.strict else max(threshold, usual)
        if not window.ready:
            return -math.inf if name == "reward" else math.inf
        usual = abs(window.centre)
        if name == "reward":
            drop = 1.0 - config.reward_drop
            return window.centre - max(drop * usual, USUAL_SPREAD * (drop / DEFAULT_DROP) * window.spread)
        if not self.strict:
            usual = max(usual, USUAL_SPREAD * window.spread, LEAST_LOSS)
        return window.centre + (config.loss_spike - 1.0) * usual


@dataclass
class Snapshot:
    """A state to go back to, of ``capture``, and a score: a figure of which more is better."""

    update: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    score: float | None = None
    healthy: bool = False

    @property
    def rank(self) -> float:
        """Score to maximise; snapshots without one come last."""
        return -math.inf if self.score is None else self.score


class RollbackManager:
    """Snapshots of a training, and the responses to its alarms.

    Examples
    --------
    >>> RollbackManager.preset("conservative", mode="strict").should_rollback(kl=0.06)
    (True, 'the policy moved 0.06 nats per free dimension from the last healthy one, the limit is 0.05')
    """

    SAVED = (
        *("rollback_count", "phase_rollbacks", "retries", "last_rollback_step"),
        *("last_alarm", "lowered", "share", "saved"),
    )

    def __init__(self, config: RollbackConfig | Config | None = None) -> None:
        if isinstance(config, Config):
            config = config.guard.rollback
        self.config = config or RollbackConfig()
        self.triggers = RollbackTriggers(self.config)
        self.rollback_count = self.saved = 0
        self.last_rollback_step: int | None = None
        self.begin_phase(0)

    def begin_phase(self, update: int) -> None:
        """Forget snapshots and usual values: they belong to another phase."""
        self.snapshots: list[Snapshot] = []
        self.best: Snapshot | None = None
        self.triggers.clear()
        self.phase_rollbacks = self.retries = 0
        self.share, self.lowered, self.last_alarm = 1.0, False, update

    @classmethod
    def preset(cls, name: str, mode: Literal["strict", "robust"] = "robust") -> Self:
        """Make a manager with the thresholds of a preset: ``conservative``, ``standard`` or ``aggressive``."""
        return cls(RollbackConfig.model_validate({"preset": name, "mode": mode}))

    def settle(self) -> None:
        """Forget how fast the policy moves: from here on it does so in another way."""
        self.triggers.windows["kl"].clear()
        self.triggers.windows["actor"].clear()

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], score: float | None = None) -> None:
        """Keep a snapshot, on probation; the first of a phase is healthy at once."""
        self.snapshots.append(Snapshot(step, tensors, state, score, healthy=not self.snapshots))
        self.saved += 1
        self._prune()

    def advance(self, step: int, alarmed: bool) -> bool:
        """End probations, or discard snapshots on probation after an alarm.

        Returns True where learning rates were raised again.
        """
        if alarmed:
            self.last_alarm = step
            self.snapshots = self._healthy
            return False
        self.confirm(step - self.config.probation)
        if step - self.last_alarm < self.config.recovery:
            return False
        self.last_alarm, self.retries, self.lowered = step, 0, False
        lowered, self.share = self.share < 1.0, min(1.0, self.share / LOWERED)
        return lowered

    def confirm(self, upto: float = math.inf) -> None:
        """Take snapshots of updates up to one for healthy."""
        for one in self.snapshots:
            if not one.healthy and one.update <= upto:
                one.healthy = True
                self.prefer(one)
        self._prune()

    def _prune(self) -> None:
        """Drop the oldest snapshots, but never the newest one, nor the only healthy one."""
        while len(self.snapshots) > self.config.max_checkpoints:
            place = 0 if any(one.healthy for one in self.snapshots[1:]) else 1
            if place == len(self.snapshots) - 1:
                break
            self.snapshots.pop(place)

    def prefer(self, one: Snapshot) -> None:
        """Take a snapshot for the best where its score is the highest so far."""
        if self.best is None or one.rank > self.best.rank:
            self.best = one

    def forget(self, gone: Sequence[Snapshot]) -> None:
        """Discard snapshots; the best is then the best of those that stay."""
        self.snapshots = [one for one in self.snapshots if not any(one is other for other in gone)]
        if any(self.best is one for one in gone):
            scored = [one for one in self._healthy if one.score is not None]
            self.best = max(scored, key=lambda one: one.rank, default=None)

    @property
    def _healthy(self) -> list[Snapshot]:
        return [one for one in self.snapshots if one.healthy]

    @property
    def last_healthy(self) -> Snapshot | None:
        """The newest snapshot that survived its probation."""
        return self._healthy[-1] if self._healthy else None

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
        return ROLLBACK if self._healthy else STOP

    def take(self, step: int, older: bool | None = None) -> Snapshot:
        """Return the snapshot to go back to: the last healthy one, or an ``older`` one, by default at each retry."""
        healthy = self._healthy
        if (self.retries > 0 if older is None else older) and len(healthy) > 1:
            healthy.pop()  # it led to this alarm before
        self.snapshots = healthy
        self.rollback_count += 1
        self.phase_rollbacks += 1
        self.retries += 1
        self.last_rollback_step = self.last_alarm = step
        self.share *= LOWERED
        self.triggers.suspects = {}
        return healthy[-1]

    @property
    def _kept(self) -> list[Snapshot]:
        """Each snapshot once: those listed, then the best where it is none of them."""
        listed = any(one is self.best for one in self.snapshots)
        return self.snapshots if self.best is None or listed else [*self.snapshots, self.best]

    def get_statistics(self) -> dict[str, float | int | None]:
        """Number of snapshots, the best among them, and the rollbacks so far."""
        scored = [one for one in (self.best, *self._healthy) if one is not None and one.score is not None]
        best = max(scored, key=lambda one: one.rank, default=None)
        return {
            "num_checkpoints": len(self._kept),
            "best_checkpoint_step": None if best is None else best.update,
            "best_reward": None if best is None else best.score,
            "rollback_count": self.rollback_count,
            "last_rollback_step": self.last_rollback_step,
        }

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Capture the state; snapshots are not copied, since nothing writes in them."""
        kept = self._kept
        tensors = {f"{place}/{name}": t for place, one in enumerate(kept) for name, t in one.tensors.items()}
        facts = ("update", "state", "score", "healthy")
        return tensors, {
            "snapshots": [{name: getattr(one, name) for name in facts} for one in kept],
            "listed": list(range(len(self.snapshots))),
            "best": next((place for place, one in enumerate(kept) if one is self.best), None),
            **capture(self.triggers)[1],
            **capture(self)[1],
        }

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        kept = [
            Snapshot(tensors=without_prefix(tensors, f"{place}/"), **facts)
            for place, facts in enumerate(state["snapshots"])
        ]
        self.snapshots = [kept[place] for place in state["listed"]]
        self.best = None if state["best"] is None else kept[state["best"]]
        for owner in (self.triggers, self):
            restore(owner, {}, {name: state[name] for name in owner.SAVED})
