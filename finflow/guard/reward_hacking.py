"""Guard against reward hacking: a learned reward's score compared with net results of the same decisions.

A policy that is trained on a reward model can raise the model's score and not what the score stands for (Gao, Schulman
and Hilton 2023, Scaling Laws for Reward Model Overoptimization). Every validation of the online phase is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from finflow.config import HackingConfig

LOOKS = 3  # validations in a row at which the score rises and both net measures fall, before a stop
MULTIPLE = 2.0  # of the turnover or concentration of the reference, beyond which there is a stop
LEAST_VALIDATIONS = 3  # for a correlation
LEAST_TURNOVER = 1.0  # a year: a reference that hardly trades counts as trading this much


@dataclass(frozen=True)
class ScoredValidation:
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

    def __init__(self, config: HackingConfig) -> None:
        self.config = config
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
        if self.reference is None:
            self.reference = validation
        before = self.validations[-1] if self.validations else None
        self.validations.append(validation)
        rose = before is not None and validation.score > before.score  # false where one is not a number
        fell = before is not None and validation.sharpe < before.sharpe and validation.utility < before.utility
        self.hits = self.hits + 1 if rose and fell else 0
        self.reasons = [*self._divergence(), *self._excess(validation, self.reference)]
        return self.reasons

    def _divergence(self) -> list[str]:
        """Reason where the score rose while the net results fell, at enough validations in a row and by enough."""
        if self.hits < LOOKS:
            return []
        first, last = self.validations[-1 - self.hits], self.validations[-1]
        if not first.sharpe - last.sharpe >= self.config.fall:
            return []
        return [
            f"the reward model's score rose from {first.score:.4g} to {last.score:.4g} while the Sharpe ratio fell "
            f"from {first.sharpe:.2f} to {last.sharpe:.2f} and the built-in reward with it, at {self.hits} "
            "validations in a row"
        ]

    def _excess(self, validation: ScoredValidation, reference: ScoredValidation) -> list[str]:
        allowed = {
            "turnover": MULTIPLE * max(reference.turnover, LEAST_TURNOVER),
            "concentration": MULTIPLE * reference.concentration,
        }
        return [
            f"the {name} is {getattr(validation, name):.3g}, over {MULTIPLE:g} times the reference's "
            f"{getattr(reference, name):.3g}"
            for name, limit in allowed.items()
            if getattr(validation, name) > limit
        ]

    def state(self) -> dict[str, Any]:
        reference = None if self.reference is None else _row(self.reference)
        return {"looks": [_row(one) for one in self.validations], "reference": reference, "hits": self.hits}

    def load(self, state: Mapping[str, Any]) -> None:
        self.validations = [_from_row(one) for one in state["looks"]]
        self.reference = None if state["reference"] is None else _from_row(state["reference"])
        self.hits = state["hits"]


def _row(validation: ScoredValidation) -> dict[str, float | None]:
    """As JSON, where null stands for what is not a number."""
    return {name: value if math.isfinite(value) else None for name, value in asdict(validation).items()}


def _from_row(state: Mapping[str, Any]) -> ScoredValidation:
    return ScoredValidation(**{name: math.nan if value is None else float(value) for name, value in state.items()})
