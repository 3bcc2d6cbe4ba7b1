"""Search space of a study: keys of the configuration, and the values that each may take."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TypeAlias

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import BaseTrial

from finflow.config import Config, SearchedConfig, changed_config, holds_whole_numbers, leaves

__all__ = ["DEFAULT_SPACE", "Space", "Value", "configured", "draw", "of_configuration", "space_of"]

Value: TypeAlias = bool | int | float | str
Space: TypeAlias = Mapping[str, BaseDistribution]

DEFAULT_SPACE: dict[str, SearchedConfig] = {
    "bcell.alpha_init": SearchedConfig(low=0.1, high=1.5, log=True),
    "bcell.cql_alpha": SearchedConfig(low=0.5, high=20.0, log=True),
    "bcell.actor_lr": SearchedConfig(low=3e-5, high=3e-3, log=True),
    "bcell.critic_lr": SearchedConfig(low=3e-5, high=3e-3, log=True),
    "bcell.iql_expectile": SearchedConfig(low=0.5, high=0.95),
    "bcell.iql_temperature": SearchedConfig(low=0.5, high=10.0, log=True),
    "bcell.gamma": SearchedConfig(low=0.9, high=0.999),
    "bcell.tau": SearchedConfig(low=0.001, high=0.02, log=True),
    "bcell.n_quantiles": SearchedConfig(choices=(8, 16, 32, 64)),
    "bcell.hidden_dim": SearchedConfig(choices=(64, 128, 256)),
    "train.offline_batch_size": SearchedConfig(choices=(128, 256, 512)),
    "train.online_batch_size": SearchedConfig(choices=(64, 128, 256, 512)),
    "objectives.sharpe_beta": SearchedConfig(low=0.0, high=2.0),
    "objectives.lambda_turn": SearchedConfig(low=0.01, high=1.0, log=True),
    "objectives.lambda_cvar": SearchedConfig(low=0.0, high=10.0),
    "objectives.lambda_dd": SearchedConfig(low=0.0, high=2.0),
}
"""Search space where ``tune.space`` is not given."""


def space_of(config: Config) -> dict[str, BaseDistribution]:
    """Distributions of the keys that a configuration searches, in the order of their names."""
    space = DEFAULT_SPACE if config.tune.space is None else config.tune.space
    return {key: _distribution(key, space[key]) for key in sorted(space)}


def _distribution(key: str, searched: SearchedConfig) -> BaseDistribution:
    if searched.choices is not None:
        return CategoricalDistribution(searched.choices)
    if searched.low is None or searched.high is None:
        raise ValueError(f"{key} has neither a range nor choices")
    if holds_whole_numbers(key):
        step = 1 if searched.step is None else int(searched.step)
        return IntDistribution(int(searched.low), int(searched.high), log=searched.log, step=step)
    return FloatDistribution(searched.low, searched.high, log=searched.log, step=searched.step)


def draw(trial: BaseTrial, space: Space) -> dict[str, Value]:
    """Values of all keys for a trial; those that it has already stay."""
    found: dict[str, Value] = {}
    for key, distribution in space.items():
        if isinstance(distribution, FloatDistribution):
            found[key] = trial.suggest_float(
                key, distribution.low, distribution.high, step=distribution.step, log=distribution.log
            )
        elif isinstance(distribution, IntDistribution):
            found[key] = trial.suggest_int(
                key, distribution.low, distribution.high, step=distribution.step, log=distribution.log
            )
        elif isinstance(distribution, CategoricalDistribution):
            found[key] = trial.suggest_categorical(key, distribution.choices)  # type: ignore[assignment]
    return found


def configured(config: Config, values: Mapping[str, object]) -> Config:
    """The configuration with a trial's values.

    Raises
    ------
    ConfigError
        If they do not go together.
    """
    return changed_config(config, values)


def of_configuration(config: Config, space: Space) -> dict[str, Value]:
    """The values that a configuration has itself, as far as the space holds them."""
    own = leaves(config.model_copy(update={"tune": type(config.tune)()}))
    found: dict[str, Value] = {}
    for key, distribution in space.items():
        value = own[key]
        if isinstance(value, str):
            value = json.loads(value)
        if isinstance(distribution, CategoricalDistribution):
            if any(type(value) is type(choice) and value == choice for choice in distribution.choices):
                found[key] = value  # type: ignore[assignment]
        elif isinstance(value, int | float) and distribution._contains(float(value)):
            found[key] = value
    return found


def described(distribution: BaseDistribution) -> str:
    """Describe a distribution in words."""
    if isinstance(distribution, CategoricalDistribution):
        return "one of " + ", ".join(str(choice) for choice in distribution.choices)
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise TypeError(f"no distribution of ours: {distribution}")
    words = f"{distribution.low:g} to {distribution.high:g}"
    if distribution.log:
        words += ", logarithmic"
    step = distribution.step
    return words + (f", step {step:g}" if step is not None and step != 1 else "")
