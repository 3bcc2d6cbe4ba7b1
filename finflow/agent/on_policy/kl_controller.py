"""Controllers of the coefficient beta of a KL penalty.

References
----------
Schulman and others (2017), Proximal Policy Optimization Algorithms, section 4.
Ziegler and others (2019), Fine-Tuning Language Models from Human Preferences, section 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from finflow.errors import ConfigError

TOLERANCE = 1.5  # of the doubling rule: the KL may lie within this factor of its target
FACTOR = 2.0
LARGEST_ERROR = 0.2  # of the proportional controller


class _Beta:
    """A beta that is saved and resumed; the rest of a controller is configuration."""

    def __init__(self, beta: float, target: float) -> None:
        if not 0.0 <= beta < math.inf:
            raise ConfigError(f"the coefficient of a KL penalty is a number of at least 0, not {beta}")
        if not 0.0 < target < math.inf:
            raise ConfigError(f"the target of a KL controller is a number above 0, not {target}")
        self.beta, self.target = beta, target

    def capture(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"beta": self.beta}

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        beta = state["beta"]
        if not isinstance(beta, int | float) or not 0.0 <= beta < math.inf:
            raise ValueError("the coefficient of the KL penalty is not a number of at least 0")
        self.beta = float(beta)


class DoublingKL(_Beta):
    """Twice the beta above 1.5 times the target, half of it below the target over 1.5.

    ``beta``: at the beginning. ``target``: KL in the unit that `update` is given.

    Examples
    --------
    >>> controller = DoublingKL(0.01, target=0.01)
    >>> controller.update(0.02, decisions=2048), controller.update(0.001, decisions=2048)
    (0.02, 0.01)
    """

    def __init__(self, beta: float = 0.01, target: float = 0.01) -> None:
        super().__init__(beta, target)

    def update(self, divergence: float, decisions: int) -> float:
        """Take the KL of one update of the policy; returns the new beta."""
        if divergence > TOLERANCE * self.target:
            self.beta *= FACTOR
        elif divergence < self.target / TOLERANCE:
            self.beta /= FACTOR
        return self.beta


class ProportionalKL(_Beta):
    """``beta *= 1 + clip(KL / target - 1, -0.2, 0.2) n / horizon``, after n decisions (Ziegler and others 2019).

    Parameters
    ----------
    beta : float
        At the beginning.
    target : float
        KL in the unit that `update` is given; Ziegler and others use 6 nats an episode.
    horizon : int
        Decisions over which beta may change by a factor of about ``exp(0.2)``.
    """

    def __init__(self, beta: float = 0.2, target: float = 6.0, horizon: int = 10_000) -> None:
        super().__init__(beta, target)
        if horizon < 1:
            raise ConfigError(f"the horizon of a KL controller is at least 1 decision, not {horizon}")
        self.horizon = horizon

    def update(self, divergence: float, decisions: int) -> float:
        """Take the KL measured over so many decisions; returns the new beta, the old one where it is no number."""
        if not math.isfinite(divergence):
            return self.beta
        error = min(max(divergence / self.target - 1.0, -LARGEST_ERROR), LARGEST_ERROR)
        self.beta *= max(1.0 + error * decisions / self.horizon, 0.0)
        return self.beta
