"""Going back to a healthy state: snapshots in memory, and a ladder that ends.

Skip the step, lower the learning rate, go back to the last healthy snapshot, to older ones, stop. A snapshot is
healthy after a probation without an alarm; the one that a phase begins with is healthy at once, being all there is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from finflow.config import Config, RollbackConfig
from finflow.guard.signals import RobustWindow

LOWER, ROLLBACK, STOP = "lower", "rollback", "stop"
LEAST_LOOKS = 5  # before losses and rewards are compared with their own past
USUAL_SPREAD = 6.0  # deviations that are usual
LEAST_LOSS = 0.5  # a loss is never said to have risen that is not over a multiple of it
LOOKS_IN_A_ROW = 2
KL_RISE = 6.0  # times the farthest it usually is: a policy that learns does move, and by leaps
KL_WINDOWS = 5  # looks that its usual is known from, in multiples of a window
UNKNOWN_KL = 100.0  # times the threshold, while it is not known how fast this training moves the policy
REWARD_WINDOWS = 10  # rewards are noise for the most part: their usual spread is known from more looks


@dataclass
class Snapshot:
    """A state to go back to.

    Attributes
    ----------
    update : int
        Gradient updates over both phases when it was taken.
    tensors, state
        Of ``guard.capture``.
    score : float or None
        Mean reward, or whatever tells the best: more is better.
    healthy : bool
    """

    update: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    score: float | None = None
    healthy: bool = False


class RollbackManager:
    """Keeps snapshots, says when to go back, and where to.

    Parameters
    ----------
    config : RollbackConfig or Config, optional

    Examples
    --------
    >>> manager = RollbackManager.preset("conservative")
    >>> manager.config.save_interval
    50
    >>> manager.should_rollback(kl=8.0)
    (False, '')
    >>> manager.should_rollback(kl=8.0)
    (True, 'the policy moved 8 nats per free dimension from the last healthy one, the limit is 5')
    """

    def __init__(self, config: RollbackConfig | Config | None = None) -> None:
        if isinstance(config, Config):
            config = config.guard.rollback
        self.config = config or RollbackConfig()
        self.snapshots: list[Snapshot] = []
        self.best: Snapshot | None = None
        size = self.config.metric_window_size
        self.windows = {name: RobustWindow(size, min(LEAST_LOOKS, size), renew=1) for name in ("critic", "actor")}
        self.windows["kl"] = RobustWindow(KL_WINDOWS * size, size, renew=1)
        self.windows["reward"] = RobustWindow(REWARD_WINDOWS * size, 3 * size, renew=1)
        self.suspects: dict[str, int] = {}
        self.rollback_count = 0
        self.phase_rollbacks = 0
        self.retries = 0
        self.last_rollback_step: int | None = None
        self.last_alarm = 0
        self.lowered = False
        self.share = 1.0
        self.saved = 0

    @classmethod
    def preset(cls, name: str) -> Self:
        """One with the values of a preset, ``default``, ``conservative`` or ``aggressive``."""
        return cls(RollbackConfig.model_validate({"preset": name}))

    def begin_phase(self, update: int) -> None:
        """Another phase learns other things: what was saved and what was usual is of no use to it."""
        self.snapshots, self.best, self.suspects = [], None, {}
        for window in self.windows.values():
            window.clear()
        self.phase_rollbacks = self.retries = 0
        self.share, self.lowered, self.last_alarm = 1.0, False, update

    def settle(self) -> None:
        """The policy begins to move, or does so in another way: how fast is to be seen."""
        self.windows["kl"].clear()
        self.windows["actor"].clear()

    def due(self, phase_update: int) -> bool:
        """Whether a snapshot is to be taken after so many updates of a phase."""
        return phase_update % self.config.save_interval == 0

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], score: float | None = None) -> None:
        """Keep a snapshot, on probation; the first of a phase is healthy at once."""
        snapshot = Snapshot(step, tensors, state, score, healthy=not self.snapshots)
        self.snapshots.append(snapshot)
        self.saved += 1
        while len(self.snapshots) > self.config.max_checkpoints:
            self.snapshots.pop(0 if any(one.healthy for one in self.snapshots[1:]) else 1)

    def advance(self, step: int, alarmed: bool) -> bool:
        """Pass judgement on the snapshots after an update.

        Returns
        -------
        bool
            Whether learning rates grew back a step.
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
            lowered, self.share = self.share < 1.0, min(1.0, self.share / self.config.lr_factor)
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
        """Compare a look at the training with the last looks.

        Parameters
        ----------
        loss, actor_loss : float, optional
            Of the critic and of the policy; either may be negative.
        reward : float, optional
            Mean reward of the agent's decisions since the last look.
        kl : float, optional
            From the last healthy policy, in nats per free dimension. Held against the threshold, or against six times
            the farthest that is usual in this training where that is more.

        Returns
        -------
        should : bool
        reason : str
            Empty where there is none. Each has to be seen twice in a row.
        """
        reasons = [
            self._suspect("critic", self._risen("critic", loss)),
            self._suspect("actor", self._risen("actor", actor_loss)),
            self._suspect("reward", self._dropped(reward)),
            self._suspect("kl", self._far(kl)),
        ]
        for name, value in (("critic", loss), ("actor", actor_loss), ("reward", reward), ("kl", kl)):
            if value is not None:
                self.windows[name].add(value)
        said = "; ".join(reason for reason in reasons if reason)
        return bool(said), said

    def _suspect(self, name: str, reason: str | None) -> str:
        """The reason, once it was there several looks in a row; None is no look, empty is none."""
        if reason is None:
            return ""
        self.suspects[name] = self.suspects.get(name, 0) + 1 if reason else 0
        return reason if self.suspects[name] >= LOOKS_IN_A_ROW else ""

    def _risen(self, name: str, loss: float | None) -> str | None:
        if loss is None:
            return None
        window = self.windows[name]
        usual = max(abs(window.centre), USUAL_SPREAD * window.spread, LEAST_LOSS)
        limit = window.centre + (self.config.loss_spike - 1.0) * usual
        if not window.ready or loss <= limit:
            return ""
        return f"the {name}'s loss rose to {loss:.4g}, the limit is {limit:.4g}"

    def _dropped(self, reward: float | None) -> str | None:
        if reward is None:
            return None
        window = self.windows["reward"]
        allowed = max((1.0 - self.config.reward_drop) * abs(window.centre), USUAL_SPREAD * window.spread)
        if not window.ready or reward >= window.centre - allowed:
            return ""
        return f"the mean reward fell to {reward:.4g}, the limit is {window.centre - allowed:.4g}"

    def _far(self, kl: float | None) -> str | None:
        if kl is None:
            return None
        window = self.windows["kl"]
        usual = KL_RISE * max(window.values) if window.ready else UNKNOWN_KL * self.config.kl_threshold
        limit = max(self.config.kl_threshold, usual)
        if kl <= limit:
            return ""
        return f"the policy moved {kl:.3g} nats per free dimension from the last healthy one, the limit is {limit:.3g}"

    def respond(self, step: int, gently: bool) -> str:
        """The next rung of the ladder after an alarm.

        Parameters
        ----------
        step : int
        gently : bool
            Whether lower learning rates may still mend it.

        Returns
        -------
        str
            ``lower``, ``rollback`` or ``stop``.
        """
        if gently and not self.lowered:
            self.lowered = True
            self.share *= self.config.lr_factor
            return LOWER
        config = self.config
        if self.retries >= config.max_retries or self.phase_rollbacks >= config.max_rollbacks:
            return STOP
        return ROLLBACK if self.last_healthy is not None else STOP

    def take(self, step: int) -> Snapshot:
        """The snapshot to go back to: the last healthy one, and an older one at each retry.

        Raises
        ------
        LookupError
            If there is none.
        """
        healthy = [one for one in self.snapshots if one.healthy]
        if not healthy:
            raise LookupError("there is no healthy snapshot")
        if self.retries and len(healthy) > 1:
            healthy.pop()  # it led here before
        self.snapshots = healthy
        self.rollback_count += 1
        self.phase_rollbacks += 1
        self.retries += 1
        self.last_rollback_step = self.last_alarm = step
        self.share *= self.config.lr_factor
        self.suspects = {}
        return healthy[-1]

    def get_statistics(self) -> dict[str, float | int | None]:
        """Snapshots kept, the best among them, and what was gone back to so far."""
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
        """All of it; snapshots are not copied, since nothing writes in them."""
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
            "windows": {name: window.state() for name, window in self.windows.items()},
            "suspects": dict(self.suspects),
            **{name: getattr(self, name) for name in _COUNTERS},
        }

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from what ``capture`` returned."""
        kept = [
            Snapshot(one["update"], _below(tensors, f"{number}/"), one["state"], one["score"], one["healthy"])
            for number, one in enumerate(state["snapshots"])
        ]
        self.snapshots = [kept[number] for number in state["listed"]]
        self.best = None if state["best"] is None else kept[state["best"]]
        for name, window in self.windows.items():
            window.load(state["windows"][name])
        self.suspects = dict(state["suspects"])
        for name in _COUNTERS:
            setattr(self, name, state[name])


_COUNTERS = (
    *("rollback_count", "phase_rollbacks", "retries", "last_rollback_step"),
    *("last_alarm", "lowered", "share", "saved"),
)


def _score(snapshot: Snapshot) -> float:
    """What the best has most of."""
    return -math.inf if snapshot.score is None else snapshot.score


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
