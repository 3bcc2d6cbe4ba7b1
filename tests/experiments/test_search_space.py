"""What a study searches where no space is given: keys that the online algorithm reads, around their defaults."""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from finflow.config import Config, load_config
from finflow.config.loading import values_by_key
from finflow.experiments.tuning.study import space_of

OFF_POLICY = {"bcell.alpha_init", "bcell.cql_alpha", "bcell.expansion", "bcell.tau", "train.online_batch_size"}


def of(algorithm: str) -> Config:
    return load_config(None, {"online.algorithm": algorithm}, {})


def test_soft_actor_critic_is_searched_with_the_decisions_that_it_looks_ahead() -> None:
    space = space_of(of("sac"))
    assert set(space) >= OFF_POLICY | {"bcell.actor_lr", "bcell.critic_lr", "bcell.n_quantiles"}
    assert not any(key.startswith("online.") for key in space)
    assert list(space) == sorted(space)


@pytest.mark.parametrize("algorithm", ["ppo", "trpo", "a2c"])
def test_on_policy_learning_is_searched_without_what_it_does_not_read(algorithm: str) -> None:
    space = space_of(of(algorithm))
    assert not OFF_POLICY & set(space)
    assert {"online.clip", "online.gae_lambda", "online.entropy_coefficient"} <= set(space)


@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_every_default_lies_in_its_range(algorithm: str) -> None:
    """So that a study can begin with the configuration as it is."""
    config = of(algorithm)
    values = values_by_key(config)
    for key, distribution in space_of(config).items():
        assert isinstance(distribution, CategoricalDistribution | FloatDistribution | IntDistribution)
        if isinstance(distribution, CategoricalDistribution):
            assert values[key] in distribution.choices, key
        else:
            assert distribution.low <= values[key] <= distribution.high, key


def test_a_space_that_is_given_is_the_whole_space() -> None:
    given = {"tune.space": {"bcell.expansion": {"low": 0, "high": 32, "step": 8}}}
    space = space_of(load_config(None, given, {}))  # type: ignore[arg-type]
    assert list(space) == ["bcell.expansion"]
    assert space["bcell.expansion"] == IntDistribution(0, 32, step=8)
