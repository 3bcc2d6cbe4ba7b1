"""Stability monitor: signals of a training compared with fixed limits and with their own recent values.

A value beyond a limit is a warning. It is an alarm only after several in a row, and only where it is unusual for this
training as well. For a number of updates after a phase begins or is restored nothing is an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from finflow.arrays import FloatArray
from finflow.config import Config, StabilityConfig
from finflow.guard.checkpoint_folder import capture, restore
from finflow.guard.rollback import RollbackManager
from finflow.guard.signals import ALARM, INFO, LEVELS, WARNING, Event, RewardHackingMonitor, RobustWindow

CRITIC = frozenset({"q", "critic_loss", "critic_gradient", "critic_parameters", "target_critic_parameters"})
"""Signals of the critic alone; after a rollback for these, the agent's transitions are kept."""

Q_LIMIT = 100.0  # largest healthy magnitude of Q, in scaled rewards, at gamma 0.99
ENTROPY_LIMIT = 0.01  # smallest healthy H(w) / ln K and exp((H - H_max) / (K - 1))
ACTOR_LOSS_LIMIT = 50.0
SHARPE_LIMIT = -0.5  # of validations, a year
WINDOW = 100  # updates that a signal is compared with
WATCHED = ("q", "critic_loss", "actor_loss", "critic_gradient", "policy_gradient")
REWARDS, LEAST_REWARDS = 500, 30  # single rewards that outliers are compared with, and from how many on
REWARD_OUTLIER = 100.0  # magnitude of a scaled reward that is an outlier before that
HEALTHY_SHARE = 10.0  # a collapse is sudden where the last healthy policy was this many times over the limit
GRADIENT_RISE = 30.0  # times the usual norm: gradients are clipped, so a smaller rise is harmless
TURNOVER_RISE = 5.0  # times that of the last healthy policy
LEAST_TURNOVER = 0.4  # of the portfolio a day: no alarm below it; healthy policies reached half of it
LEAST_SHARPES = 3
PARAMETER_GROWTH = 3.0  # times the norms at the last healthy snapshot
LEAST_NORM = 1.0  # of parameters: smaller ones may grow without harm
GATE_LIMIT = 0.99  # mean weight of one expert, above which the gate has collapsed
SKIP_LIMIT = 5  # updates skipped in a row before there is an alarm
FROZEN = 1e-3  # of its healthy turnover: such a policy has no gradient left
PROBE_HITS = 2  # beyond the limit for an alarm, of signals measured on fixed states


RENAMED = {
    "policy_loss": "actor_loss",
    "value_loss": "critic_loss",
    "q_loss": "critic_loss",
    "largest_value": "q",
    "q_largest": "q",
    "gradient_norm": "policy_gradient",
}
"""Figures of some algorithms, by the signals that they are of; the largest Q comes before the mean."""
SMALLEST_WEIGHT = 1e-30  # mean weight of a likelihood that its loss is divided by


