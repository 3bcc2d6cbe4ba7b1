"""What holds on a Ray cluster (checks_on_ray.py), from a process that Ray cannot take along.

Ray's library ends the process it lives in where it gives its cluster up (``std::_Exit``, no exception), and waits in
C++ where no alarm is heard. In a worker of pytest-xdist either would hold the whole suite for ever
(pytest-dev/pytest-xdist#1378).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'finflow[ray]'")

CHECKS = Path(__file__).with_name("checks_on_ray.py")
LONG = 600.0  # seconds; they take 80 on two idle cores


def outcome(checks: Path, report: Path, seconds: float = LONG) -> tuple[int | None, str]:
    """The exit status of checks, none where their process died or hung, and what they said."""
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", f"--junitxml={report}"]
    said = report.with_suffix(".txt")
    with said.open("w") as stream:
        process = subprocess.Popen(
            [*command, str(checks)], stdout=stream, stderr=subprocess.STDOUT, cwd=CHECKS.parents[2], process_group=0
        )
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None, said.read_text()
    return status if report.exists() else None, said.read_text()


@pytest.mark.timeout(2 * LONG + 60.0)
def test_a_cluster_does_what_this_machine_does(tmp_path: Path) -> None:
    """A check that fails is a failure; a process that Ray ended or held is begun once more, and it is said."""
    status, said = outcome(CHECKS, tmp_path / "first.xml")
    if status is None:
        warnings.warn(f"Ray ended the process of the checks, or held it; once more. It said:\n{said}", stacklevel=1)
        status, said = outcome(CHECKS, tmp_path / "second.xml")
    assert status == 0, said
