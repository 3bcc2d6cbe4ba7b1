"""The commands of `examples/README.md`, the cells of its notebooks and the Python of README.md, as they stand."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from finflow.training.judging import held_out
from tests.test_guide_round import as_pattern
from tests.training.conftest import smaller_audit  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
#: The commands of the page, in their order.
COMMANDS = [
    shlex.split(line) for line in re.findall(r"^\$ (.+)$", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
]
#: Names of the notebooks whose output is kept.
WITH_OUTPUT = ("first_agent",)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A copy of the folder that the page changes to: examples write there, and import modules that they wrote."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("logs", "data", "*.csv"))
    assert COMMANDS[0] == ["cd", "examples"]
    monkeypatch.chdir(tmp_path / COMMANDS[0][1])
    before = sys.path[:]
    sys.modules.pop("my_rules", None)
    yield
    sys.path[:] = before
    sys.modules.pop("my_rules", None)


def command_of(name: str) -> list[str]:
    """The one command of the page that names a file of the folder."""
    (found,) = (words for words in COMMANDS if name in words)
    return found


def run_script(name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a script by the command of the page, in this process; returns the exit status."""
    python, script, *arguments = command_of(name)
    assert (python, script) == ("python", name)
    monkeypatch.setattr(sys, "argv", [script, *arguments])
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def executed(name: str) -> dict[str, Any]:
    """Run the code cells of a notebook in order, in one namespace, as a kernel does; returns the namespace."""
    *jupyter, file = command_of(f"{name}.ipynb")
    assert jupyter == ["jupyter", "lab"]
    content = json.loads(Path(file).read_text("utf-8"))
    assert (content["nbformat"], content["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    assert any(cell.get("outputs") for cell in content["cells"]) == (name in WITH_OUTPUT)
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(content["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}.ipynb, cell {number}", "exec"), space)
    return space


def kept_output(name: str) -> str:
    """What a notebook has printed when it was kept."""
    content = json.loads((EXAMPLES / f"{name}.ipynb").read_text("utf-8"))
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} == {"stream"}
    return "".join("".join(output["text"]) for output in outputs)


def test_the_page_has_a_command_for_every_example() -> None:
    there = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")} - {"my_rules.py"}
    run = {word for words in COMMANDS for word in words if word.endswith((".py", ".ipynb"))}
    assert run == there
    listed = re.findall(r"^\| `([\w.]+)` \|", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(there)
    others = {tuple(words[:2]) for words in COMMANDS if not run.intersection(words)}
    assert others == {("cd", "examples"), ("pip", "install")}


@pytest.mark.usefixtures("quick_reports")
def test_the_python_of_the_readme_prints_what_the_readme_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing was found the agent holds a reference, whose figures no processor changes; t alone is a figure of
    what was learned."""
    monkeypatch.setattr(held_out, "COMPARED", ("equal-weight", "buy-and-hold", "inverse-volatility"))
    text = (ROOT / "README.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed = stable(capsys.readouterr().out)
    assert as_pattern(stable(shown), True).fullmatch(printed), printed


def stable(text: str) -> str:
    """Text with blanks as one, without t statistics and the time in the name of a run."""
    text = re.sub(r"t = -?\d+\.\d|logs/\d{8}_\d{6}", "#", text)
    return " ".join(text.split())


@pytest.mark.usefixtures("quick_reports")
def test_a_first_agent(capsys: pytest.CaptureFixture[str]) -> None:
    """What is kept and what is printed say the same: something was found, and A is held most."""
    space = executed("first_agent")
    assert space["outcome"].report.is_file()
    assert space["portfolio"].shape == (4,)
    assert space["portfolio"].sum() == pytest.approx(1.0, abs=1e-5)
    for text in (capsys.readouterr().out, kept_output("first_agent")):
        assert "beats equal weight: yes" in text
        assert "of the learned policy, the rest inverse volatility" in text
        asked = {name: float(weight) for name, weight in re.findall(r"^(A|B|C) +\S+ +(\S+)$", text, re.MULTILINE)}
        assert asked["A"] > 0.6 > 0.25 > max(asked["B"], asked["C"])


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


def test_the_made_up_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_script("ragged_prices.py", monkeypatch) == 0
    assert Path("prices.csv").read_text("utf-8").startswith("Date,ASH,")


def test_the_optimisers_of_skfolio(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script("portfolios_of_skfolio.py", monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["minimum-cvar", "hrp", "equal-weight"]
    volatility = [float(line.split("volatility")[1].split("%")[0]) for line in lines]
    assert volatility[0] < volatility[2]


@pytest.mark.skipif(
    importlib.util.find_spec("stable_baselines3") is None, reason="needs stable-baselines3: pip install 'finflow[sb3]'"
)
def test_a_model_of_stable_baselines3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_script("train_with_sb3.py", monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["sb3-ppo", "equal-weight"]


def test_without_the_package_the_script_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    assert runpy.run_path(str(EXAMPLES / "train_with_sb3.py"))["main"]([]) == 2
    assert "pip install" in capsys.readouterr().err
