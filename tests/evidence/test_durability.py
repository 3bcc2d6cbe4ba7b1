"""Small versions of the evidence about durability: a training may be stopped by anything, and nothing is lost."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from finflow.config import Config
from finflow.tensor_file import read_tensors, write_tensors
from scripts.evidence.durability import (
    FAULTS,
    Whole,
    faulty,
    in_child,
    killed,
    power_lost,
    small_config,
    undisturbed,
)
from scripts.evidence.durability_page import durability_page
from tests.short_trainings import MONTH_TO_VALIDATE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A training of a few seconds."""
    return small_config(tmp_path_factory.mktemp("durability"), MONTH_TO_VALIDATE)


@pytest.fixture(scope="module")
def whole(config: Config) -> Whole:
    """What it comes to, undisturbed."""
    torch.set_num_threads(1)
    return undisturbed(config)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_killed_at_any_moment_and_resumed_equals_never_stopped(config: Config, whole: Whole, number: int) -> None:
    """At an update, within a write, by the clock."""
    found = killed(config, whole, number)
    assert found["killed"]
    assert found["identical"], found
    assert found["half-written files left"] == 0


@pytest.mark.parametrize(("fault", "passing"), list(zip(FAULTS, (True, False, False), strict=True)))
def test_a_disk_that_fails_in_the_middle_stops_no_training(
    config: Config, whole: Whole, fault: str, passing: bool
) -> None:
    found = faulty(config, whole, fault, passing, 0)
    assert found["identical"], found
    assert found["every file whole"]
    assert found["status"] == (0 if passing else 2)
    assert found["at update"] - found["on the disk then"] <= 7
    assert "cannot write" in found["announced"]
    assert os.strerror(FAULTS[fault]) in found["announced"]
    assert passing or found["ended"].startswith("error: the end of this run could not be written: cannot write")


def test_after_a_loss_of_power_the_run_goes_on_from_the_newest_whole_checkpoint(config: Config, whole: Whole) -> None:
    found = power_lost(config, whole, cuts=30, resumes=1)
    assert found["found"] == {"right and said": 30}
    assert found["identical"] == 1


def test_a_limit_that_the_system_itself_sets_leaves_the_file_before(tmp_path: Path) -> None:
    """No stand-in for the system: the kernel refuses the bytes beyond 10,000."""
    path = tmp_path / "file.safetensors"
    write_tensors(path, {}, {"update": 1})

    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        write_tensors(path, {"a": torch.zeros(10_000)}, {"update": 2})

    status, said = in_child(write)
    assert status == 2
    assert "File too large" in said
    assert read_tensors(path)[1] == {"update": 1}
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_page_counts_what_was_found() -> None:
    kill = {"kind": "write", "phase": "online", "half-written files left": 0, "identical": True}
    fault = {"fault": "full disk", "lasts": "to the end", "number": 0, "status": 2, "at update": 30, "identical": False}
    fault |= {"on the disk then": 28, "every file whole": True, "announced": "cannot write", "ended": "error: ended"}
    power = {"cuts": 10, "found": {"right and said": 9}, "resumes": 2, "identical": 1}
    result = {"kills": [kill, {**kill, "identical": False}], "faults": [fault], "power": power}
    page = durability_page(result | {"code": "c0de", "seconds": {"durability": 1.0}})
    assert "| within a write | 2 | 0, 2 | 0 | 1 of 2 |" in page
    assert "| full disk | to the end | 1 | 2 | 1 of 1 | 2 | 0 of 1 |" in page
    assert "1 of 2 runs" in page
