"""A run saved in format 2, before the rebuilding of the package: it is inspected, resumed and evaluated.

The fixture is a run stopped in the online phase: guard on, a sub-universe an episode, a resampled history, other costs,
rewards normalised, weights averaged; with its dataset. `FINISHED` is where it ends: with sigma_A at 1, as it was
trained, but with the entropy of today, in log ratios (the code that wrote it ended at a KL of 2.84e-05).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from finflow.cli import main
from finflow.offline.dataset import load_dataset
from finflow.training.checkpoints.checkpoint_reader import configuration_of, read_checkpoint
from finflow.training.checkpoints.run_resolver import Kind, resolve_run

pytestmark = pytest.mark.usefixtures("quick_reports")
FIXTURE = Path(__file__).parent / "fixtures" / "format_2"
FINISHED = {"update": 66, "sharpe": -1.0813722315337895, "generalisation_kl": 2.3628734197700396e-05}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_prices: Callable[..., Path]) -> Path:
    """The folder that the run was made in, with its prices."""
    make_prices(tmp_path / "prices.csv")
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_run_is_inspected(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mode", "inspect", "run"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "intact, SHA-256 verified",
        "format 2",
        "online phase, update 28 (22 of the phase)",
        "bcell/average 2,917",
    ):
        assert words in shown


def test_its_configuration_is_read_with_its_folders(desk: Path) -> None:
    saved = resolve_run(Path("run"))
    assert (saved.kind, saved.folder) == (Kind.RUN, desk / "run")
    config = configuration_of(Path("run"))
    assert (config.bcell.hidden_dim, config.worlds.assets, config.output.logs_dir) == (8, "half", Path("logs"))
    assert read_checkpoint(Path("run")).counters["update"] == 28


def test_it_is_evaluated(desk: Path) -> None:
    assert main(["--mode", "evaluate", "--resume", "run"]) == 0
    found = json.loads((desk / "run" / "reports" / "metrics.json").read_text())
    assert found["strategies"]["finflow"]["sharpe"] is not None


def test_it_goes_on_in_the_units_that_it_was_trained_in(desk: Path) -> None:
    assert main(["--mode", "train", "--resume", "run"]) == 0
    rows = [json.loads(line) for line in (desk / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == sorted(row["update"] for row in rows)
    assert {name: rows[-1][name] for name in FINISHED} == pytest.approx(FINISHED, rel=1e-6)
    events = EventAccumulator(str(desk / "run")).Reload()
    updates = [event.step for event in events.Scalars("online/sharpe")]
    assert updates == [row["update"] for row in rows if "sharpe" in row and row["phase"] == "online"]
    old, (new,) = load_dataset(desk / "offline" / "dataset.npz"), (desk / "offline").glob("dataset-*.npz")
    for name, column in load_dataset(new).arrays().items():
        np.testing.assert_array_equal(column, old.arrays()[name], err_msg=name)
