"""Options, and which of them counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.cli.configuration import resolve
from finflow.cli.options import Parser, add_configuration_options
from finflow.config import Config, dump_config
from finflow.errors import ConfigError


def resolved(*arguments: str) -> Config:
    parser = Parser("test")
    add_configuration_options(parser)
    return resolve(parser.parse(arguments))


def test_named_options_set_the_keys_they_stand_for() -> None:
    config = resolved(
        *("--iql-epochs", "7", "--sac-episodes", "8", "--batch-size", "64", "--lr", "1e-3"),
        *("--seed", "3", "--device", "cpu", "--no-cache", "--set", "bcell.cql_alpha=10"),
    )
    train = config.train
    assert (train.offline_training_epochs, train.online_episodes, train.seed, train.device) == (7, 8, 3, "cpu")
    assert (train.offline_batch_size, train.online_batch_size) == (64, 64)
    assert (config.bcell.actor_lr, config.bcell.critic_lr, config.bcell.alpha_lr) == (1e-3, 1e-3, 3e-4)
    assert config.bcell.cql_alpha == 10
    assert not config.market.use_cache


def test_of_two_options_for_one_key_the_later_counts() -> None:
    assert resolved("--seed", "1", "--set", "train.seed=2").train.seed == 2
    assert resolved("--set", "train.seed=2", "--seed", "1").train.seed == 1
    assert resolved() == Config(), "options of one call do not reach the next"


def test_the_command_line_comes_before_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("bcell: {gamma: 0.91, tau: 0.1, cql_alpha: 7}\n", encoding="utf-8")
    monkeypatch.setenv("FINFLOW_BCELL__GAMMA", "0.92")
    monkeypatch.setenv("FINFLOW_BCELL__TAU", "0.2")
    bcell = resolved("--config", str(file), "--set", "bcell.gamma=0.93").bcell
    assert (bcell.gamma, bcell.tau, bcell.cql_alpha) == (0.93, 0.2, 7)


def test_a_configuration_of_the_checkout_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolved("--config", "configs/volatile.yaml").bcell.cql_alpha == 10


def test_tickers_are_those_of_yahoo() -> None:
    market = resolved("--tickers", "AAPL", "MSFT,JPM").market
    assert (market.source, market.tickers) == ("yfinance", ("AAPL", "MSFT", "JPM"))
    assert resolved("--config", "configs/default.yaml", "--tickers", "AAPL", "KO").market.source == "yfinance"


def test_tickers_choose_among_the_columns_of_a_file(tmp_path: Path) -> None:
    market = resolved("--tickers", "A", "B", "--set", "market.source=csv", "--set", "market.path=prices.csv").market
    assert (market.source, market.tickers) == ("csv", ("A", "B"))
    file = tmp_path / "mine.yaml"
    file.write_text("market: {source: parquet, path: prices.parquet}\n", encoding="utf-8")
    assert resolved("--config", str(file), "--tickers", "A", "B").market.source == "parquet"


def test_tickers_choose_among_the_embedded_stocks_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolved("--tickers", "AAPL", "KO", "--set", "market.source=embedded").market.source == "embedded"
    monkeypatch.setenv("FINFLOW_MARKET__SOURCE", "embedded")
    assert resolved("--tickers", "AAPL", "KO").market.source == "embedded"


def test_a_resolved_configuration_can_be_given_back_as_a_file(tmp_path: Path) -> None:
    config = resolved("--tickers", "AAPL", "NO", "--seed", "3")
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    assert resolved("--config", str(tmp_path / "config.yaml")) == config


def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("train:\n  seed: -1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine\.yaml, line 2"):
        resolved("--config", str(tmp_path / "mine.yaml"))


def test_switches_turn_their_keys_on() -> None:
    assert not resolved().bcell.mixed_precision
    bcell = resolved("--mixed-precision", "--gradient-checkpointing").bcell
    assert (bcell.mixed_precision, bcell.gradient_checkpointing) == (True, True)
    assert not resolved("--mixed-precision").bcell.gradient_checkpointing
