"""Small versions of the evidence about durability: a training may be stopped by anything, and nothing is lost."""

from __future__ import annotations

import os

import pytest
import torch

from finflow.config import Config
from scripts.evidence.durability import FAULTS, Whole, faulty, killed, power_lost, small_config, undisturbed

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A training of a few seconds, with a month to validate on: playing a year of it is most of a training."""
    return small_config(tmp_path_factory.mktemp("durability"), {"market.train_end": "2021-11-30"})


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
