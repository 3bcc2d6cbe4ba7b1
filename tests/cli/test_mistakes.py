"""Mistakes on the command line: one line that says what to do instead, status 2, and nothing is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from finflow.config import load_config
from finflow.experiments.jobs.training_jobs import SeedJob
from tests.commands import refusal


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a user, with the job of three agents, none of them made."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    SeedJob(load_config(None, {"train.seeds": 3}, {}), None, Path("job")).begin()  # type: ignore[arg-type]
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
        (["--mode", "train", "--set", "bcell.gama=1"], "unknown key bcell.gama (command line): the nearest valid"),
        (["--mode", "train", "--set", "bcell.gamma=1.5"], "bcell.gamma = 1.5 (command line): must be a number above 0"),
        (["--mode", "train", "--seed", "9" * 5000], "must be a whole number"),
        (
            ["--mode", "train", "--set", "market.path=a\0b"],
            "market.path = 'a\\x00b' (command line): has a character that",
        ),
        (["--mode", "train", "--seed", "x"], "train.seed = 'x' (command line): must be a whole number"),
        (["--mode", "train", "--config", "none.yaml"], "configuration file none.yaml does not exist"),
        (["--mode", "train", "--resume", "none"], "none does not exist: name a run folder"),
        (["--seed", "3"], "--mode is missing"),
        (["--batch-size", "64"], "type python main.py --mode train --batch-size 64"),
        (["--date", "2020-03-16", "--resume", "a b"], "--mode explain --date 2020-03-16 --resume 'a b'"),
        (["--n-trials", "5"], "--mode tune --n-trials 5"),
        (["--mode", "evaluate"], "--mode evaluate needs --resume"),
        (["--mode", "backtest"], "needs one of --resume"),
        (["--mode", "backtest", "--resume", "r", "--strategy", "s"], "needs one of --resume"),
        (["--mode", "train", "--strategy", "momentum"], "--strategy belongs to --mode backtest or audit"),
        (["--mode", "evaluate", "--resume", "r", "--recollect"], "--recollect belongs to --mode train or demo"),
        (["--mode", "explain", "--resume", "r"], "--mode explain needs --resume with a run folder or checkpoint, and"),
        (["--mode", "compare", "r"], "--mode compare needs two run folders or more"),
        (
            ["--mode", "train", "--output", "x"],
            "--output belongs to --mode explain or compare or prefer, not",
        ),
        (["--mode", "train", "--date", "2020-03-16"], "--date belongs to --mode explain"),
        (["--mode", "demo", "--resume", "r"], "--mode train --resume RUN"),
        (["--mode", "demo", "--config", "c.yaml"], "--mode train --config FILE"),
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
    assert [path.name for path in desk.iterdir()] == ["job"]


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