class StabilityMonitor:
    """Monitor of one training.

    ``windows`` has the recent values of each signal, ``hits`` its updates in a row beyond the limit, and ``levels`` the
    level announced last.

    Parameters
    ----------
    gamma : float
        The discount: values are larger the further they reach ahead.

    Examples
    --------
    >>> monitor = StabilityMonitor()
    >>> [event.level for event in monitor.check_q_values(torch.tensor([3.0, 250.0]))]
    ['warning']
    """

    SAVED = ("phase", "update", "quiet_until", "skipped", "windows", "hits", "levels", "sharpes")

    def __init__(self, config: StabilityConfig | Config | None = None, gamma: float = 0.99) -> None:
        if isinstance(config, Config):
            gamma, config = config.bcell.gamma, config.guard.stability
        self.config = config or StabilityConfig()
        self.q_limit = Q_LIMIT * 0.01 / (1.0 - gamma)
        self.phase = ""
        self.update = self.quiet_until = self.skipped = 0
        self.windows = {name: RobustWindow(WINDOW, self.config.warmup) for name in WATCHED}
        self.windows["rewards"] = RobustWindow(REWARDS, LEAST_REWARDS, renew=REWARDS // 5)
        self.hits: dict[str, int] = {}
        self.levels: dict[str, str] = {}
        self.sharpes: list[float] = []

    def begin_phase(self, phase: str, update: int) -> None:
        """Forget usual values, and hold alarms back until the new phase has settled."""
        self.phase, self.update = phase, update
        self.levels, self.sharpes = {}, []
        for window in self.windows.values():
            window.clear()
        self.settle()

    def settle(self) -> None:
        """Hold alarms back for a while after an intended change; warnings are not repeated."""
        self.skipped = 0
        self.hits, self.levels = {}, dict.fromkeys(self.levels, WARNING)
        self.quiet_until = self.update + self.config.quiet

    @property
    def quiet(self) -> bool:
        return self.update < self.quiet_until

    def observe(self, update: int, metrics: Mapping[str, float]) -> list[Event]:
        """Check the figures of one update: those in ``WATCHED`` have limits, and all of them must be finite."""
        self.update = update
        broken = sorted({RENAMED.get(name, name) for name, value in metrics.items() if not math.isfinite(value)})
        if broken:
            return self.check_skip(", ".join(broken))
        self.skipped = 0
        figures = dict(metrics) | {RENAMED[name]: value for name, value in metrics.items() if name in RENAMED}
        figures |= {"q": abs(figures["q"])} if "q" in figures else {}
        known = ((name, figures[name]) for name in WATCHED if name in figures)
        return [event for name, value in known for event in self._compare(name, value, self._limit(name))]

    def check_skip(self, what: str) -> list[Event]:
        """Count an update that was skipped because of non-finite numbers; an alarm after several in a row."""
        self.skipped += 1
        if self.skipped == SKIP_LIMIT:
            return [self._event(ALARM, "non_finite", f"{self.skipped} updates in a row were skipped: {what}")]
        if self.skipped == 1:
            return [self._event(WARNING, "non_finite", f"an update was skipped: {what} not finite or impossibly large")]
        return []

    def check_parameters(self, norms: Mapping[str, float], reference: Mapping[str, float]) -> list[Event]:
        """Compare norms of the networks' parameters with those of the last healthy snapshot.

        A far too high learning rate or an overwritten network shows here first. NaN or infinity is an alarm at once.
        """
        broken = sorted(name for name, norm in norms.items() if not math.isfinite(norm))
        if broken:
            return [self._event(ALARM, "parameters", f"parameters are not finite: {', '.join(broken)}")]
        events: list[Event] = []
        for name, norm in norms.items():
            limit = PARAMETER_GROWTH * max(reference.get(name, math.inf), LEAST_NORM)
            events += self._judge(f"{name}_parameters", norm > limit, True, norm, limit, hits=1)
        return events

    def check_q_values(self, values: Tensor | ArrayLike) -> list[Event]:
        """Check the largest magnitude among Q-values, in scaled rewards."""
        numbers = _array(values)
        if not np.isfinite(numbers).all():
            return [self._event(ALARM, "q", "a Q-value is not finite", math.nan, self.q_limit)]
        return self._compare("q", float(np.abs(numbers).max(initial=0.0)), self.q_limit)

    def check_entropy(
        self, concentration: float | None = None, policy: float | None = None, reference: float | None = None
    ) -> list[Event]:
        """Check both entropies, in 0..1: H(w) / ln K of the portfolios, and exp((H - H_max) / (K - 1)) of the policy.

        ``reference`` is the concentration of the last healthy policy: only a sudden collapse is an alarm, since one
        asset may be right.
        """
        limit, events = ENTROPY_LIMIT, []
        if not all(math.isfinite(value) for value in (concentration, policy) if value is not None):
            return [self._event(ALARM, "policy_entropy", "an entropy is not finite")]
        if concentration is not None:
            sudden = reference is not None and reference > HEALTHY_SHARE * limit
            events += self._judge("concentration", concentration < limit, sudden, concentration, limit, hits=PROBE_HITS)
        if policy is not None:
            events += self._judge("policy_entropy", policy < limit, False, policy, limit)
        return events

    def check_rewards(self, rewards: Tensor | ArrayLike, refused: int = 0) -> list[Event]:
        """Check scaled rewards of decisions for outliers among recent ones, and add them to the recent ones.

        ``refused``: transitions that are not learned from, since their rewards are impossibly large.
        """
        numbers, window, centre = _array(rewards), self.windows["rewards"], self.windows["rewards"].centre
        far = self.config.reward_outlier * window.deviation if window.ready else REWARD_OUTLIER
        away = np.where(np.isfinite(numbers), np.abs(numbers - centre), np.inf)
        worst = float(numbers[away.argmax()]) if away.size else 0.0
        for value in numbers[np.isfinite(numbers)]:
            window.add(float(value))
        if refused:
            return [self._event(WARNING, "rewards", f"{refused} transitions were not stored: impossibly large rewards")]
        limit = centre + math.copysign(far, worst - centre)
        return self._judge("rewards", bool((away > far).any()), False, worst, limit)

    def check_policy(self, figures: Mapping[str, float], reference: Mapping[str, float]) -> list[Event]:
        """Check figures of ``signals.policy_figures`` on fixed states: now, and at the last healthy snapshot."""
        if not all(math.isfinite(value) for value in figures.values()):
            return [self._event(ALARM, "policy", "the policy's decisions are not finite")]
        events = self.check_entropy(
            figures["concentration"], figures["policy_entropy"], reference.get("concentration", 0.0)
        )
        gate, before = figures["gate"], reference.get("gate", 1.0)
        sudden = 1.0 - before > HEALTHY_SHARE * (1.0 - GATE_LIMIT)
        usual, turnover = reference.get("turnover", math.nan), figures["turnover"]
        limit, least = max(TURNOVER_RISE * usual, LEAST_TURNOVER), FROZEN * usual
        looks = (
            ("gate", gate > GATE_LIMIT, sudden, gate, GATE_LIMIT),
            ("turnover", turnover > limit, True, turnover, limit),
            ("frozen", turnover < least, True, turnover, least),
        )
        return events + [event for look in looks for event in self._judge(*look, hits=PROBE_HITS)]

    def check_sharpe(self, sharpe: float) -> list[Event]:
        """Check the validation Sharpe ratio; an alarm where it fell far below its median too."""
        if not math.isfinite(sharpe):
            return []
        usual = median(self.sharpes) if len(self.sharpes) >= LEAST_SHARPES else -math.inf
        fallen = sharpe < usual - 2.0 * abs(SHARPE_LIMIT)
        low = sharpe < SHARPE_LIMIT
        self.sharpes = [*self.sharpes, sharpe][-WINDOW:]
        return self._judge("sharpe", low, fallen, sharpe, SHARPE_LIMIT, hits=2)

    def _limit(self, name: str) -> float:
        """Limit of a signal; that of gradients is relative to their usual norm."""
        if name.endswith("_gradient"):
            window = self.windows[name]
            return GRADIENT_RISE * max(window.centre, 1.0) if window.ready else math.inf
        limits = {"critic_loss": self.config.critic_loss_limit, "actor_loss": ACTOR_LOSS_LIMIT}
        return limits.get(name, self.q_limit)

    def _compare(self, name: str, value: float, limit: float) -> list[Event]:
        """Judge a signal that is unusual where it is far over its recent values, and add it to them."""
        window = self.windows[name]
        unusual = window.is_over(value, self.config.deviations)
        window.add(value)
        return self._judge(name, value > limit, unusual, value, limit)

    def _judge(
        self, name: str, beyond: bool, unusual: bool, value: float, limit: float | None, hits: int | None = None
    ) -> list[Event]:
        """Count a hit beyond the limit, a warning, or forget the signal where it is back within it.

        After several hits in a row what is unusual too is an alarm. Returns an event where the level is higher than the
        one announced last.
        """
        if not beyond:
            self.hits.pop(name, None)
            self.levels.pop(name, None)
            return []
        count = self.hits[name] = self.hits.get(name, 0) + 1
        needed = self.config.hits if hits is None else hits
        level = ALARM if count >= needed and unusual and not self.quiet else WARNING
        if LEVELS.index(level) <= LEVELS.index(self.levels.get(name, INFO)):
            return []
        self.levels[name] = level
        sentence = f"{name.replace('_', ' ')} is {value:.4g}" + ("" if limit is None else f", the limit is {limit:.4g}")
        return [self._event(level, name, sentence, value, limit)]

    def _event(
        self, level: str, signal: str, message: str, value: float | None = None, limit: float | None = None
    ) -> Event:
        return Event(self.update, self.phase, level, signal, message, value, limit)


def _array(values: Tensor | ArrayLike) -> FloatArray:
    """Convert numbers on any device to float64, (n,)."""
    if isinstance(values, Tensor):
        values = values.detach().to(device="cpu", dtype=torch.float64).numpy()
    return np.atleast_1d(np.asarray(values, dtype=np.float64))


class GuardState:
    """State of the guard in a training, saved and resumed with it: monitor, snapshots, figures since the last check."""

    def __init__(self, config: Config) -> None:
        guard = config.guard
        self.enabled = guard.enabled
        watched = guard.enabled and config.objectives.reward == "preference"
        self.hacking = RewardHackingMonitor() if watched else None
        self.SAVED = ("monitor", "block", "score", "pending", *(("hacking",) if watched else ()))
        self.monitor = StabilityMonitor(guard.stability, config.bcell.gamma)
        self.manager = RollbackManager(guard.rollback)
        self.block: dict[str, list[float]] = {}  # losses and rewards since the last check
        self.score: float | None = None  # last validation value, by which the best snapshot is chosen
        self.pending: list[dict[str, Any]] = []  # alarms that the next update responds to

    def note(self, name: str, value: float) -> None:
        self.block.setdefault(name, []).append(value)

    def check_update(self, update: int, figures: Mapping[str, float]) -> list[Event]:
        """Check the figures of one update, none where it was skipped, and keep its losses for the next check."""
        if not figures:
            self.monitor.update = update
            return self.monitor.check_skip("a batch")
        renamed = {name: value for name, value in figures.items() if name not in RENAMED}
        renamed |= {RENAMED[name]: value for name, value in figures.items() if name in RENAMED}
        if "actor_loss" in renamed and "mean_weight" in renamed:  # of a likelihood: for weights of 1 on average
            renamed["actor_loss"] /= max(renamed["mean_weight"], SMALLEST_WEIGHT)
        for name, key in (("critic", "critic_loss"), ("actor", "actor_loss")):
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
        return tensors, capture(self)[1] | {"manager": manager}

    def restore(self, tensors: Mapping[str, Tensor], state: Any) -> None:
        """Restore the state; none where the guard is off, or was."""
        if not self.enabled or state is None:
            return
        own = {name: state[name] for name in self.SAVED if name in state}
        restore(self, {}, own, begin_afresh={"hacking"} - own.keys())
        self.manager.restore(tensors, state["manager"])
