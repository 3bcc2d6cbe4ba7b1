"""Options and which of them counts, the answers to wrong ones, and what is shown."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from finflow.cli.option_table import CONFIGURATION, add_options
from finflow.cli.options import Parser, resolve
from finflow.cli.output import describe_configuration, summary_lines
from finflow.config import Config, describe_schema, load_config
from finflow.experiments.jobs.independent_trainings import SeedJob
from tests.commands import refusal


def resolved(*arguments: str) -> Config:
    parser = Parser("test")
    add_options(parser, CONFIGURATION)
    return resolve(parser.parse(arguments))


def test_named_options_set_the_keys_they_stand_for() -> None:
    config = resolved(
        *("--iql-epochs", "7", "--sac-episodes", "8", "--batch-size", "64", "--lr", "1e-3"),
        *("--seed", "3", "--device", "cpu", "--no-cache", "--set", "bcell.cql_alpha=10"),
        "--mixed-precision",
    )
    train = config.train
    assert (train.offline_training_epochs, train.online_episodes, train.seed, train.device) == (7, 8, 3, "cpu")
    assert (train.offline_batch_size, train.online_batch_size) == (64, 64)
    assert (config.bcell.actor_lr, config.bcell.critic_lr, config.bcell.alpha_lr) == (1e-3, 1e-3, 3e-4)
    assert config.bcell.cql_alpha == 10
    assert (config.bcell.mixed_precision, config.bcell.gradient_checkpointing) == (True, False)
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


FIGURES = ("annual_return", "annual_volatility", "sharpe", "max_drawdown", "annual_turnover")
STRATEGIES = {
    "finflow": (0.186, 0.175, 1.06, -0.289, None),
    "momentum": (0.2, 0.23, 0.91, -0.3, 2.35),
    "cash": (0.0, 0.0, None, 0.0, 0.0),
    "equal-weight": (0.192, 0.191, 1.02, -0.315, 0.4),
}


def numbers_of_a_report() -> dict[str, Any]:
    strategies = {name: dict(zip(FIGURES, values, strict=True)) for name, values in STRATEGIES.items()}
    return {"agent": "finflow", "strategies": strategies}


def test_the_summary_has_the_judged_one_first_and_the_others_by_sharpe() -> None:
    numbers = numbers_of_a_report()
    heading, *rows = summary_lines(numbers)
    assert " ".join(heading.split()) == "Return a year Volatility Sharpe Maximum drawdown Turnover a year"
    assert [row.split()[0] for row in rows] == ["finflow", "equal-weight", "momentum", "cash"]
    assert rows[0].split() == ["finflow", "18.6%", "17.5%", "1.06", "-28.9%", "-"]
    assert rows[3].split()[3] == "-"
    _, *few = summary_lines(numbers, ["equal-weight"])
    assert [row.split()[0] for row in few] == ["finflow", "equal-weight"]
    assert len({len(line) for line in (heading, *rows)}) == 1


def test_help_names_every_key_with_its_default() -> None:
    text = describe_configuration()
    for key, _, _, _ in describe_schema():
        assert f"\n{key} = " in text
    assert "\nmarket.path = null\n" in text
    assert "\nmarket.use_cache = true\n" in text
    assert max(map(len, text.splitlines())) <= 110
    _, blank, *section = describe_configuration("acting").splitlines()
    assert blank == ""
    assert [line for line in section if not line.startswith(("acting.", "    "))] == []


def test_of_several_files_the_last_one_that_has_a_key_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("bcell: {gamma: 0.9, tau: 0.1}\n", "utf-8")
    Path("b.yaml").write_text("bcell: {gamma: 0.8}\n", "utf-8")
    bcell = resolved("--config", "a.yaml", "--config", "b.yaml").bcell
    assert (bcell.gamma, bcell.tau) == (0.8, 0.1)
    assert capsys.readouterr().out == "configuration files: a.yaml, then b.yaml; the last one that has a key counts\n"


@pytest.mark.parametrize("word", ["--bogus", "--x"])
def test_nothing_is_suggested_for_what_is_like_no_option(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refusal(capsys, "--mode", "train", word).startswith(f"error: unknown argument {word} (")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user, with the job of three agents, none of them made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    SeedJob(load_config(None, {"train.seeds": 3}, {}), None, Path("job")).begin()  # type: ignore[arg-type]
    Path("old.safetensors").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--mode", "trian"],
            "is not one of train, evaluate, backtest, tune, explain, compare, decide, paper, retrain, audit, inspect, "
            "prefer, demo; did you mean train",
        ),
        (["--mode", "train", "--sed", "3"], "unknown argument --sed; did you mean --seed?"),
        (["train"], "did you mean --mode train?"),
        (["--mode", "train", "bcell.gamma=0.9"], "did you mean --set bcell.gamma=0.9?"),
        (["--mode", "train", "--set", "bcell.gamma"], "needs key=value"),
        (["--mode", "train", "--seed"], "--seed: expected one argument"),
        (["--mode", "train", "--tickers"], "--tickers: expected at least one argument"),
        (["--mode", "train", "--tickers", ","], "market.tickers = []: at least one asset is needed"),
        (["--mode", "train", "--seed", "9" * 5000], "must be a whole number"),
        (
            ["--mode", "train", "--set", "market.path=a\0b"],
            "market.path = 'a\\x00b' (command line): has a character that",
        ),
        (["--mode", "train", "--resume", "none"], "none does not exist: name a run folder"),
        (["--seed", "3"], "--mode is missing"),
        (["--tickers", "AAPL"], "type python main.py --mode train --tickers AAPL"),
        (["--batch-size", "64", "--set", "env.fill=open"], "type python main.py --mode train --batch-size 64"),
        (["--mode", "train", "--mode", "tune"], "--mode is given twice: leave one out"),
        (["--help-config", "markt"], "there is no such section; there are market, features, env"),
        (["--mode", "evaluate", "--resume", "old.pt"], "old.pt is a pickle, which finflow never reads: name old.safet"),
        (["--date", "2020-03-16", "--resume", "a b"], "--mode explain --date 2020-03-16 --resume 'a b'"),
        (["--n-trials", "5"], "--mode tune --n-trials 5"),
        (["--mode", "decide"], "of the agent, or --agent sp500"),
        (["--mode", "evaluate"], "--mode evaluate needs --resume"),
        (["--mode", "backtest"], "needs one of --resume"),
        (["--mode", "backtest", "--resume", "r", "--strategy", "s"], "needs one of --resume"),
        (["--mode", "train", "--strategy", "momentum"], "--strategy belongs to --mode backtest or audit"),
        (["--mode", "evaluate", "--resume", "r", "--recollect"], "--recollect belongs to --mode train or demo"),
        (["--mode", "explain", "--resume", "r"], "--mode explain needs --resume with the run folder or checkpoint of"),
        (["--mode", "compare", "r"], "--mode compare needs two run folders or more"),
        (["--mode", "train", "--output", "x"], "--output belongs to --mode explain or compare or prefer, not"),
        (["--mode", "train", "--date", "2020-03-16"], "--date belongs to --mode explain"),
        (["--mode", "demo", "--resume", "r"], "--mode train --resume RUN"),
        (["--mode", "demo", "--config", "c.yaml"], "--mode train --config FILE"),
        (["--mode", "train", "--market", "planted"], "--market belongs to --mode demo, not to --mode train"),
        (["--mode", "demo", "--market", "plantd"], "'plantd' is not one of embedded, planted; did you mean planted?"),
        (["--mode", "demo", "--market", "planted", "--dry-run"], "two markets of its own: leave dry-run out"),
        (["--mode", "demo", "--market", "planted", "--seeds", "2"], "leave train.seeds out"),
        (
            ["--mode", "evaluate", "--protocol", "walkforward"],
            "not one of holdout, walk-forward, cpcv; did you mean walk",
        ),
        (["--mode", "evaluate", "--resume", "r", "--dry-run"], "--dry-run belongs to --protocol walk-forward or cpcv"),
        (["--mode", "evaluate", "--protocol", "cpcv", "--resume", "none"], "none does not exist: name a run folder"),
        (["--mode", "train", "--protocol", "cpcv"], "--protocol belongs to --mode evaluate, not to --mode train"),
        (
            ["--mode", "backtest", "--strategy", "s", "--dry-run"],
            "--dry-run belongs to --mode train or demo or evaluate or tune or decide or retrain, not to",
        ),
        (["--mode", "train", "--seeds", "0"], "train.seeds = 0 (command line): must be a whole number of at least 1"),
        (["--mode", "train", "--seeds", "3", "--workers", "0"], "--workers: '0' must be a whole number, 1 or more"),
        (["--mode", "train", "--workers", "2"], "--workers has one training to share out"),
        (["--mode", "train", "--universe", "none.yaml"], "universe file none.yaml does not exist"),
        (["--mode", "explain", "--resume", "a", "b", "--date", "2020-01-02"], "--resume takes one run folder"),
        (["--mode", "evaluate", "--resume", "r", "--workers", "2"], "--workers belongs to --protocol walk-forward"),
        (["--mode", "inspect", "r", "--open"], "--open belongs to --mode train or demo"),
        (["--mode", "train", "--resume", "job", "--seeds", "2"], "has 3 agents, and --seeds is 2: to leave some out"),
        (["--mode", "train", "--resume", "job", "--seed", "7"], "train.seed is 7, but the run in job has 0"),
        (["--mode", "train", "--resume", "job", "--universe", "u.yaml"], "leave --universe and --recollect out"),
        (
            ["--mode", "evaluate", "--resume", "job"],
            "job has 0 of 3 agents; make the others with --mode train --resume job",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(
    arguments: list[str], words: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, *arguments)
    assert said.startswith("error: ")
    assert words in said
    assert sorted(path.name for path in desk.iterdir()) == ["job", "old.safetensors"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no universe; write lines such as tech: AAPL MSFT NVDA"),
        ("one: AAPL MSFT\none: JPM KO\n", "line 2: not valid YAML: one is given twice"),
        ("one: AAPL MSFT AAPL\n", "line 1: universe 'one' names AAPL twice"),
        ("a: JPM KO\nb: JPM\n", "line 2: universe 'b' has 1 ticker, and needs at least two"),
        ("../x: JPM KO\n", "universe '../x' cannot be the name of a folder"),
        ("a: {b: 3}\n", "universe 'a' must be a list of tickers"),
        ("AAPL MSFT\n", "line 1: must hold sections"),
    ],
)
def test_a_universe_file_that_cannot_be_used(
    text: str, words: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "u.yaml").write_text(text)
    assert words in refusal(capsys, "--mode", "train", "--universe", "u.yaml")
