"""Mistakes as a user makes them, on the real command line: one clear line, status 2, and nothing half-written."""

from __future__ import annotations

import errno
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from finflow.cli import main
from finflow.cli.exit_status import run_safely
from finflow.config import dump_config, load_config
from finflow.tensor_file import read_tensors, write_tensors
from finflow.training.checkpoints.checkpoint_reader import read_checkpoint
from finflow.training.checkpoints.run_resolver import resolve_run
from finflow.training.judging import evaluations, held_out
from finflow.training.phases.stopping import request_stop
from tests.commands import refusal
from tests.short_trainings import TINY, market_prices, write_market

ROOT = Path(__file__).parents[1]

TRAIN = ("--mode", "train", "--config", "tiny.yaml")


def furnish(folder: Path) -> None:
    """What the user has: prices and a configuration."""
    write_market(folder / "prices.csv")
    keys = {**TINY, "market.path": "prices.csv", "output.logs_dir": "logs", "output.offline_dir": "offline"}
    (folder / "tiny.yaml").write_text(dump_config(load_config(None, keys, environ={})))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the user works."""
    furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    return tmp_path


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was stopped after its first update."""
    folder = tmp_path_factory.mktemp("stopped")
    furnish(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        request_stop()
        assert main(TRAIN) == 130
    return folder


@pytest.fixture
def run(desk: Path, stopped: Path) -> Path:
    """A copy of that run, and of the data that it was trained on."""
    shutil.copytree(stopped / "offline", desk / "offline")
    (source,) = (stopped / "logs").iterdir()
    shutil.copytree(source, desk / "run")
    return Path("run")


def content(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The line that a mistake is answered with, after which everything is as it was."""
    before = content(Path())
    said = refusal(capsys, *arguments)
    assert said.startswith("error: ")
    assert content(Path()) == before
    return said


# --- prices


def no_network(tickers: list[str], **_: Any) -> None:
    raise ConnectionError("Could not resolve host: query2.finance.yahoo.com")


def all_but_nope(tickers: list[str], **_: Any) -> pd.DataFrame:
    close = pd.DataFrame({name: market_prices()["A"] for name in tickers if name != "NOPE"})
    return pd.concat({"Close": close}, axis=1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (no_network, ["no prices could be downloaded for AAPL, NOPE", "check the network", "resolve host"]),
        (all_but_nope, ["no prices for NOPE", "check the spelling or leave it out of market.tickers"]),
    ],
)
def test_tickers_that_cannot_be_had(
    answer: Callable[..., Any],
    words: list[str],
    desk: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("yfinance.download", answer)
    monkeypatch.setattr("finflow.market.sources.yahoo._wait", lambda seconds: None)
    said = refused(capsys, "--mode", "train", "--tickers", "AAPL", "NOPE", "--set", "market.cache_dir=cache")
    assert all(word in said for word in words)


def cell(value: str) -> Callable[[list[str]], list[str]]:
    """Put something else in place of B's hundredth price."""

    def change(lines: list[str]) -> list[str]:
        date, first, _, *others = lines[100].split(",")
        return [*lines[:100], ",".join([date, first, value, *others]), *lines[101:]]

    return change


def taking_turns(lines: list[str]) -> list[str]:
    """A trades first, and B after A has ended."""
    rows = [line.split(",") for line in lines[1:]]
    return ["Date,A,B", *(f"{row[0]},{row[1]}," if row[0] < "2010" else f"{row[0]},,{row[2]}" for row in rows)]


BAD_PRICES: dict[str, tuple[Callable[[list[str]], list[str]], list[str]]] = {
    "unsorted dates": (lambda lines: [*lines[:100], lines[101], lines[100], *lines[102:]], ["ascending", "sort"]),
    "duplicate dates": (lambda lines: [*lines[:101], *lines[100:]], ["2009-10-16", "twice"]),
    "a negative price": (cell("-5"), ["'B'", "negative", "2009-10-16"]),
    "a price of zero": (cell("0"), ["'B'", "zero", "2009-10-16"]),
    "a missing price": (cell(""), ["'B'", "no price on 2009-10-16", "fill the gap", "market.max_gap"]),
    "text in a number column": (cell("n.a.x"), ["line 101", "'B'", "'n.a.x'", "not a number"]),
    "one row": (lambda lines: lines[:2], ["two dates", "only one row"]),
    "a header alone": (lambda lines: lines[:1], ["no rows"]),
    "one asset": (lambda lines: [",".join(line.split(",")[:2]) for line in lines], ["two assets", "'A'"]),
    "no common dates": (taking_turns, ["no common dates"]),
    "prices that never move": (lambda lines: ["Date,A,B", *(f"{d[:10]},1,2" for d in lines[1:])], ["do not move"]),
    "an impossible date": (lambda lines: [*lines, "9999-12-31,1,2,3,4"], ["9999-12-31", "row 701"]),
    "zero bytes": (lambda lines: ["\0" * 100], ["not a CSV file"]),
}


@pytest.mark.parametrize("case", BAD_PRICES)
def test_bad_prices(case: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = BAD_PRICES[case]
    path = desk / "prices.csv"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    said = refused(capsys, *TRAIN)
    assert all(word in said for word in words), said
    assert "prices.csv" in said or case == "prices that never move"


def one_file_an_asset(desk: Path) -> None:
    (desk / "assets").mkdir()
    for name in "ABCD":
        market_prices()[[name]].set_axis(["Close"], axis=1).to_csv(desk / "assets" / f"{name}.csv")


BAD_FILES: dict[str, tuple[str, str, str, list[str]]] = {
    "text in the file of an asset": ("path=assets", "assets/B.csv", "Date,Close\n2009-06-01,x\n", ["line 2", "'x'"]),
    "rates in percent": ("cash_rate=rates.csv", "rates.csv", "Date,rate\n2009-01-01,5.25\n", ["line 2", "fractions"]),
    "a list that names an asset twice": ("tickers_file=list.txt", "list.txt", "A, B\nA\n", ["list.txt, line 2", "'A'"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_files_beside_the_prices(case: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setting, name, text, words = BAD_FILES[case]
    one_file_an_asset(desk)
    (desk / name).write_text(text)
    said = refused(capsys, *TRAIN, "--set", f"market.{setting}")
    assert all(word in said for word in [Path(name).name, *words]), said


def test_damaged_prices_without_a_network_are_refused_and_with_no_cache_asked_for_anew(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same request needs no network, unless it is damaged or --no-cache is given."""
    asked: list[list[str]] = []

    def answer(tickers: list[str], **_: Any) -> pd.DataFrame:
        asked.append(tickers)
        return pd.concat({"Close": market_prices()[["A", "B"]]}, axis=1)

    monkeypatch.setattr("finflow.market.sources.yahoo._wait", lambda seconds: None)
    # What is done with the prices is no part of this: one compared strategy, and no section that plays again.
    monkeypatch.setattr(held_out, "COMPARED", ("buy-and-hold",))
    monkeypatch.setattr(held_out, "sections_of", lambda *given: ())
    monkeypatch.setattr(held_out, "write_report", lambda folder, data: folder / "report.html")
    ends = [f"market.{key}" for key in ("train_end=2011-06-30", "validation_end=2011-10-31", "cache_dir=cache")]
    words = ["--mode", "backtest", "--strategy", "equal-weight", "--tickers", "A", "B"]
    words += [word for end in ends for word in ("--set", end)]
    monkeypatch.setattr("yfinance.download", answer)
    assert main(words) == 0
    monkeypatch.setattr("yfinance.download", no_network)
    assert main(words) == 0
    assert "check the network" in refused(capsys, *words, "--no-cache")
    (stored,) = Path("cache").glob("*.parquet")
    stored.write_bytes(stored.read_bytes()[:-9])
    assert "the stored prices in cache are damaged, and no prices" in refused(capsys, *words)
    monkeypatch.setattr("yfinance.download", answer)
    assert main(words) == 0
    assert main([*words, "--no-cache"]) == 0
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ({"train_end": "2009-12-31", "validation_end": "2010-01-29", "test_end": "2010-02-26"}, "longest feature"),
        ({"train_end": "2010-06-30"}, "move market.train_end"),
        ({"validation_end": "2011-10-04"}, "the validation window holds too few bars (2)"),
        ({"validation_end": "2012-02-01"}, "the test window holds too few bars (2)"),
        ({"validation_end": "2012-02-03"}, "the test window is empty"),
    ],
)
def test_too_few_prices(ends: dict[str, str], words: str, desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Seen before anything is learned: a test window that is too short would otherwise be met at the very end."""
    changes = [word for key, date in ends.items() for word in ("--set", f"market.{key}={date}")]
    assert words in refused(capsys, *TRAIN, *changes)


# --- checkpoints


def rewritten(run: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Leave a run one checkpoint, with something changed in it."""
    tensors, state = read_tensors(resolve_run(run).find_checkpoint())
    change(tensors, state)
    for path in (run / "models").iterdir():
        path.unlink()
    write_tensors(run / "models" / "checkpoint_latest.safetensors", tensors, state)


def truncate(run: Path) -> None:
    whole = resolve_run(run).find_checkpoint().read_bytes()
    for path in (run / "models").iterdir():
        path.unlink()
        path.write_bytes(whole[:-1000])


def next_format(run: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        rewritten(run, lambda tensors, state: patch.setattr("finflow.tensor_file.VERSION", 2))


BAD_CHECKPOINTS: dict[str, tuple[Callable[[Path], object], list[str], list[str]]] = {
    "truncated": (truncate, [], ["can be read", "damaged", "start a new run"]),
    "of another format": (next_format, [], ["format version 2", "reads version 3", "the finflow that wrote it"]),
    "with a key this version does not know": (
        lambda run: rewritten(run, lambda _, state: state.update(config=state["config"].replace("gamma:", "gama:"))),
        [],
        ["checkpoint_latest", "unknown key bcell.gama", "the finflow that wrote it"],
    ),
    "with other networks": (
        lambda run: rewritten(run, lambda tensors, _: tensors.pop(min(tensors))),
        [],
        ["checkpoint_latest", "another version of finflow", "does not fit at"],
    ),
    "of another configuration": (lambda run: None, ["--set", "bcell.gamma=0.9"], ["bcell.gamma is 0.9", "has 0.99"]),
    "of other prices": (
        lambda run: rewritten(run, lambda _, state: state.update(market="x")),
        [],
        ["trained on other prices"],
    ),
    "no checkpoint at all": (lambda run: shutil.rmtree(run / "models"), [], ["run has no checkpoint"]),
}


@pytest.mark.parametrize("case", BAD_CHECKPOINTS)
def test_a_checkpoint_that_cannot_be_resumed(case: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, options, words = BAD_CHECKPOINTS[case]
    spoil(run)
    said = refused(capsys, "--mode", "train", "--resume", "run", *options)
    assert all(word in said for word in words), said


PROTOCOL = ("--mode", "evaluate", "--protocol")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["walk-forward", "--config", "tiny.yaml"],
            ["fold 1, seed 0 cannot be trained", "use more data"],
        ),
        (
            ["cpcv", "--config", "tiny.yaml"],
            ["6 groups of the", "bars before the test window", "evaluation.protocol.groups", "more data"],
        ),
        (["cpcv", "--set", "evaluation.protocol.test_groups=6"], ["test_groups = 6 must be below", "groups = 6"]),
        (["walk-forward", "--seeds", "0"], ["evaluation.protocol.seeds", "at least 1"]),
        (["crossvalidation", "--config", "tiny.yaml"], ["holdout, walk-forward, cpcv"]),
    ],
)
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_protocol_that_cannot_be_run(
    arguments: list[str], words: list[str], dry: list[str], desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *PROTOCOL, *arguments, *dry)
    assert [word for word in words if word not in said] == []


def test_a_protocol_by_a_run_without_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run / "models")
    assert "run has no checkpoint" in refused(capsys, *PROTOCOL, "cpcv", "--resume", str(run))


def test_a_checkpoint_that_cannot_be_evaluated(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truncate(run)
    assert "damaged" in refused(capsys, "--mode", "evaluate", "--resume", "run")


def test_a_damaged_dataset_is_found_before_a_resumed_run_is_touched(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset,) = Path("offline").glob("*.npz")
    dataset.write_bytes(dataset.read_bytes()[:5000])
    for arguments in (TRAIN, ("--mode", "train", "--resume", "run")):
        said = refused(capsys, *arguments)
        assert f"{dataset} is not a complete finflow dataset" in said
        assert "delete it, or collect it anew with --recollect" in said


def test_a_stale_dataset_is_refused_and_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (dataset,) = Path("offline").glob("*.npz")
    before = content(Path())
    pretrain = runpy.run_path(str(ROOT / "scripts" / "pretrain_iql.py"))["main"]
    assert run_safely(pretrain, ["--config", "tiny.yaml", "--seed", "3", "--save-path", str(dataset)]) == 2
    assert (
        "was collected with other seed; collect it anew with --recollect, or use another file"
        in capsys.readouterr().err
    )
    assert content(Path()) == before


def test_a_log_cut_off_by_a_kill_is_read_as_far_as_it_goes(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"phase": "offline", "update": 50}\n{"phase": "offline", "upd')
    rows = evaluations._logged(read_checkpoint(run), run, "metrics.jsonl")
    assert rows == ['{"phase": "offline", "update": 50}']


# --- folders

EVALUATE = ("--mode", "evaluate", "--resume", "run")
BACKTEST = ("--mode", "backtest", "--config", "tiny.yaml", "--strategy", "equal-weight")
PLACES = [(TRAIN, "output.logs_dir"), (TRAIN, "output.offline_dir"), (EVALUATE, "output.logs_dir")]
PLACES.append((BACKTEST, "output.logs_dir"))


@pytest.mark.parametrize(("arguments", "key"), PLACES)
def test_a_read_only_folder(
    arguments: tuple[str, ...],
    key: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Tests may run as root, whom no permission stops: so the system's refusal is made here."""
    make = os.mkdir

    def refuse(path: Any, *rest: Any, **named: Any) -> None:
        if "sealed" in Path(path).parts:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        make(path, *rest, **named)

    Path("sealed").mkdir()
    monkeypatch.setattr(os, "mkdir", refuse)
    said = refused(capsys, *arguments, "--set", f"{key}=sealed/new")
    assert "Read-only file system; choose another" in said
    assert "sealed/new" in said


@pytest.mark.parametrize(("arguments", "key"), PLACES)
def test_a_file_in_the_place_of_a_folder(
    arguments: tuple[str, ...], key: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("taken").write_text("mine")
    said = refused(capsys, *arguments, "--set", f"{key}=taken")
    assert f"a file is in the way; choose another {key}" in said


@pytest.mark.parametrize(("arguments", "key"), PLACES)
def test_a_full_disk_at_the_start(
    arguments: tuple[str, ...],
    key: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write = Path.write_bytes

    def fill(path: Path, data: Any) -> int:
        if "full" not in path.parts:
            return write(path, data)
        write(path, data[:100])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", fill)
    said = refused(capsys, *arguments, "--set", f"{key}=full/new")
    assert f"No space left on device; free some space there or choose another {key}" in said


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_to_go_on_from(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flush = os.fsync

    def fill(descriptor: int) -> None:
        if any(desk.glob("logs/*/models/checkpoint_000000007*")):
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fill)
    said = refusal(capsys, *TRAIN)
    (folder,) = (desk / "logs").iterdir()
    assert "No space left on device; " in said
    assert said.endswith(f"continue with: python main.py --mode train --resume {folder.relative_to(desk)}\n")
    assert not list(desk.rglob("*.tmp"))
    for path in (folder / "models").iterdir():
        assert read_tensors(path)[1]["training"]["counters"]["update"] == 7


# --- Ctrl-C


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "main.py"), *arguments],
        cwd=folder,
        env=environment,
        stdout=(folder / "out.txt").open("w"),
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen[str], seen: Callable[[], bool]) -> None:
    while not seen():
        assert process.poll() is None
        time.sleep(0.02)


def test_ctrl_c_writes_a_checkpoint_from_which_the_run_goes_on(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = started(desk, *TRAIN, "--sac-episodes", "400")
    wait_for(process, lambda: "online (B-Cell)" in (desk / "out.txt").read_text())
    (folder,) = (desk / "logs").iterdir()
    before = (folder / "config.yaml").read_bytes()
    said = refusal(capsys, "--mode", "train", "--resume", str(folder))
    assert f"error: another process is training in {folder}; wait for it" in said
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    asked, end = said.strip().splitlines()
    assert asked == "stopping after the next update; once more to stop at once"
    assert end == f"stopped; to continue: python main.py --mode train --resume {folder.relative_to(desk)}"
    latest = folder / "models" / "checkpoint_latest.safetensors"
    counters = read_tensors(latest)[1]["training"]["counters"]
    assert counters["phase"] == "online"
    assert not list(desk.rglob("*.tmp"))
    assert (folder / "config.yaml").read_bytes() == before
    request_stop()
    assert main(["--mode", "train", "--resume", str(folder)]) == 130
    later = read_tensors(latest)[1]["training"]["counters"]
    moved = [later[name] - counters[name] for name in ("vector_step", "update")]
    assert sum(moved) > 0
    assert max(moved) == 1  # a step of the warm-up has no update, and not every update a step


def test_ctrl_c_in_the_final_evaluation_stops_at_once(desk: Path) -> None:
    process = started(desk, *TRAIN, "--sac-episodes", "0")
    wait_for(process, lambda: "judging" in (desk / "out.txt").read_text())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    (folder,) = (desk / "logs").iterdir()
    assert (process.returncode, said.count("\n")) == (130, 1)
    assert said.startswith("stopped; to continue: ")
    assert not (folder / "reports").exists()
    assert not list(desk.rglob(".*"))


def test_ctrl_c_before_the_first_checkpoint_leaves_nothing(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def press_twice(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("finflow.training.data.offline_data.collect", press_twice)
    before = content(desk)
    said = refusal(capsys, *TRAIN, status=130)
    assert said == "stopped before the first checkpoint: nothing to continue from\n"
    assert content(desk) == before
