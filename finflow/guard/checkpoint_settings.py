"""Settings of checkpoints in a user's own loop, and the figures that each is saved and checked with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import ValidationError

from finflow.config import RollbackConfig
from finflow.errors import ConfigError

Class = TypeVar("Class", bound=type)
_KEYS = {
    "rollback_on_kl_threshold": "kl_threshold",
    "rollback_on_loss_spike_factor": "loss_spike",
    "rollback_on_reward_drop_factor": "reward_drop",
}


def renamed(**names: str) -> Callable[[Class], Class]:
    """Have a class answer keywords that it had before with one line that says what to write instead."""

    def wrap(cls: Class) -> Class:
        made = vars(cls)["__init__"]

        @wraps(made)
        def check(self: object, *given: Any, **named: Any) -> None:
            for name in (one for one in names if one in named):
                raise ConfigError(f"{cls.__name__} has no {name}: write {names[name]}")
            made(self, *given, **named)

        setattr(cls, "__init__", check)  # noqa: B010
        return cls

    return wrap


@renamed(loss="policy_loss and value_loss", reward="mean_reward", kl="kl_divergence")
@dataclass(frozen=True)
class CheckpointMetrics:
    """Figures of a training at one step of its loop; those that are None are not compared.

    ``timestamp``: seconds since 1970, kept in the file. ``kl_divergence``: of the policy from the one before, nats per
    free dimension of the action. ``mean_reward`` chooses the best checkpoint.
    """

    step: int
    timestamp: float
    policy_loss: float | None
    value_loss: float | None
    kl_divergence: float | None
    mean_reward: float | None
    explained_variance: float | None
    entropy: float | None = None

    def __post_init__(self) -> None:
        """Take numbers of any library as plain ones."""
        try:
            for name, value in vars(self).items():
                plain = value.item() if hasattr(value, "item") else value  # a tensor's, or an array's
                object.__setattr__(self, name, plain if plain is None or name == "step" else float(plain))
        except (TypeError, ValueError, RuntimeError):
            raise ConfigError(f"{name} of CheckpointMetrics is a number, not {value!r}"[:200]) from None

    @property
    def loss(self) -> float | None:
        """Policy loss plus value loss."""
        known = [one for one in (self.policy_loss, self.value_loss) if one is not None]
        return sum(known) if known else None

    def fault(self, kl_threshold: float = math.inf) -> str:
        """Fault whatever came before: figures that are not finite, or a KL over the threshold; empty without one."""
        for name, value in asdict(self).items():
            if value is not None and not math.isfinite(value):
                return f"the {name.replace('_', ' ')} is not a finite number"
        return "the policy moved too far" if (self.kl_divergence or 0.0) > kl_threshold else ""


@renamed(**{old: new for new, old in _KEYS.items()}, preset="CheckpointConfig.preset(name, checkpoint_dir)")
@dataclass(frozen=True)
class CheckpointConfig:
    """Settings of a `CheckpointManager`; a ConfigError for a value that cannot be. Defaults: those of guard.rollback.

    Checkpoints are written to ``checkpoint_dir``, or kept in memory alone where it is None: one in ``save_interval``
    steps, the newest ``max_checkpoints`` and the best. The thresholds are the largest KL divergence, and the largest
    loss and least mean reward in multiples of their means over the last ``metric_window_size`` checks (3 or more): as
    written with ``mode="strict"``, with an allowance for what is usual with ``robust`` (`RollbackTriggers`).
    """

    checkpoint_dir: str | Path | None
    save_interval: int = 100
    max_checkpoints: int = 5
    rollback_on_kl_threshold: float = 0.1
    rollback_on_loss_spike_factor: float = 3.0
    rollback_on_reward_drop_factor: float = 0.5
    metric_window_size: int = 10
    mode: Literal["strict", "robust"] = field(default="strict", kw_only=True)

    def __post_init__(self) -> None:
        _ = self.keys
        if not isinstance(self.checkpoint_dir, str | Path | None):
            raise ConfigError(f"checkpoint_dir is the name of a folder, or None, not {self.checkpoint_dir!r}")

    @property
    def keys(self) -> RollbackConfig:
        """The same as keys of ``guard.rollback``; a checkpoint awaits a check and no other probation."""
        values = {name: value for name, value in vars(self).items() if name != "checkpoint_dir"}
        try:
            return RollbackConfig(probation=0, **{_KEYS.get(name, name): value for name, value in values.items()})
        except ValidationError as error:
            (first, *_), former = error.errors(), {old: new for new, old in _KEYS.items()}
            name = str(first["loc"][-1])
            name = former.get(name, name)
            raise ConfigError(f"{name} of a CheckpointConfig cannot be {values[name]!r}: {first['msg']}") from None

    @classmethod
    def preset(cls, name: str, checkpoint_dir: str | Path | None) -> Self:
        """Make the settings of a preset: ``conservative``, ``standard``, which are the defaults, or ``aggressive``."""
        try:
            keys = RollbackConfig.model_validate({"preset": name})
        except ValidationError:
            raise ConfigError(f"a preset is conservative, standard or aggressive, not {name!r}") from None
        limits = {new: getattr(keys, old) for new, old in _KEYS.items()}
        return cls(checkpoint_dir, keys.save_interval, keys.max_checkpoints, **limits)
