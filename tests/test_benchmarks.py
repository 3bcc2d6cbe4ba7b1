"""What the benchmarks of learners reckon, and what they say of peers that cannot be run."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from finflow.errors import ConfigError

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def in_turn() -> dict[str, Any]:
    """What ``scripts/in_turn.py`` defines."""
    return runpy.run_path(str(SCRIPTS / "in_turn.py"))


def test_matrix_products_are_counted_forward_and_backward(in_turn: dict[str, Any]) -> None:
    rows, weight = torch.randn(2, 11, 7), torch.randn(2, 7, 3, requires_grad=True)
    with in_turn["MatrixProducts"]() as products:
        loss = torch.bmm(rows, weight).sum()
        torch.autograd.grad(loss, weight)
    assert products.operations == 2 * (2 * 2 * 11 * 7 * 3)  # the product, and that of its gradient


def test_ratios_are_taken_round_by_round(in_turn: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    rates = {"ours": [10.0, 40.0, 20.0], "theirs": [5.0, 10.0, 20.0]}  # the machine's speed drifts
    in_turn["print_ratio"](rates, "ours", "theirs", 1.5)
    assert capsys.readouterr().out == "ours / theirs: 2.00 (1.00 to 4.00), wanted at least 1.5\n"


def test_a_peer_that_cannot_be_run_is_named(in_turn: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--peer-python nowhere/python cannot be run: No such file"):
        in_turn["Peer"]("nowhere/python", "--peer-python", "d3rlpy_cql.py", (3, 1, 8))
    with pytest.raises(ConfigError, match=r"--peer-python: d3rlpy_cql\.py ended: ModuleNotFoundError: .*d3rlpy"):
        in_turn["Peer"](sys.executable, "--peer-python", "d3rlpy_cql.py", (3, 1, 8))
