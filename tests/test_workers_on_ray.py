"""Workers of a training as tasks of Ray (checks_workers_on_ray.py), from a process that Ray cannot take along."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'finflow[ray]'")

from tests.experiments.test_ray_cluster import LONG, outcome

CHECKS = Path(__file__).with_name("checks_workers_on_ray.py")


@pytest.mark.timeout(2 * LONG + 60.0)
def test_workers_on_ray_give_what_processes_give(tmp_path: Path) -> None:
    """A check that fails is a failure; a process that Ray ended or held is begun once more, and it is said."""
    status, said = outcome(CHECKS, tmp_path / "first.xml")
    if status is None:
        warnings.warn(f"Ray ended the process of the checks, or held it; once more. It said:\n{said}", stacklevel=1)
        status, said = outcome(CHECKS, tmp_path / "second.xml")
    assert status == 0, said
