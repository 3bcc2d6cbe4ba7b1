"""Signals of the guard: events, robust windows, figures of a policy on fixed states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor

INFO, WARNING, ALARM = "info", "warning", "alarm"
LEVELS = (INFO, WARNING, ALARM)
MAD_TO_DEVIATION = 1.4826  # of a normal distribution
LEAST_SHARE = 0.05  # a deviation is at least this share of the centre
KEPT_WITHIN = 10.0  # deviations: values further out are clipped to this
ENTROPY_OF_NORMAL = 0.5 * math.log(2.0 * math.pi * math.e)


@dataclass(frozen=True)
class Event:
    """A warning or an action of the guard.

    ``level`` is ``info``, ``warning`` or ``alarm``; ``signal`` what was measured, or ``rollback``, ``learning rate``,
    ``stop`` for an action; ``message`` one sentence. ``value`` was compared with ``limit``; ``update`` counts gradient
    updates over both phases.
    """

    update: int
    phase: str
    level: str
    signal: str
    message: str
    value: float | None = None
    limit: float | None = None

    def row(self) -> dict[str, Any]:
        """As JSON; numbers that are not finite as text."""
        numbers = {"value": self.value, "limit": self.limit}
        return asdict(self) | {
            name: str(number) if number is not None and not math.isfinite(number) else number
            for name, number in numbers.items()
        }


class RobustWindow:
    """Median and median absolute deviation of the last ``size`` values, renewed every ``renew`` of them.

    Outliers are clipped to the edge of the usual range: a spike does not hide the next one, and lasting changes are
    followed. It is ready after ``least`` values.
    """

    SAVED = ("values", "count", "centre", "spread", "ready")

    def __init__(self, size: int, least: int, renew: int = 10) -> None:
        self._size = size
        self.least = least
        self.renew = renew
        self.values: list[float] = []
        self.count = 0
        self.centre = self.spread = 0.0
        self.ready = False

    @property
    def deviation(self) -> float:
        """Robust standard deviation, never less than a small share of the centre."""
        return max(self.spread, LEAST_SHARE * abs(self.centre), 1e-9)

    def keep(self, value: float) -> None:
        """Put a value in, and drop the oldest."""
        self.values = [*self.values, value][-self._size :]
        self.count += 1

    def add(self, value: float) -> None:
        """Add a value; one that is not finite is ignored."""
        if not math.isfinite(value):
            return
        if self.ready:
            reach = KEPT_WITHIN * self.deviation
            value = min(max(value, self.centre - reach), self.centre + reach)
        self.keep(value)
        if len(self.values) >= self.least and (self.count % self.renew == 0 or not self.ready):
            self.centre = median(self.values)
            self.spread = MAD_TO_DEVIATION * median(abs(one - self.centre) for one in self.values)
            self.ready = True

    def is_over(self, value: float, deviations: float) -> bool:
        """Return True for a value so many robust deviations above the centre; False until the window is ready."""
        return self.ready and (value - self.centre) / self.deviation > deviations

    def clear(self) -> None:
        self.values = []
        self.count, self.centre, self.spread, self.ready = 0, 0.0, 0.0, False


@dataclass(frozen=True)
class PolicyProbe:
    """A policy on fixed states."""

    location: Tensor  # (states, K - 1): mean in log-ratio coordinates
    log_scale: Tensor  # (states, K - 1): log of the deviation there
    centre: Tensor  # (states, K): the deterministic portfolios
    held: Tensor  # (states, K): those before the decision
    gate: Tensor  # (states, experts)


def _entropies(probe: PolicyProbe) -> tuple[Tensor, Tensor]:
    """Entropies of `measure`: of the portfolios, and of the policy.

    An asset that is not listed has a weight of exactly zero, and its dimension is counted nowhere.
    """
    n_weights = probe.centre.shape[-1]
    log_weights = probe.centre.clamp(min=1e-12).log()
    held = probe.centre > 0.0
    if bool(held.all()):
        entropy = -(probe.centre * log_weights).sum(-1).mean() / math.log(max(n_weights, 2))
        density = probe.log_scale.sum(-1).mean() + (n_weights - 1) * ENTROPY_OF_NORMAL + log_weights.sum(-1).mean()
        return entropy, ((density + math.lgamma(n_weights)) / max(n_weights - 1, 1)).clamp(max=0.0).exp()
    counts = held.sum(-1).to(probe.centre.dtype)
    entropies = -(probe.centre * log_weights).sum(-1) / counts.clamp(min=2.0).log()
    scale = (held[:, :-1] * (probe.log_scale + ENTROPY_OF_NORMAL)).sum(-1)
    densities = scale + (held * log_weights).sum(-1) + torch.lgamma(counts)
    return entropies.mean(), (densities / (counts - 1.0).clamp(min=1.0)).mean().clamp(max=0.0).exp()


def measure(probe: PolicyProbe, kl: Tensor | None = None) -> dict[str, float]:
    """Figures of a policy on the fixed states, read from the device at once.

    Returns
    -------
    dict
        ``concentration`` H(w) / ln K of the deterministic portfolios; ``policy_entropy`` exp((H - H_max) / (K - 1)),
        with the Jacobian's mean taken at the centre; ``gate`` the largest mean weight of an expert, 0 where there is
        but one; ``turnover`` half the sum of absolute trades; ``kl``, given, (), from the reference, 0 without one.
    """
    entropy, share = _entropies(probe)
    turnover = 0.5 * (probe.centre - probe.held).abs().sum(-1).mean()
    kl = torch.zeros_like(turnover) if kl is None else kl
    several = float(probe.gate.shape[-1] > 1)
    figures = torch.stack([entropy, share, several * probe.gate.mean(0).max(), turnover, kl]).tolist()
    return dict(zip(("concentration", "policy_entropy", "gate", "turnover", "kl"), figures, strict=True))


def crossed(count: int, steps: int, interval: int) -> bool:
    """Return True where the last ``steps`` of ``count`` reached a multiple of ``interval``."""
    return count // interval > (count - steps) // interval


def parameter_norms(groups: Mapping[str, Sequence[Tensor]]) -> dict[str, float]:
    """Euclidean norm of all parameters of each group, with one read from the device; not finite where one is not."""
    parts = [tensor.detach() for tensors in groups.values() for tensor in tensors]
    squares = torch.stack(torch._foreach_norm(parts)).square().tolist()
    norms, place = {}, 0
    for name, tensors in groups.items():
        norms[name] = math.sqrt(sum(squares[place : place + len(tensors)]))
        place += len(tensors)
    return norms


ADVICE = {
    "non_finite": "look for missing, infinite or impossibly large prices or rewards in the data",
    "q": "lower bcell.critic_lr or bcell.gamma, or raise bcell.cql_alpha",
    "critic_loss": "lower bcell.critic_lr, or raise train.online_batch_size",
    "critic_gradient": "lower bcell.critic_lr or bcell.gradient_norm",
    "actor_loss": "lower bcell.actor_lr",
    "policy_gradient": "lower bcell.actor_lr or bcell.gradient_norm",
    "kl": "lower bcell.actor_lr, or raise guard.rollback.kl_threshold",
    "concentration": "raise bcell.target_entropy, or set env.max_weight",
    "gate": "lower bcell.actor_lr, or raise bcell.target_entropy",
    "turnover": "raise objectives.lambda_turn, or set env.max_turnover",
    "reward": "raise bcell.cql_alpha",
    "sharpe": "raise bcell.cql_alpha",
    "policy": "lower bcell.actor_lr",
    "hacking": "learn the reward model from more pairs, or raise online.reference_beta",
    "frozen": "lower bcell.actor_lr, or objectives.lambda_turn",
}


def advice_on(alarms: Sequence[Event]) -> list[str]:
    """Settings to try after a training was stopped by these alarms."""
    signals = sorted({event.signal for event in alarms})
    return list(dict.fromkeys(ADVICE.get(signal, "lower bcell.actor_lr and bcell.critic_lr") for signal in signals))


def stop_report(reason: str, advice: Sequence[str], statistics: Mapping[str, object]) -> str:
    """Markdown text on a stopped training: one sentence of why, the advice, and `RollbackManager.get_statistics`."""
    lines = ["# Why the guard stopped this training", "", f"{reason}.", "", "What to try:", ""]
    lines += [f"- {line}" for line in advice]
    state = "Best and latest checkpoint are of healthy states"
    if ADVICE["hacking"] in advice:
        state = "The best checkpoint was chosen by net returns and not by the reward model's score"
    lines += ["", f"{state}. `events.jsonl` has all events of the guard."]
    lines += ["", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in statistics.items())]
    return "\n".join(lines) + "\n"
