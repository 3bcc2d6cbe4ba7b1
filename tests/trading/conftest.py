"""One tiny agent for all tests of the room, in a market whose file a test may replace."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from finflow.cli import main
from finflow.training.trainer import FinFlowTrainer
from tests.short_trainings import SHORT, config_in, write_market

KEYS: dict[str, object] = {
    **SHORT,
    "market.source": "csv",
    "market.train_end": "2011-09-30",
    "market.validation_end": "2011-10-31",
    "market.test_end": "2011-12-30",
    "evaluation.sweeps": False,
}


@dataclass(frozen=True)
class Trained:
    """A run folder, and the prices that it was trained on, which go on beyond its test window."""

    run: Path
    prices: Path

    def decide(self, *options: str) -> int:
        """Call `--mode decide` on it."""
        given = ("--mode", "decide", "--resume", str(self.run), "--set", f"market.path={self.prices}", "--i-know")
        return main([*given, *options])


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    prices = write_market(folder / "prices.csv")
    trainer = FinFlowTrainer(config_in(folder, {**KEYS, "market.path": str(prices)}))
    trainer.train()
    return Trained(trainer.run_folder, prices)


@pytest.fixture
def trained(trained_once: Trained, tmp_path: Path) -> Trained:
    """The agent in a folder of its own."""
    run = tmp_path / "run"
    shutil.copytree(trained_once.run, run)
    return Trained(run, Path(shutil.copy(trained_once.prices, tmp_path / "prices.csv")))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a file of a test."""

    def make(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    return make
