"""The notebooks and scripts of `examples/` run as they stand, in a folder of their own."""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import smaller_audit  # noqa: F401

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Examples write into the working folder, and import modules that they wrote there."""
    monkeypatch.chdir(tmp_path)
    before = sys.path[:]
    sys.modules.pop("my_rules", None)
    yield
    sys.path[:] = before
    sys.modules.pop("my_rules", None)


def executed(name: str) -> dict[str, Any]:
    """Run the code cells of a notebook in order, in one namespace, as a kernel does; returns the namespace."""
    content = json.loads((EXAMPLES / f"{name}.ipynb").read_text("utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(content["cells"]):
        assert cell.get("outputs", []) == [], "a notebook is kept without what it printed"
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}.ipynb, cell {number}", "exec"), space)
    return space


@pytest.mark.usefixtures("quick_reports")
def test_a_first_agent(capsys: pytest.CaptureFixture[str]) -> None:
    space = executed("first_agent")
    assert space["outcome"].report.is_file()
    assert space["portfolio"].shape == (21,)
    assert space["portfolio"].sum() == pytest.approx(1.0, abs=1e-5)
    assert "beats equal weight: " in capsys.readouterr().out


@pytest.mark.usefixtures("quick_reports")
def test_your_own_prices(capsys: pytest.CaptureFixture[str]) -> None:
    space = executed("your_own_prices")
    assert space["panel"].assets == ("NORTH", "EAST", "SOUTH", "WEST")
    assert space["status"] == 0
    assert "EAST" in space["refusal"]
    assert "broken.csv" in space["refusal"]
    assert "Beats equal weight: " in capsys.readouterr().out


@pytest.mark.usefixtures("quick_reports", "smaller_audit")
def test_your_own_strategy_and_feature_are_audited(capsys: pytest.CaptureFixture[str]) -> None:
    space = executed("your_own_strategy")
    assert (space["judged"], space["honest"], space["caught"]) == (0, 0, 2)
    shown = capsys.readouterr()
    assert "nothing looks ahead" in shown.out
    assert "tomorrow" in shown.err


@pytest.mark.usefixtures("quick_reports")
def test_reading_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    space = executed("reading_a_report")
    shown = space["numbers"]["strategies"]["inverse-volatility"]["sharpe"]
    assert space["again"] == pytest.approx(shown, rel=1e-3)
    assert (space["table"]["low"] <= space["table"]["sharpe"]).all()


def test_the_optimisers_of_skfolio(capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(EXAMPLES / "portfolios_of_skfolio.py"))["main"]([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["minimum-cvar", "hrp", "equal-weight"]
    volatility = [float(line.split("volatility")[1].split("%")[0]) for line in lines]
    assert volatility[0] < volatility[2]


@pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None,
    reason="needs stable-baselines3: pip install 'finflow[sb3]'",
)
def test_a_model_of_stable_baselines3(capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(EXAMPLES / "train_with_sb3.py"))["main"](["--steps", "512"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["sb3-ppo", "equal-weight"]


def test_without_the_package_the_script_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert runpy.run_path(str(EXAMPLES / "train_with_sb3.py"))["main"]([]) == 2
    assert "pip install" in capsys.readouterr().err
