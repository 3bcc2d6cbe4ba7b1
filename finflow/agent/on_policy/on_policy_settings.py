"""Settings of the on-policy update, and the five algorithms that are configurations of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

from finflow.errors import ConfigError

Algorithm = Literal["ppo", "ppo-kl", "trpo", "a2c", "reinforce"]


@dataclass(frozen=True)
class OnPolicySettings:
    """Settings of one algorithm; `of` has the usual ones of each.

    Attributes
    ----------
    algorithm : str
        ``ppo`` (clipped objective), ``ppo-kl`` (KL penalty), ``trpo`` (trust region), ``a2c`` or ``reinforce`` (one
        policy-gradient step a rollout; the second without a baseline).
    clip : float
        Epsilon of the clipped objective.
    epochs, minibatch : int
        Passes over a rollout, and decisions in one step of them. With ``trpo`` those of the value function.
    value_coefficient, entropy_coefficient : float
        Of the losses. With a value coefficient of 0 there is no value function to learn.
    gradient_norm : float
        Longer gradients are shortened to it; infinite for none.
    critic_rate_multiple : float
        Learning rate of the value function in multiples of the policy's.
    normalise : bool
        Normalise advantages over a rollout.
    target_kl : float or None
        The epochs end once the approximate KL of a minibatch exceeds 1.5 times this.
    kl_beta, kl_target : float
        First coefficient of the KL penalty and its target, in nats, with ``ppo-kl``.
    trust_region : float
        Largest mean KL(old || new) of an update, in nats, with ``trpo``.
    """

    algorithm: Algorithm = "ppo"
    clip: float = 0.2
    epochs: int = 10
    minibatch: int = 64
    gamma: float = 0.99
    gae_lambda: float = 0.95
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    gradient_norm: float = 0.5
    learning_rate: float = 3e-4
    critic_rate_multiple: float = 1.0
    adam_epsilon: float = 1e-5
    normalise: bool = True
    target_kl: float | None = None
    kl_beta: float = 0.01
    kl_target: float = 0.01
    trust_region: float = 0.01

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(Algorithm):
            raise ConfigError(f"the algorithm is one of {', '.join(get_args(Algorithm))}, not {self.algorithm!r}")
        for name in ("clip", "learning_rate", "critic_rate_multiple", "adam_epsilon", "kl_target"):
            _require(name, getattr(self, name), 0.0 < getattr(self, name) < math.inf, "above 0")
        _require("gradient_norm", self.gradient_norm, self.gradient_norm > 0.0, "above 0")
        for name in ("gamma", "gae_lambda"):
            _require(name, getattr(self, name), 0.0 <= getattr(self, name) <= 1.0, "in 0..1")
        for name in ("value_coefficient", "entropy_coefficient", "kl_beta"):
            _require(name, getattr(self, name), 0.0 <= getattr(self, name) < math.inf, "of at least 0")
        for name in ("epochs", "minibatch"):
            _require(name, getattr(self, name), getattr(self, name) >= 1, "of at least 1")
        _require(
            "target_kl", self.target_kl, self.target_kl is None or 0.0 < self.target_kl < math.inf, "above 0, or None"
        )

    @property
    def penalised(self) -> bool:
        return self.algorithm == "ppo-kl"

    @classmethod
    def of(cls, algorithm: str, **changes: Any) -> Self:
        """The usual settings of an algorithm, with changes.

        Raises
        ------
        ConfigError
            For an algorithm, a name or a value that there is not.

        Examples
        --------
        >>> OnPolicySettings.of("a2c", gamma=0.9).epochs
        1
        """
        try:
            return replace(cls(), **({"algorithm": algorithm} | _USUAL.get(algorithm, {}) | changes))
        except TypeError:
            unknown = sorted(set(changes) - set(cls.__dataclass_fields__))
            raise ConfigError(f"there is no setting {', '.join(unknown)} of {algorithm}") from None


def _require(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name} is a number {wanted}, not {value}")


WHOLE_ROLLOUT = 1 << 30  # a minibatch larger than any rollout
_ONE_STEP = {"epochs": 1, "minibatch": WHOLE_ROLLOUT, "normalise": False}
_USUAL: dict[str, dict[str, Any]] = {
    "ppo": {},
    "ppo-kl": {},
    "trpo": {"entropy_coefficient": 0.0, "learning_rate": 1e-3, "minibatch": 128, "gradient_norm": math.inf},
    "a2c": {"gae_lambda": 1.0, "learning_rate": 7e-4, "entropy_coefficient": 0.0} | _ONE_STEP,
    "reinforce": {"gae_lambda": 1.0, "learning_rate": 1e-3, "value_coefficient": 0.0} | _ONE_STEP,
}
