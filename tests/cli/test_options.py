"""Options, and which of them counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from finflow.cli.configuration import resolve
from finflow.cli.options import Parser, add_configuration_options
from finflow.config import Config


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


@pytest.mark.parametrize(
    ("options", "source"),
    [
        ([], "yfinance"),
        (["--config", "configs/default.yaml"], "yfinance"),  # of the checkout, found from any folder
        (["--set", "market.source=csv", "--set", "market.path=prices.csv"], "csv"),
        (["--config", "mine.yaml"], "parquet"),
        (["--set", "market.source=embedded"], "embedded"),
    ],
)
def test_tickers_are_those_of_yahoo_unless_another_source_is_asked_for(
    options: list[str], source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("market: {source: parquet, path: prices.parquet}\n", encoding="utf-8")
    market = resolved("--tickers", "AAPL", "MSFT,JPM", *options).market
    assert (market.source, market.tickers) == (source, ("AAPL", "MSFT", "JPM"))
    monkeypatch.setenv("FINFLOW_MARKET__SOURCE", "embedded")
    assert resolved("--tickers", "AAPL", "KO").market.source == "embedded"


def test_switches_turn_their_keys_on() -> None:
    assert not resolved().bcell.mixed_precision
    bcell = resolved("--mixed-precision", "--gradient-checkpointing").bcell
    assert (bcell.mixed_precision, bcell.gradient_checkpointing) == (True, True)
    assert not resolved("--mixed-precision").bcell.gradient_checkpointing
