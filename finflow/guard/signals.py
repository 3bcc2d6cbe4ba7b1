"""Signals of the guard: events, robust windows, figures of a policy on fixed states, and reward hacking.

A policy that is trained on a reward model can raise the model's score and not what the score stands for (Gao, Schulman
and Hilton 2023, Scaling Laws for Reward Model Overoptimization). Every validation of the online phase is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
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
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


class RobustWindow:
    """Median and median absolute deviation of the last ``size`` values, renewed every ``renew`` of them.

    Outliers are clipped to the edge of the usual range: a spike does not hide the next one, and lasting changes are
    followed. It is ready after ``least`` values. Where it is not ``robust`` it has the mean of the values as they are.
    """

    SAVED = ("values", "count", "centre", "spread", "ready")

    def __init__(self, size: int, least: int, renew: int = 10, robust: bool = True) -> None:
        self._size, self.least, self.renew, self.robust = size, least, renew, robust
        self.clear()

    def clear(self) -> None:
        self.values: list[float] = []
        self.count, self.centre, self.spread, self.ready = 0, 0.0, 0.0, False

    @property
    def deviation(self) -> float:
        """Robust standard deviation, never less than a small share of the centre."""
        return max(self.spread, LEAST_SHARE * abs(self.centre), 1e-9)

    def add(self, value: float) -> None:
        """Add a value; one that is not finite is ignored."""
        if not math.isfinite(value):
            return
        if self.ready and self.robust:
            reach = KEPT_WITHIN * self.deviation
            value = min(max(value, self.centre - reach), self.centre + reach)
        self.values = [*self.values, value][-self._size :]
        self.count += 1
        enough = len(self.values) >= self.least
        if not self.robust:
            self.centre, self.ready = fmean(self.values), enough
        elif enough and (self.count % self.renew == 0 or not self.ready):
            self.centre = median(self.values)
            self.spread = MAD_TO_DEVIATION * median(abs(one - self.centre) for one in self.values)
            self.ready = True

    def is_over(self, value: float, deviations: float) -> bool:
        """Return True for a value so many robust deviations above the centre; False until the window is ready."""
        return self.ready and (value - self.centre) / self.deviation > deviations


class PolicyProbe(NamedTuple):
    """A policy on fixed states."""

    location: Tensor  # (states, K - 1): mean in log-ratio coordinates
    log_scale: Tensor  # (states, K - 1): log of the deviation there
    centre: Tensor  # (states, K): the deterministic portfolios
    held: Tensor  # (states, K): those before the decision
    gate: Tensor  # (states, experts)


def _entropies(probe: PolicyProbe) -> tuple[Tensor, Tensor]:
    """Entropies of `policy_figures`: of the portfolios, and of the policy.

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


def policy_figures(probe: PolicyProbe, kl: Tensor | None = None) -> dict[str, float]:
    """Figures of a policy on the fixed states, read from the device at once.

    ``concentration`` H(w) / ln K of the deterministic portfolios; ``policy_entropy`` exp((H - H_max) / (K - 1)), with
    the Jacobian's mean taken at the centre; ``gate`` the largest mean weight of an expert, 0 where there is but one;
    ``turnover`` half the sum of absolute trades; ``kl``, given, (), from the reference, 0 without one.
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
    squares = iter(torch.stack(torch._foreach_norm(parts)).square().tolist())
    return {name: math.sqrt(sum(islice(squares, len(tensors)))) for name, tensors in groups.items()}


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
    state = "Best and latest checkpoint are of healthy states"
    if ADVICE["hacking"] in advice:
        state = "The best checkpoint was chosen by net returns and not by the reward model's score"
    tries = "".join(f"- {line}\n" for line in advice)
    rows = "".join(f"| {name} | {value} |\n" for name, value in statistics.items())
    return (
        f"# Why the guard stopped this training\n\n{reason}.\n\nWhat to try:\n\n{tries}\n"
        f"{state}. `events.jsonl` has all events of the guard.\n\n| | |\n|---|---|\n{rows}"
    )


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
    """Validations of the online phase so far, and the reasons that they give to stop it."""

    def __init__(self) -> None:
        self.validations: list[ScoredValidation] = []
        self.reference: ScoredValidation | None = None  # of the reference policy
        self.hits = 0  # validations in a row at which the score rose while Sharpe ratio and utility fell
        self.reasons: list[str] = []  # to stop the training, by the last validation; one sentence each

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
        self.validations = [_validation(row) for row in state["looks"]]
        self.reference = state["reference"] and _validation(state["reference"])
        self.hits = state["hits"]


def _row(validation: ScoredValidation) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in validation._asdict().items()}


def _validation(row: Mapping[str, Any]) -> ScoredValidation:
    return ScoredValidation(**{name: math.nan if value is None else float(value) for name, value in row.items()})
