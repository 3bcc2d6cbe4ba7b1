"""Figures of the benchmarks, and the errors of peers that cannot be run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from finflow.errors import ConfigError

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture(scope="module")
def tools() -> dict[str, Any]:
    """Names that ``scripts/benchmark_tools.py`` defines."""
    return runpy.run_path(str(SCRIPTS / "benchmark_tools.py"))


def test_ratios_are_taken_round_by_round(tools: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    rates = {"ours": [10.0, 40.0, 20.0], "theirs": [5.0, 10.0, 20.0]}  # the machine's speed drifts
    tools["print_ratio"](rates, "ours", "theirs", 1.5)
    assert capsys.readouterr().out == "ours / theirs: 2.00 (1.00 to 4.00), wanted at least 1.5\n"


def test_a_peer_that_cannot_be_run_is_named(tools: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--peer-python nowhere/python cannot be run: No such file"):
        tools["Peer"]("nowhere/python", "--peer-python", "d3rlpy_updates.py", ("cql", 3, 1, 8))
    with pytest.raises(ConfigError, match=r"--peer-python: d3rlpy_updates\.py ended: ModuleNotFoundError: .*d3rlpy"):
        tools["Peer"](sys.executable, "--peer-python", "d3rlpy_updates.py", ("cql", 3, 1, 8))


def test_the_time_of_a_part_is_without_the_parts_that_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    module = runpy.run_path(str(SCRIPTS / "benchmark_training.py"))
    now = [0.0]
    spent = module["Spent"]()
    monkeypatch.setitem(type(spent)._switch.__globals__, "_now", lambda: (now[0], 2.0 * now[0]))

    def wait(seconds: float) -> None:
        now[0] += seconds

    inner = spent.timed("inner", lambda: wait(3.0))

    def outer() -> None:
        wait(1.0)
        inner()
        wait(2.0)
        inner()

    spent.timed("outer", outer)()
    assert spent.clock == {"outer": 3.0, "inner": 6.0}
    assert spent.processor == {"outer": 6.0, "inner": 12.0}
    assert spent.calls == {"outer": 1, "inner": 2}
