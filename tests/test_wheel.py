"""The distribution: a wheel that works outside the checkout, and a Dockerfile that copies what is there."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from finflow.cli import options
from tests.short_trainings import TINY, write_prices

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "configs", "finflow")


def run(*command: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a command that must succeed."""
    own = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
OFFLINE = ("--quiet", "--no-deps", "--no-index")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged: building leaves folders behind."""
    missing = [name for name in ("pip", "setuptools") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"building a wheel needs {' and '.join(missing)} in this environment")
    source = tmp_path_factory.mktemp("wheel") / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def installed(source: Path) -> Path:
    """A folder with the wheel installed in it, without its dependencies: those of the environment serve."""
    folder = source.parent
    run(*PIP, "wheel", ".", *OFFLINE, "--no-build-isolation", "--wheel-dir", "../dist", folder=source)
    (wheel,) = (folder / "dist").glob("finflow-*.whl")
    run(*PIP, "install", *OFFLINE, "--target", str(folder / "site"), str(wheel), folder=folder)
    return folder / "site"


def test_the_wheel_holds_every_module_template_and_shipped_configuration(installed: Path) -> None:
    modules = {path.relative_to(ROOT / "finflow") for path in (ROOT / "finflow").rglob("*.py")}
    templates = {path.relative_to(ROOT / "finflow") for path in (ROOT / "finflow").rglob("templates/*")}
    assert templates
    assert {path for path in modules | templates if not (installed / "finflow" / path).is_file()} == set()
    shipped = {path.name: path.read_text("utf-8") for path in (installed / "finflow" / "presets").iterdir()}
    assert shipped == {path.name: path.read_text("utf-8") for path in (ROOT / "configs").iterdir()}
    assert not (installed / "configs").exists()
    agents = {path.relative_to(ROOT / "finflow") for path in (ROOT / "finflow" / "agents").rglob("*") if path.is_file()}
    assert agents
    assert {path for path in agents if not (installed / "finflow" / path).is_file()} == set()


def test_a_demo_runs_from_the_wheel_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    write_prices(tmp_path / "prices.csv")
    small = {
        **TINY,
        "train.online_episodes": 2,
        "train.offline_episodes": 6,
        "market.path": "prices.csv",
        "output.logs_dir": "runs",
    }
    options = [word for key, value in small.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    program = str(installed / "bin" / "finflow")
    # compiling takes longer than the demo, and is the same anywhere
    plain = {"PYTHONPATH": str(installed), "NUMBA_DISABLE_JIT": "1"}
    shown = run(sys.executable, "-P", program, "--mode", "demo", *options, folder=tmp_path, environment=plain)
    (report,) = (tmp_path / "runs").glob("*/reports/report.html")
    assert f"report: {report.relative_to(tmp_path)}" in shown
    assert "Beats equal weight: " in shown
    assert "pretraining_epochs: 2" in (report.parents[1] / "config.yaml").read_text("utf-8")  # demo.yaml was read


def test_types_arrive_with_an_editable_installation(source: Path, tmp_path: Path) -> None:
    """As `pip install -e` leaves it, in an environment of its own, a type checker finds the package's annotations."""
    environment, script = tmp_path / "venv", tmp_path / "mine.py"
    run(sys.executable, "-m", "venv", "--without-pip", str(environment), folder=tmp_path)
    prefix = ("--ignore-installed", "--no-build-isolation", "--prefix", str(environment), "-e", str(source))
    run(*PIP, "install", *OFFLINE, *prefix, folder=tmp_path)
    script.write_text("import finflow\n\nconfig = finflow.load_config()\nreveal_type(config)\n")
    checked = (sys.executable, "-m", "mypy", "--python-executable", str(environment / "bin" / "python"), script.name)
    done = subprocess.run(checked, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert 'Revealed type is "finflow.config.schema.Config"' in done.stdout, done.stdout + done.stderr


def test_a_file_of_the_user_comes_before_a_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert options.shipped_configuration("demo.yaml") == ROOT / "configs" / "demo.yaml"
    assert options._existing_path(Path("configs/calm.yaml")) == ROOT / "configs" / "calm.yaml"
    assert options._existing_path(Path("configs/none.yaml")) == Path("configs/none.yaml")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "calm.yaml").write_text("train: {seed: 5}\n")
    assert options._existing_path(Path("configs/calm.yaml")) == Path("configs/calm.yaml")


def test_the_dockerfile_copies_what_is_there_and_runs_the_console_entry() -> None:
    """The image itself is not built here: that needs a Docker daemon and the package index."""
    text = (ROOT / "Dockerfile").read_text("utf-8")
    copied = [words.split() for words in re.findall(r"^COPY (.+)$", text, re.MULTILINE)]
    sources = [name for *names, _ in copied for name in names]
    assert set(SOURCES) | {"constraints.txt"} == set(sources)
    assert all((ROOT / name).exists() for name in sources)
    sent = (ROOT / ".dockerignore").read_text("utf-8").split()
    assert {f"!{name}" for name in sources} <= set(sent)
    assert json.loads(re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE)[-1]) == ["finflow"]
    assert json.loads(re.findall(r"^CMD (.+)$", text, re.MULTILINE)[-1]) == ["--mode", "demo"]
