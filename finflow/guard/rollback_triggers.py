"""Triggers of a rollback: losses, rewards and the policy's divergence compared with thresholds at every check.

Two modes. `strict` compares with the thresholds as they are written, and a check beyond one is enough. `robust` allows
for what is usual in the training, by medians and deviations, and needs two checks in a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from finflow.config import RollbackConfig
from finflow.guard.signals import RobustWindow

STRICT = "strict"
LEAST_CHECKS = 5  # before losses and rewards are compared with their past
CHECKS_IN_A_ROW = 2  # of the robust mode
USUAL_SPREAD = 6.0  # deviations that are usual
LEAST_LOSS = 0.5  # rises are measured in multiples of at least this; the actor's in multiples of as many sigma_A
KL_RISE = 6.0  # times the farthest that is usual, at the default threshold: a learning policy moves unevenly
KL_WINDOWS = 5  # checks that the usual distance is known from, in multiples of a window
UNKNOWN_KL = 100.0  # times the threshold, while the usual distance is not known
REWARD_WINDOWS = 10  # rewards are mostly noise: their usual spread is known from more checks
DEFAULT_KL, DEFAULT_DROP = 0.1, 0.5  # thresholds at which the robust limits are the multiples above


class MeanWindow(RobustWindow):
    def add(self, value: float) -> None:
        if math.isfinite(value):
            self.values.append(value)
            self.count += 1
            self.centre, self.ready = fmean(self.values), len(self.values) >= self.least


class RollbackTriggers:
    """Losses, rewards and KL compared with their thresholds at every check.

    In the strict mode each threshold is compared as it is: ``kl > kl_threshold``; a loss over ``loss_spike`` times the
    mean of the last ``metric_window_size`` checks; a reward under ``reward_drop`` times that mean. Where a mean m is
    negative, rise and drop are of its magnitude: ``m + (loss_spike - 1) |m|`` and ``m - (1 - reward_drop) |m|``.
    In the robust mode the limits are multiples of what is usual in the training, which grow with the threshold.
    ``windows`` has the recent values of each signal, ``hits`` the checks in a row at which it was beyond its limit.
    """

    def __init__(self, config: RollbackConfig) -> None:
        self.config = config
        self.strict = config.mode == STRICT
        self._needed = 1 if self.strict else CHECKS_IN_A_ROW
        size = config.metric_window_size
        least = min(LEAST_CHECKS, size)
        if self.strict:
            self.windows: dict[str, RobustWindow] = {
                name: MeanWindow(size, least) for name in ("critic", "actor", "kl", "reward")
            }
        else:
            self.windows = {name: RobustWindow(size, least, renew=1) for name in ("critic", "actor")}
            self.windows["kl"] = RobustWindow(KL_WINDOWS * size, size, renew=1)
            self.windows["reward"] = RobustWindow(REWARD_WINDOWS * size, 3 * size, renew=1)
        self.hits: dict[str, int] = {}

    def check(self, figures: Mapping[str, float | None]) -> tuple[bool, str]:
        """Compare ``critic``, ``actor``, ``reward`` and ``kl`` with their limits; None is not compared."""
        reasons = [
            self._confirm("critic", self._risen("critic", figures["critic"])),
            self._confirm("actor", self._risen("actor", figures["actor"])),
            self._confirm("reward", self._dropped(figures["reward"])),
            self._confirm("kl", self._far(figures["kl"])),
        ]
        for name, value in figures.items():
            if value is not None:
                self.windows[name].add(value)
        text = "; ".join(reason for reason in reasons if reason)
        return bool(text), text

    @property
    def confirmed(self) -> list[str]:
        """Signals beyond their limits at as many checks in a row as the mode needs."""
        return [name for name, count in self.hits.items() if count >= self._needed]

    def clear(self) -> None:
        self.hits = {}
        for window in self.windows.values():
            window.clear()

    def state(self) -> dict[str, Any]:
        windows = {name: window.state() for name, window in self.windows.items()}
        return {"windows": windows, "suspects": dict(self.hits)}

    def load(self, state: Mapping[str, Any]) -> None:
        self.hits = dict(state["suspects"])
        for name, window in self.windows.items():
            window.load(state["windows"][name])

    def _confirm(self, name: str, reason: str | None) -> str:
        """Return the reason once it held at enough checks in a row; None is no check, empty is no reason."""
        if reason is None:
            return ""
        self.hits[name] = self.hits.get(name, 0) + 1 if reason else 0
        return reason if self.hits[name] >= self._needed else ""

    def _risen(self, name: str, loss: float | None) -> str | None:
        if loss is None:
            return None
        window = self.windows[name]
        usual = abs(window.centre)
        if not self.strict:
            usual = max(usual, USUAL_SPREAD * window.spread, LEAST_LOSS)
        limit = window.centre + (self.config.loss_spike - 1.0) * usual
        if not window.ready or loss <= limit:
            return ""
        return f"the {name}'s loss rose to {loss:.4g}, the limit is {limit:.4g}"

    def _dropped(self, reward: float | None) -> str | None:
        if reward is None:
            return None
        window, drop = self.windows["reward"], 1.0 - self.config.reward_drop
        allowed = drop * abs(window.centre)
        if not self.strict:
            allowed = max(allowed, USUAL_SPREAD * (drop / DEFAULT_DROP) * window.spread)
        if not window.ready or reward >= window.centre - allowed:
            return ""
        return f"the mean reward fell to {reward:.4g}, the limit is {window.centre - allowed:.4g}"

    def _far(self, kl: float | None) -> str | None:
        if kl is None:
            return None
        limit = self.config.kl_threshold if self.strict else self._robust_distance()
        if kl <= limit:
            return ""
        return f"the policy moved {kl:.3g} nats per free dimension from the last healthy one, the limit is {limit:.3g}"

    def _robust_distance(self) -> float:
        """Limit of the KL that allows for how far the policy usually moves in this training."""
        window, threshold = self.windows["kl"], self.config.kl_threshold
        if not window.ready:
            return UNKNOWN_KL * threshold
        return max(threshold, KL_RISE * (threshold / DEFAULT_KL) * max(window.values))
