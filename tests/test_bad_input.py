"""Mistakes as a user makes them, on the real command line: one clear line, status 2, and nothing half-written."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finflow.cli import main
from finflow.config import dump_config, load_config
from finflow.tensor_file import read_tensors, write_tensors
from finflow.training.checkpoints.run_folder import resolve_run
from finflow.training.phases.stopping import request_stop
from tests.commands import refusal
from tests.short_trainings import TINY, write_market

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


def cell(value: str) -> Callable[[list[str]], list[str]]:
    """Put something else in place of B's hundredth price."""

    def change(lines: list[str]) -> list[str]:
        date, first, _, *others = lines[100].split(",")
        return [*lines[:100], ",".join([date, first, value, *others]), *lines[101:]]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cell("-5"), ["prices.csv", "'B'", "negative", "2009-10-16"]),
        (cell(""), ["prices.csv", "'B'", "no price on 2009-10-16", "fill the gap", "market.max_gap"]),
        (cell("n.a.x"), ["prices.csv", "line 101", "'B'", "'n.a.x'", "not a number"]),
        (lambda lines: ["Date,A,B", *(f"{line[:10]},1,2" for line in lines[1:])], ["do not move"]),
        (lambda lines: [*lines, "9999-12-31,1,2,3,4"], ["prices.csv", "9999-12-31", "row 701"]),
        (lambda lines: ["\0" * 100], ["prices.csv", "not a CSV file"]),
    ],
)
def test_bad_prices(
    change: Callable[[list[str]], list[str]], words: list[str], desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = desk / "prices.csv"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    said = refused(capsys, *TRAIN)
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ({"train_end": "2009-12-31", "validation_end": "2010-01-29", "test_end": "2010-02-26"}, "longest feature"),
        ({"train_end": "2010-06-30"}, "move market.train_end"),
        ({"validation_end": "2012-02-01"}, "the test window holds too few bars (2)"),
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


BAD_CHECKPOINTS: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "truncated": (truncate, ["can be read", "damaged", "start a new run"]),
    "with a key this version does not know": (
        lambda run: rewritten(run, lambda _, state: state.update(config=state["config"].replace("gamma:", "gama:"))),
        ["checkpoint_latest", "unknown key bcell.gama", "the finflow that wrote it"],
    ),
    "with other networks": (
        lambda run: rewritten(run, lambda tensors, _: tensors.pop(min(tensors))),
        ["checkpoint_latest", "another version of finflow", "does not fit at"],
    ),
    "no checkpoint at all": (lambda run: shutil.rmtree(run / "models"), ["run has no checkpoint"]),
}


@pytest.mark.parametrize(("mode", "case"), [*(("train", case) for case in BAD_CHECKPOINTS), ("evaluate", "truncated")])
def test_a_checkpoint_that_cannot_be_used(mode: str, case: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, words = BAD_CHECKPOINTS[case]
    spoil(run)
    said = refused(capsys, "--mode", mode, "--resume", "run")
    assert all(word in said for word in words), said


PROTOCOL = ("--mode", "evaluate", "--protocol")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["walk-forward", "--config", "tiny.yaml"], ["fold 1, seed 0 cannot be trained", "use more data"]),
        (
            ["cpcv", "--config", "tiny.yaml", "--dry-run"],
            ["6 groups of the", "bars before the test window", "evaluation.protocol.groups", "more data"],
        ),
        (["cpcv", "--set", "evaluation.protocol.test_groups=6"], ["test_groups = 6 must be below", "groups = 6"]),
        (["walk-forward", "--seeds", "0"], ["evaluation.protocol.seeds", "at least 1"]),
    ],
)
def test_a_protocol_that_cannot_be_run(
    arguments: list[str], words: list[str], desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, *PROTOCOL, *arguments)
    assert [word for word in words if word not in said] == []


def test_a_damaged_dataset_is_found_before_a_resumed_run_is_touched(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (dataset,) = Path("offline").glob("*.npz")
    dataset.write_bytes(dataset.read_bytes()[:5000])
    for arguments in (TRAIN, ("--mode", "train", "--resume", "run")):
        said = refused(capsys, *arguments)
        assert f"{dataset} is not a complete finflow dataset" in said
        assert "delete it, or collect it anew with --recollect" in said


# --- folders


EVALUATE = ("--mode", "evaluate", "--resume", "run")
BACKTEST = ("--mode", "backtest", "--config", "tiny.yaml", "--strategy", "equal-weight")


def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, whom no permission stops: so the system's refusal is made here."""
    make = os.mkdir

    def refuse(path: Any, *rest: Any, **named: Any) -> None:
        if "elsewhere" in Path(path).parts:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        make(path, *rest, **named)

    monkeypatch.setattr(os, "mkdir", refuse)


def occupied(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("elsewhere").write_text("mine")


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def fill(path: Path, data: Any) -> int:
        if "elsewhere" not in path.parts:
            return write(path, data)
        write(path, data[:100])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", fill)


@pytest.mark.parametrize(
    ("arguments", "key", "obstruct", "words"),
    [
        (TRAIN, "output.logs_dir", read_only, "Read-only file system; choose another output.logs_dir"),
        (EVALUATE, "output.logs_dir", read_only, "Read-only file system; choose another output.logs_dir"),
        (TRAIN, "output.offline_dir", occupied, "a file is in the way; choose another output.offline_dir"),
        (BACKTEST, "output.logs_dir", occupied, "a file is in the way; choose another output.logs_dir"),
        (TRAIN, "output.offline_dir", full, "No space left on device; free some space there or choose another"),
        (EVALUATE, "output.logs_dir", full, "No space left on device; free some space there or choose another"),
    ],
)
def test_a_folder_that_cannot_be_written(
    arguments: tuple[str, ...],
    key: str,
    obstruct: Callable[[pytest.MonkeyPatch], None],
    words: str,
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    obstruct(monkeypatch)
    said = refused(capsys, *arguments, "--set", f"{key}=elsewhere")
    assert words in said
    assert "elsewhere" in said


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

    monkeypatch.setattr("finflow.training.data.training_data.collect", press_twice)
    before = content(desk)
    said = refusal(capsys, *TRAIN, status=130)
    assert said == "stopped before the first checkpoint: nothing to continue from\n"
    assert content(desk) == before
