"""Settings of the on-policy update and of its schedules, and interfaces of what it improves.

The update knows neither the task nor the networks: the B-Cell's policy on the market and `TaskActorCritic`, the small
policy and value function of tasks that are not markets, answer alike.

References
----------
Andrychowicz and others (2021), What Matters for On-Policy Deep Actor-Critic Methods? A Large-Scale Study.
Huang and others (2022), The 37 Implementation Details of Proximal Policy Optimization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, Self, get_args

import torch
from torch import Generator, Tensor, nn

from finflow.agent.networks.distributions import Categorical, DiagonalNormal
from finflow.agent.networks.layers import empty_linear
from finflow.config import EntropyAnnealing, TargetEntropyAnnealing
from finflow.errors import ConfigError

Algorithm = Literal["ppo", "ppo-kl", "trpo", "a2c", "reinforce"]
Observations = tuple[Tensor, ...]  # the parts of a batch of observations, each (batch, ...)
HIDDEN = 64


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
    kl_beta: float = 0.01
    kl_target: float = 0.01
    trust_region: float = 0.01

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(Algorithm):
            raise ConfigError(f"the algorithm is one of {', '.join(get_args(Algorithm))}, not {self.algorithm!r}")
        for wanted, (holds, names) in _LIMITS.items():
            for name in names:
                value = getattr(self, name)
                if not holds(value) or (value == math.inf and name != "gradient_norm"):
                    raise ConfigError(f"{name} is a number {wanted}, not {value}")

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


_LIMITS: dict[str, tuple[Callable[[float], bool], tuple[str, ...]]] = {
    "above 0": (
        lambda value: value > 0.0,
        ("clip", "learning_rate", "critic_rate_multiple", "adam_epsilon", "kl_target", "gradient_norm"),
    ),
    "of at least 0": (lambda value: value >= 0.0, ("value_coefficient", "entropy_coefficient", "kl_beta")),
    "in 0..1": (lambda value: 0.0 <= value <= 1.0, ("gamma", "gae_lambda")),
    "of at least 1": (lambda value: value >= 1, ("epochs", "minibatch")),
}
WHOLE_ROLLOUT = 1 << 30  # a minibatch larger than any rollout
_ONE_STEP = {"epochs": 1, "minibatch": WHOLE_ROLLOUT, "normalise": False}
_USUAL: dict[str, dict[str, Any]] = {
    "ppo": {},
    "ppo-kl": {},
    "trpo": {"entropy_coefficient": 0.0, "learning_rate": 1e-3, "minibatch": 128, "gradient_norm": math.inf},
    "a2c": {"gae_lambda": 1.0, "learning_rate": 7e-4, "entropy_coefficient": 0.0} | _ONE_STEP,
    "reinforce": {"gae_lambda": 1.0, "learning_rate": 1e-3, "value_coefficient": 0.0} | _ONE_STEP,
}


class TaskPreset(NamedTuple):
    """Usual settings of PPO in a task, and decisions in a rollout of all environments together."""

    settings: OnPolicySettings
    n_steps: int


PPO_PRESETS = {
    "CartPole-v1": TaskPreset(OnPolicySettings(learning_rate=3e-4, clip=0.2), 128),
    "LunarLander-v3": TaskPreset(OnPolicySettings(learning_rate=3e-4, clip=0.2), 2048),
    "Atari": TaskPreset(OnPolicySettings(learning_rate=2.5e-4, clip=0.1), 128),
    "MuJoCo": TaskPreset(OnPolicySettings(learning_rate=3e-4, clip=0.2), 2048),
}


class ActionDistribution(Protocol):
    """A batch of distributions over actions, one for each observation, that does not change as the policy learns.

    Densities are joint: one number for a whole action, however many dimensions it has. All but actions are (batch,).
    """

    def draw_action(self, generator: Generator) -> Tensor: ...
    def log_prob(self, actions: Tensor) -> Tensor: ...
    def entropy(self) -> Tensor: ...
    def kl(self, other: Self) -> Tensor: ...
    def rows(self, index: Tensor) -> Self: ...


class ActorCritic(Protocol):
    """A policy and a value function over the same observations, which have no parameter in common."""

    def distribution(self, observations: Observations) -> ActionDistribution: ...
    def value(self, observations: Observations) -> Tensor: ...
    def actor_parameters(self) -> Iterable[nn.Parameter]: ...
    def critic_parameters(self) -> Iterable[nn.Parameter]: ...


class Rollout(NamedTuple):
    """Decisions of one policy, of all environments and steps one below the other, ready to learn from."""

    observations: Observations  # (n, ...)
    actions: Tensor  # (n, ...)
    log_prob: Tensor  # (n,): of the actions under the policy that took them
    values: Tensor  # (n,): of the value function at that time
    advantages: Tensor  # (n,): as estimated, not normalised
    returns: Tensor  # (n,): targets of the value function

    def rows(self, index: Tensor | slice) -> Rollout:
        observations, *rest = self
        return Rollout(tuple(part[index] for part in observations), *(part[index] for part in rest))


class TaskActorCritic(nn.Module):
    """Policy and value function of a task with vectors as observations.

    Two networks of two hidden layers, tanh 64 x 64, with orthogonal initial weights: of scale sqrt(2) in hidden layers,
    0.01 at the policy's output, 1 at the value's. The logarithm of a Box policy's deviation is a parameter for each
    dimension and does not depend on the state.

    ``actions`` are those of a Discrete space, or the dimensions of a Box, by ``kind``; the generator draws the initial
    weights, and ``hidden`` is the width of both hidden layers.
    """

    def __init__(
        self,
        observations: int,
        actions: int,
        kind: Literal["discrete", "box"],
        generator: Generator,
        hidden: int = HIDDEN,
    ) -> None:
        super().__init__()
        self.observations, self.actions, self.kind = observations, actions, kind
        self.actor = _network(observations, hidden, actions, 0.01, generator)
        self.critic = _network(observations, hidden, 1, 1.0, generator)
        self.log_scale = nn.Parameter(torch.zeros(actions)) if kind == "box" else None

    def distribution(self, observations: Observations) -> Categorical | DiagonalNormal:
        """Distributions over actions; the one part of the observations is (batch, observations)."""
        output = self.actor(observations[0])
        if self.log_scale is None:
            return Categorical(torch.log_softmax(output, dim=-1))
        return DiagonalNormal(output, self.log_scale.clone())  # a distribution does not change as the policy learns

    def value(self, observations: Observations) -> Tensor:
        values: Tensor = self.critic(observations[0])
        return values.squeeze(-1)

    def actor_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.actor.parameters()
        if self.log_scale is not None:
            yield self.log_scale

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.critic.parameters()


def _network(inputs: int, hidden: int, outputs: int, scale: float, generator: Generator) -> nn.Sequential:
    return nn.Sequential(
        _layer(inputs, hidden, math.sqrt(2.0), generator),
        nn.Tanh(),
        _layer(hidden, hidden, math.sqrt(2.0), generator),
        nn.Tanh(),
        _layer(hidden, outputs, scale, generator),
    )


def _layer(inputs: int, outputs: int, scale: float, generator: Generator) -> nn.Linear:
    layer = empty_linear(inputs, outputs)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight, scale, generator=generator)
        layer.bias.zero_()
    return layer


ScheduleKind = Literal["linear", "cosine", "exponential"]


@dataclass(frozen=True)
class EntropyScheduleConfig:
    """Settings of an entropy schedule; a ConfigError for those that make none.

    Attributes
    ----------
    initial_entropy, final_entropy : float
        Coefficient at the beginning and at the end, above 0.
    decay_steps : int
        Steps from the one to the other. A step is a gradient update where finflow trains.
    schedule_type : str
        ``linear``, ``cosine`` or ``exponential``.
    """

    initial_entropy: float = 0.01
    final_entropy: float = 0.001
    decay_steps: int = 100_000
    schedule_type: ScheduleKind = "linear"

    def __post_init__(self) -> None:
        if self.schedule_type not in get_args(ScheduleKind):
            raise ConfigError(f"an entropy schedule is linear, cosine or exponential, not {self.schedule_type!r}")
        ends = (self.initial_entropy, self.final_entropy)
        if not all(0.0 < end < math.inf for end in ends) or self.decay_steps < 1:
            raise ConfigError("an entropy schedule goes between positive values, in at least one step")

    @classmethod
    def preset(cls, name: str) -> Self:
        """Make the settings of a preset: ``default``, ``fast`` or ``stable``; raises ConfigError for another name."""
        if name not in _PRESETS:
            raise ConfigError(f"an entropy schedule's preset is {', '.join(_PRESETS)}, not {name!r}")
        return cls(*_PRESETS[name])


_PRESETS: dict[str, tuple[Any, ...]] = {
    "default": (),
    "fast": (0.02, 0.0001, 50_000, "exponential"),
    "stable": (0.01, 0.005, 150_000, "cosine"),
}


class EntropyScheduler:
    """Schedule of the entropy coefficient or of the target entropy.

    Examples
    --------
    >>> scheduler = EntropyScheduler(EntropyScheduleConfig(decay_steps=9))
    >>> scheduler.step()
    0.009000000000000001
    >>> scheduler.get_info()["remaining_steps"]
    8
    """

    def __init__(self, config: EntropyScheduleConfig | None = None) -> None:
        self.config = config or EntropyScheduleConfig()
        self.taken = 0

    @classmethod
    def of(cls, keys: EntropyAnnealing | TargetEntropyAnnealing, total: int) -> Self:
        """The schedule of a section of the configuration; over ``total`` updates, those of the phase, by default."""
        return cls(EntropyScheduleConfig(keys.initial, keys.final, keys.steps or max(total, 1), keys.kind))

    @property
    def _progress(self) -> float:
        return self.taken / self.config.decay_steps

    @property
    def value(self) -> float:
        """Current value at progress ``p = t/T``, held at the final one after the last step.

        Linear ``i - (i - f) p``; cosine ``f + (i - f) (1 + cos(pi p)) / 2``; exponential ``i exp(ln(f/i) p)``.
        """
        kind, progress = self.config.schedule_type, self._progress
        initial, final = self.config.initial_entropy, self.config.final_entropy
        if progress >= 1.0:
            return final
        if kind == "linear":
            return initial - (initial - final) * progress
        if kind == "cosine":
            return final + (initial - final) * (1.0 + math.cos(math.pi * progress)) / 2.0
        return initial * math.exp(math.log(final / initial) * progress)

    def step(self, steps: int = 1) -> float:
        """Take one step, or several; returns the coefficient from then on."""
        self.taken += steps
        return self.value

    def get_info(self) -> dict[str, float]:
        """``progress`` in 0..1, ``current_entropy`` (the coefficient) and ``remaining_steps``."""
        return {
            "progress": min(self._progress, 1.0),
            "current_entropy": self.value,
            "remaining_steps": max(self.config.decay_steps - self.taken, 0),
        }

    def reset(self) -> None:
        """Return to the beginning."""
        self.taken = 0
