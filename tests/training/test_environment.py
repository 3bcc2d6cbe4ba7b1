"""The environment of a configuration in one line, and the test window behind a door."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import finflow
from finflow.config import dump_config
from finflow.env.vector_env import PortfolioEnv, PortfolioVectorEnv
from finflow.errors import ConfigError
from finflow.training.data.training_data import prepare
from tests.training.whole_trainings import Make


def length_of(env: PortfolioEnv) -> tuple[int, int]:
    """First bar of an episode, and its decisions until it is truncated."""
    env.reset(seed=0)
    first, count = int(env._portfolios.state.bar[0]), 0
    over = False
    while not over:
        *_, over, _ = env.step(env.action_space.low + 0.2)
        count += 1
    return first, count


def test_training_episodes_begin_anywhere_in_the_training_window(tiny: Make) -> None:
    config = tiny(env__episode_length=15)
    split = prepare(config).split
    env = finflow.make_env(config)
    assert isinstance(env, PortfolioEnv)
    assert length_of(env)[1] == 15
    many = finflow.make_env(config, num_envs=300)
    assert isinstance(many, PortfolioVectorEnv)
    many.reset(seed=0)
    assert len(np.unique(many.state.bar)) > 50
    assert many.state.bar.max() + 15 < split.train_end
    assert (many.state.weights[:, -1] == 1.0).all()
    mixed = finflow.make_env(config, num_envs=300, random_portfolios=True)
    mixed.reset(seed=0)
    assert 0.02 < mixed.state.weights[:, -1].mean() < 0.5


def test_validation_is_played_once_from_its_first_bar_to_its_last(tiny: Make) -> None:
    config = tiny()
    split = prepare(config).split
    first, count = length_of(finflow.make_env(config, "validation"))
    assert (first, first + count) == (split.validation.start, split.validation.stop - 1)
    assert length_of(finflow.make_env(config, "validation", whole_window=False))[1] == config.env.episode_length
    train = finflow.make_env(config, whole_window=True)
    assert sum(length_of(train)) == split.train.stop - 1


def test_the_test_window_is_read_on_request_alone(tiny: Make) -> None:
    """Without that there are no prices after validation."""
    config = tiny()
    split = prepare(config).split
    for name in ("train", "validation"):
        assert finflow.make_env(config, name, num_envs=1).process.panel.n_bars == split.validation_end
    with pytest.raises(ConfigError, match="final_evaluation=True"):
        finflow.make_env(config, split="test", num_envs=4)
    with pytest.raises(ConfigError, match="train, validation, test"):
        finflow.make_env(config, "testing")
    first, count = length_of(finflow.make_env(config, "test", final_evaluation=True))
    assert (first, first + count) == (split.test.start, split.test.stop - 1)


def test_a_file_or_nothing_at_all_is_a_configuration_too(tiny: Make, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(dump_config(tiny(env__max_weight=0.5, env__execution_lag=2)), "utf-8")
    for given in (path, str(path)):
        process = finflow.make_env(given, num_envs=2).process
        assert (process.lag, process.limits.max_weight) == (2, 0.5)
    assert finflow.make_env().action_space.shape == (21,)  # 20 stocks of the embedded market, and cash
