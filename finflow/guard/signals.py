"""What the guard is told and what it says: robust windows, events, and figures of a policy on fixed states."""

from __future__ import annotations

import math
from collections import deque
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
KEPT_WITHIN = 10.0  # deviations: what lies further out enters a window as if it were so far out
ENTROPY_OF_NORMAL = 0.5 * math.log(2.0 * math.pi * math.e)


@dataclass(frozen=True)
class Event:
    """Something the guard saw or did.

    Attributes
    ----------
    update : int
        Gradient updates over both phases.
    phase : str
    level : str
        ``info``, ``warning`` or ``alarm``.
    signal : str
        What was measured, or ``rollback``, ``learning rate``, ``stop`` for what was done.
    message : str
        One sentence.
    value, limit : float or None
        As measured, and what it was held against.
    """

    update: int
    phase: str
    level: str
    signal: str
    message: str
    value: float | None = None
    limit: float | None = None

    def row(self) -> dict[str, Any]:
        """As JSON: what is not a finite number is written as text."""
        numbers = {"value": self.value, "limit": self.limit}
        return asdict(self) | {
            name: str(number) if number is not None and not math.isfinite(number) else number
            for name, number in numbers.items()
        }


class RobustWindow:
    """Median and median absolute deviation of the last values, renewed every few of them.

    Values far outside enter as the edge of what is usual: a spike cannot hide the next one, and what moves for good is
    followed.

    Parameters
    ----------
    size : int
        Values kept.
    least : int
        Values before anything is said.
    renew : int
        Values between two computations: sorting at each would cost more than it tells.
    """

    def __init__(self, size: int, least: int, renew: int = 10) -> None:
        self.least = least
        self.renew = renew
        self.values: deque[float] = deque(maxlen=size)
        self.count = 0
        self.centre = self.spread = 0.0
        self.ready = False

    @property
    def deviation(self) -> float:
        """Robust standard deviation, never less than a small share of the centre."""
        return max(self.spread, LEAST_SHARE * abs(self.centre), 1e-9)

    def add(self, value: float) -> None:
        """Take in a value; one that is not finite is passed over."""
        if not math.isfinite(value):
            return
        if self.ready:
            reach = KEPT_WITHIN * self.deviation
            value = min(max(value, self.centre - reach), self.centre + reach)
        self.values.append(value)
        self.count += 1
        if len(self.values) >= self.least and (self.count % self.renew == 0 or not self.ready):
            self.centre = median(self.values)
            self.spread = MAD_TO_DEVIATION * median(abs(one - self.centre) for one in self.values)
            self.ready = True

    def deviations(self, value: float) -> float:
        """How far above the centre a value lies, in robust deviations; 0 while too few are known."""
        return (value - self.centre) / self.deviation if self.ready else 0.0

    def clear(self) -> None:
        """Forget everything."""
        self.values.clear()
        self.count, self.centre, self.spread, self.ready = 0, 0.0, 0.0, False

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "values": list(self.values),
            "count": self.count,
            "centre": self.centre,
            "spread": self.spread,
            "ready": self.ready,
        }

    def load(self, state: dict[str, Any]) -> None:
        """From JSON."""
        self.values.clear()
        self.values.extend(state["values"])
        self.count, self.ready = int(state["count"]), bool(state["ready"])
        self.centre, self.spread = float(state["centre"]), float(state["spread"])


@dataclass(frozen=True)
class PolicyProbe:
    """A policy on fixed states.

    Attributes
    ----------
    location, log_scale : Tensor, (states, K - 1)
        Of the normal distributions in log-ratio coordinates.
    centre : Tensor, (states, K)
        The deterministic portfolios.
    held : Tensor, (states, K)
        What is held before the decision.
    gate : Tensor, (states, experts)
    """

    location: Tensor
    log_scale: Tensor
    centre: Tensor
    held: Tensor
    gate: Tensor


def gaussian_divergence(location: Tensor, log_scale: Tensor, other: Tensor, other_log_scale: Tensor) -> Tensor:
    """KL divergence of independent normals from others, nats per dimension, the mean over states.

    ``ln(s'/s) + (s^2 + (m - m')^2) / (2 s'^2) - 1/2``: exact for the logistic-normal policy too, since both sides go
    through the same map to the simplex.
    """
    variance = (2.0 * (log_scale - other_log_scale)).exp()
    shift = ((location - other) * (-other_log_scale).exp()).square()
    return (0.5 * (variance + shift - 1.0) - (log_scale - other_log_scale)).mean()


def measure(probe: PolicyProbe, reference: PolicyProbe | None) -> dict[str, float]:
    """Figures of a policy on the fixed states, read from the device at once.

    Returns
    -------
    dict
        ``concentration`` H(w) / ln K of the deterministic portfolios; ``policy_entropy`` exp((H - H_max) / (K - 1)),
        with the Jacobian's mean taken at the centre; ``gate`` the largest mean weight of an expert, 0 where there is
        but one; ``turnover`` half the sum of absolute trades; ``kl`` in nats per free dimension from the reference (0
        without one).
    """
    n_weights = probe.centre.shape[-1]
    log_weights = probe.centre.clamp(min=1e-12).log()
    entropy = -(probe.centre * log_weights).sum(-1).mean() / math.log(max(n_weights, 2))
    density = probe.log_scale.sum(-1).mean() + (n_weights - 1) * ENTROPY_OF_NORMAL + log_weights.sum(-1).mean()
    share = ((density + math.lgamma(n_weights)) / max(n_weights - 1, 1)).clamp(max=0.0).exp()
    turnover = 0.5 * (probe.centre - probe.held).abs().sum(-1).mean()
    kl = torch.zeros_like(turnover)
    if reference is not None:
        kl = gaussian_divergence(probe.location, probe.log_scale, reference.location, reference.log_scale)
    several = float(probe.gate.shape[-1] > 1)
    figures = torch.stack([entropy, share, several * probe.gate.mean(0).max(), turnover, kl]).tolist()
    return dict(zip(("concentration", "policy_entropy", "gate", "turnover", "kl"), figures, strict=True))


def lengths(groups: Mapping[str, Sequence[Tensor]]) -> dict[str, float]:
    """Length of all parameters of each group together, with one read from the device; not finite where one is not."""
    parts = [tensor.detach() for tensors in groups.values() for tensor in tensors]
    squares = torch.stack(torch._foreach_norm(parts)).square().tolist()
    found, place = {}, 0
    for name, tensors in groups.items():
        found[name] = math.sqrt(sum(squares[place : place + len(tensors)]))
        place += len(tensors)
    return found
