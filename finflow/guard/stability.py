"""Is the learning healthy? Limits that mean the same on every market, held against a signal's own recent values.

A value beyond a limit is a warning; it is an alarm only after several in a row, and only where it is unusual for this
training as well. After a phase begins or is restored, signals settle: until then nothing is an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from finflow.config import Config, StabilityConfig
from finflow.guard.signals import ALARM, INFO, LEVELS, WARNING, Event, RobustWindow

CRITIC = frozenset({"q", "critic_loss", "critic_gradient", "critic_parameters", "target_critic_parameters"})
"""Signals of the critic alone: where nothing else is at fault, what the agent did meanwhile is worth keeping."""

NAMES = {"q_largest": "q", "q_loss": "critic_loss"}
WATCHED = ("q", "critic_loss", "actor_loss", "critic_gradient", "policy_gradient")
REWARDS = 500  # single rewards that an outlier is compared with
HEALTHY_SHARE = 10.0  # a collapse is sudden where the last healthy policy was this many times over the limit
GRADIENT_RISE = 30.0  # times its usual length: gradients are shortened, so that only a great rise says something
LEAST_TURNOVER = 0.4  # of the portfolio a day: below it no turnover explodes; healthy policies were seen at half of it
LEAST_SHARPES = 3
LEAST_LENGTH = 1.0  # of parameters: shorter ones may grow without harm
FROZEN = 1e-3  # of its healthy turnover: such a policy has no slope to learn by any more
LOOKS = 2  # in a row, of what is looked at now and then


class StabilityMonitor:
    """Watches one training.

    Parameters
    ----------
    config : StabilityConfig or Config, optional
    gamma : float
        The discount: values are larger the further they look ahead.

    Examples
    --------
    >>> monitor = StabilityMonitor()
    >>> [event.level for event in monitor.check_q_values(torch.tensor([3.0, 250.0]))]
    ['warning']
    """

    def __init__(self, config: StabilityConfig | Config | None = None, gamma: float = 0.99) -> None:
        own = config.guard.stability if isinstance(config, Config) else config
        gamma = config.bcell.gamma if isinstance(config, Config) else gamma
        self.config = own or StabilityConfig()
        self.q_limit = self.config.q_limit * 0.01 / (1.0 - gamma)
        self.phase = ""
        self.update = 0
        self.quiet_until = 0
        self.windows = {name: RobustWindow(self.config.window, self.config.warmup) for name in WATCHED}
        self.windows["rewards"] = RobustWindow(REWARDS, REWARDS // 2, renew=REWARDS // 5)
        self.hits: dict[str, int] = {}
        self.levels: dict[str, str] = {}
        self.sharpes: list[float] = []
        self.skipped = 0

    def begin_phase(self, phase: str, update: int) -> None:
        """Forget what was usual, and wait until the new phase has settled."""
        self.phase, self.update = phase, update
        for window in self.windows.values():
            window.clear()
        self.sharpes, self.levels = [], {}
        self.settle()

    def settle(self) -> None:
        """No alarms for a while: something was just changed on purpose. What was warned of is not said again."""
        self.hits, self.skipped = {}, 0
        self.levels = dict.fromkeys(self.levels, WARNING)
        self.quiet_until = self.update + self.config.quiet

    @property
    def quiet(self) -> bool:
        """Whether alarms are held back."""
        return self.update < self.quiet_until

    def observe(self, update: int, metrics: Mapping[str, float]) -> list[Event]:
        """Look at the figures of one update.

        Parameters
        ----------
        update : int
        metrics : mapping
            ``q_loss``, ``actor_loss``, ``q``, ``q_largest``, ``critic_gradient``, ``policy_gradient`` are compared
            with limits; all of them must be finite.
        """
        self.update = update
        broken = sorted(name for name, value in metrics.items() if not math.isfinite(value))
        if broken:
            return self.check_skip(", ".join(broken))
        self.skipped = 0
        events: list[Event] = []
        largest = metrics.get("q_largest", metrics.get("q"))
        if largest is not None:
            events += self._compare("q", abs(largest), self.q_limit)
        config = self.config
        for name, key, limit in (
            ("critic_loss", "q_loss", config.critic_loss_limit),
            ("actor_loss", "actor_loss", config.actor_loss_limit),
        ):
            if key in metrics:
                events += self._compare(name, metrics[key], limit)
        for name in ("critic_gradient", "policy_gradient"):
            if name in metrics:
                window = self.windows[name]
                limit = GRADIENT_RISE * max(window.centre, 1.0) if window.ready else math.inf
                events += self._compare(name, metrics[name], limit)
        return events

    def check_skip(self, what: str) -> list[Event]:
        """An update was not made, because something in it is no number; an alarm after several in a row."""
        self.skipped += 1
        if self.skipped == self.config.skip_limit:
            return [self._event(ALARM, "non_finite", f"{self.skipped} updates in a row were skipped: {what}")]
        if self.skipped == 1:
            return [
                self._event(WARNING, "non_finite", f"an update was skipped: {what} not finite or beyond all reason")
            ]
        return []

    def check_parameters(self, lengths: Mapping[str, float], reference: Mapping[str, float]) -> list[Event]:
        """Lengths of the networks' parameters, against those of the last healthy snapshot.

        A learning rate that is far too high, or a network that was overwritten, shows here first, whatever it leads to.
        NaN or infinity is an alarm at once: nothing that is learned from here is worth anything.
        """
        broken = sorted(name for name, length in lengths.items() if not math.isfinite(length))
        if broken:
            return [self._event(ALARM, "parameters", f"parameters are not finite: {', '.join(broken)}")]
        events: list[Event] = []
        for name, length in lengths.items():
            limit = self.config.growth_limit * max(reference.get(name, math.inf), LEAST_LENGTH)
            events += self._judge(f"{name}_parameters", length > limit, True, length, limit, hits=1)
        return events

    def check_q_values(self, values: Tensor | ArrayLike) -> list[Event]:
        """The largest magnitude among Q-values, in scaled rewards."""
        found = _array(values)
        if not np.isfinite(found).all():
            return [self._event(ALARM, "q", "a Q-value is not finite", math.nan, self.q_limit)]
        return self._compare("q", float(np.abs(found).max(initial=0.0)), self.q_limit)

    def check_entropy(
        self, concentration: float | None = None, policy: float | None = None, reference: float | None = None
    ) -> list[Event]:
        """Both entropies, in 0..1.

        Parameters
        ----------
        concentration : float, optional
            H(w) / ln K of the portfolios: 0 is all in one asset.
        policy : float, optional
            exp((H - H_max) / (K - 1)) of the policy: 0 always does the same.
        reference : float, optional
            The last healthy policy's concentration. It may be right to hold one asset: only a sudden collapse is an
            alarm.
        """
        limit, events = self.config.entropy_limit, []
        if concentration is not None:
            sudden = reference is not None and reference > HEALTHY_SHARE * limit
            events += self._judge("concentration", concentration < limit, sudden, concentration, limit, hits=LOOKS)
        if policy is not None:
            events += self._judge("policy_entropy", policy < limit, False, policy, limit)
        return events

    def check_rewards(self, rewards: Tensor | ArrayLike) -> NDArray[np.bool_]:
        """Which rewards are outliers among those seen lately, or not finite; they are remembered as seen."""
        found = _array(rewards)
        window = self.windows["rewards"]
        far = self.config.reward_outlier * window.deviation
        outliers = ~np.isfinite(found) | (np.abs(found - window.centre) > far if window.ready else False)
        for value in found[np.isfinite(found)]:
            window.add(float(value))
        return np.asarray(outliers, dtype=np.bool_)

    def learnable(self, rewards: Tensor | ArrayLike) -> NDArray[np.bool_]:
        """Which rewards may be learned from: finite, and of a size that a market can make."""
        found = _array(rewards)
        return np.asarray(np.isfinite(found) & (np.abs(found) <= self.config.reward_limit))

    def outliers_seen(self, outliers: NDArray[np.bool_], refused: NDArray[np.bool_]) -> list[Event]:
        """Say that rewards of the agent's own decisions were far out."""
        count = int(refused.sum())
        if count:
            return [self._event(WARNING, "rewards", f"{count} transitions were not remembered: rewards beyond reason")]
        return self._judge("rewards", bool(outliers.any()), False, float(outliers.sum()), None)

    def check_policy(self, figures: Mapping[str, float], reference: Mapping[str, float]) -> list[Event]:
        """Concentration, entropy, gate and turnover of the policy on fixed states.

        Parameters
        ----------
        figures, reference : mapping
            Of ``signals.measure``: now, and at the last healthy snapshot.
        """
        config = self.config
        if not all(math.isfinite(value) for value in figures.values()):
            return [self._event(ALARM, "policy", "the policy's decisions are not finite")]
        events = self.check_entropy(
            figures["concentration"], figures["policy_entropy"], reference.get("concentration", 0.0)
        )
        gate, before = figures["gate"], reference.get("gate", 1.0)
        sudden = 1.0 - before > HEALTHY_SHARE * (1.0 - config.gate_limit)
        events += self._judge("gate", gate > config.gate_limit, sudden, gate, config.gate_limit, hits=LOOKS)
        usual, turnover = reference.get("turnover", math.nan), figures["turnover"]
        limit = max(config.turnover_ratio * usual, LEAST_TURNOVER)
        events += self._judge("turnover", turnover > limit, True, turnover, limit, hits=LOOKS)
        events += self._judge("frozen", turnover < FROZEN * usual, True, turnover, FROZEN * usual, hits=LOOKS)
        return events

    def check_sharpe(self, sharpe: float) -> list[Event]:
        """The validation Sharpe ratio; an alarm where it fell by as much as the limit below what it was."""
        if not math.isfinite(sharpe):
            return []
        usual = median(self.sharpes) if len(self.sharpes) >= LEAST_SHARPES else -math.inf
        fallen = sharpe < usual - 2.0 * abs(self.config.sharpe_limit)
        low = sharpe < self.config.sharpe_limit
        self.sharpes = [*self.sharpes, sharpe][-self.config.window :]
        return self._judge("sharpe", low, fallen, sharpe, self.config.sharpe_limit, hits=2)

    def _compare(self, name: str, value: float, limit: float) -> list[Event]:
        """Hold a value against its limit and against its own past."""
        window = self.windows[name]
        unusual = window.deviations(value) > self.config.deviations
        events = self._judge(name, value > limit, unusual and window.ready, value, limit)
        window.add(value)
        return events

    def _judge(
        self, name: str, beyond: bool, unusual: bool, value: float, limit: float | None, hits: int | None = None
    ) -> list[Event]:
        """Count what is beyond a limit; say it once where it gets worse, and forget it where it is over."""
        needed = self.config.hits if hits is None else hits
        if not beyond:
            self.hits.pop(name, None)
            self.levels.pop(name, None)
            return []
        count = self.hits[name] = self.hits.get(name, 0) + 1
        level = WARNING if count < needed or not unusual else ALARM
        if level == ALARM and self.quiet:
            level = WARNING
        if LEVELS.index(level) <= LEVELS.index(self.levels.get(name, INFO)):
            return []
        self.levels[name] = level
        return [self._event(level, name, _words(name, value, limit), value, limit)]

    def _event(
        self, level: str, signal: str, message: str, value: float | None = None, limit: float | None = None
    ) -> Event:
        return Event(self.update, self.phase, level, signal, message, value, limit)

    def state(self) -> dict[str, Any]:
        """All of it as JSON."""
        return {
            "phase": self.phase,
            "update": self.update,
            "quiet_until": self.quiet_until,
            "windows": {name: window.state() for name, window in self.windows.items()},
            "hits": dict(self.hits),
            "levels": dict(self.levels),
            "sharpes": list(self.sharpes),
            "skipped": self.skipped,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """From JSON."""
        self.phase, self.update = str(state["phase"]), int(state["update"])
        self.quiet_until, self.skipped = int(state["quiet_until"]), int(state["skipped"])
        self.hits, self.levels = dict(state["hits"]), dict(state["levels"])
        self.sharpes = list(state["sharpes"])
        for name, window in self.windows.items():
            window.load(state["windows"][name])


def _words(name: str, value: float, limit: float | None) -> str:
    """A sentence on a value beyond its limit."""
    held = "" if limit is None else f", the limit is {limit:.4g}"
    return f"{name.replace('_', ' ')} is {value:.4g}{held}"


def _array(values: Tensor | ArrayLike) -> NDArray[np.float64]:
    """Numbers from wherever they are."""
    if isinstance(values, Tensor):
        values = values.detach().to(device="cpu", dtype=torch.float64).numpy()
    return np.atleast_1d(np.asarray(values, dtype=np.float64))
